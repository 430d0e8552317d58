# SPDX-License-Identifier: GPL-2.0-only
"""Declare Measured, the timing of a loop. Times are in nanoseconds of the loop's clock."""

from libc.stdint cimport int64_t


cdef extern from "timing.h":
    enum:
        MGL_BUCKETS

    ctypedef struct mgl_histogram:
        int64_t counts[MGL_BUCKETS]
        int64_t nanoseconds

    ctypedef struct mgl_timing:
        mgl_histogram lag
        mgl_histogram duration
        int64_t run
        int64_t wait


cdef class Measured:
    cdef mgl_timing *timing
    cdef dict run_times         # {key: RunTime}; key_of() makes the keys

    # The loop enters or leaves run_forever().
    cdef void start_running(self) noexcept
    cdef void stop_running(self) noexcept
    # A poll begins or ends. The ready queue has `ready` entries.
    cdef void start_waiting(self, size_t ready) noexcept
    cdef void stop_waiting(self, size_t ready) noexcept
    # The ready queue has `ready` entries at the time `now`.
    cdef void mark(self, size_t ready, int64_t now) noexcept
    # The oldest entry is taken from the ready queue. Return the time since which it was in there.
    cdef int64_t take(self, int64_t now) noexcept
    cdef void add_lag(self, int64_t ns) noexcept
    cdef void add_run(self, object key, int64_t ns) noexcept

    # Callable from any thread; see _measured.pyx.
    cdef tuple times(self)
    cdef dict times_by_key(self)


# Return the key under which the run time of an entry of the ready queue is counted.
cdef object key_of(object entry)
