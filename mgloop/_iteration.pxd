# SPDX-License-Identifier: GPL-2.0-only
"""Declare IterationCore, the base class of CounterCore; _iteration.pyx describes it."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from mgloop._loop cimport LoopCore


cdef class IterationCore(LoopCore):
    # `selector` is the class of the selector that greenlets wait with, or None.
    cdef int run_until_stopped(self, object selector) except -1
    cdef int iterate(self, object selector) except -1
    # `deadline` is in nanoseconds of the port's clock.
    cdef int wait_with_greenlets(self, object selector, int64_t deadline) except -1
    # Move the submitted handles in front of the last `events` entries of the ready queue.
    cdef int collect_posted_before(self, size_t events) except -1
    cdef int collect_timers(self) except -1
    # Run the first `n` entries of the ready queue.
    cdef int run_batch(self, size_t n) except -1
    # The same with observers; `patched` replaces asyncio's Handle._run() unless it is None.
    cdef int run_observed(self, size_t n, object patched) except -1
    cdef int64_t run_entry(self, int64_t start, object patched) except -1
    cdef int run_item(self, object item, object patched, bint keep, uint32_t *events) except -1
    cdef int64_t ready_since(self, PyObject *entry, int64_t now) noexcept
