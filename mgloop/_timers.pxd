# SPDX-License-Identifier: GPL-2.0-only
"""Declare TimerCore, the base class of LoopCore. All methods belong to the loop's thread."""

from libc.stdint cimport int64_t

from mgloop._handle cimport mgl_heap
from mgloop._port cimport mgl_ring


cdef class TimerCore:
    cdef mgl_heap timers        # the timer heap
    # The earliest time at which the loop wakes up for timers, in nanoseconds of its clock.
    cdef int64_t next_wake
    cdef bint time_given        # time() was replaced on this object
    cdef bint time_patched      # time() was replaced on this object or on its class
    cdef bint clock_checked     # `time_patched` is up to date; only while the loop runs

    # Compute `time_patched`.
    cdef int check_clock(self) except -1
    # Return whether time() has been replaced on this object or on its class.
    cdef bint has_other_clock(self) except -1
    # Return the time in seconds.
    cdef double read_clock(self) except? -1
    # Return the deadline of the first timer in nanoseconds of the port's clock, or MGL_NEVER.
    cdef int64_t first_deadline(self) except -1
    # Move the timers that are due to the end of a ring. Return their number.
    cdef int64_t take_due(self, mgl_ring *ring) except -1
