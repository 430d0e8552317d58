# SPDX-License-Identifier: GPL-2.0-only
"""Declare the flow control and the reports of transports; _common.pyx describes them."""

from mgloop._loop cimport LoopCore


# The high-water and low-water marks of a write buffer, in bytes.
cdef struct WriteLimits:
    Py_ssize_t high
    Py_ssize_t low
    bint paused                 # pause_writing() was called, and resume_writing() not yet

# Return whether pause_writing() (here) or resume_writing() (in has_drained()) must be called now.
# If so, record the call in `paused`.
cdef inline bint has_exceeded(WriteLimits *limits, Py_ssize_t pending) noexcept:
    if limits.paused or pending <= limits.high:
        return False
    limits.paused = True
    return True

cdef inline bint has_drained(WriteLimits *limits, Py_ssize_t pending) noexcept:
    if not limits.paused or pending > limits.low:
        return False
    limits.paused = False
    return True

cdef int set_limits(WriteLimits *limits, object high, object low) except -1
cdef int pause_above_limit(WriteLimits *limits, Py_ssize_t pending, LoopCore loop,
                           object transport, object protocol, object context) except -1
cdef int resume_below_limit(WriteLimits *limits, Py_ssize_t pending, LoopCore loop,
                            object transport, object protocol, object context) except -1
cdef int report_exception(LoopCore loop, object transport, object protocol, str message,
                          object exc) except -1
cdef int report_fatal(LoopCore loop, object transport, object protocol, str message, object exc,
                      bint expected) except -1
cdef int count_lost_write(unsigned int *lost, str warning) except -1
cdef list chunks_of(object lines)
