# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# _loop.pyx explains the directive.
"""Read the counters, gauges and times of a loop, for stats() and callback_times().

The module is native because the numbers are C fields of LoopCore (port/counters.h) and Measured,
which native code increments. The loop's thread writes them, and any thread may read them. They live
as long as the loop object.
"""

from libc.stdint cimport int64_t

from mgloop._iteration cimport IterationCore
from mgloop._loop cimport store_gauges
from mgloop._port cimport (
    MGL_CONNECTION_KINDS, mgl_clock_ns, mgl_connections, mgl_count, mgl_counted, mgl_counters,
    mgl_thread_queue_elsewhere,
)


cdef extern from "counters.h":
    ctypedef struct mgl_counter_entry:
        const char *name
    const mgl_counter_entry *mgl_counter_entry_at(size_t i) noexcept
    int64_t *mgl_counter_of(mgl_counters *counters, const mgl_counter_entry *entry) noexcept


cdef dict counter_indexes():
    """Return {name: index} of all counters in port/counters.h."""
    cdef dict indexes = {}
    cdef const mgl_counter_entry *entry = mgl_counter_entry_at(0)
    while entry is not NULL:
        indexes[entry.name.decode()] = len(indexes)
        entry = mgl_counter_entry_at(len(indexes))
    return indexes


cdef dict COUNTERS = counter_indexes()


cdef class CounterCore(IterationCore):
    """Add to IterationCore the methods that read and increment the counters."""

    @property
    def _native_thread(self):
        """Return the kernel's thread id (gettid()) of the thread that runs the loop, or 0."""
        return mgl_counted(&self.native_thread)

    def _counted(self):
        """Return the counters and gauges as {field of LoopStats: int}; callable from any thread."""
        cdef dict counted = {}
        if not mgl_thread_queue_elsewhere(self.thread_queue):
            store_gauges(self)
        for name, index in COUNTERS.items():
            counted[name] = mgl_counted(mgl_counter_of(&self.count, mgl_counter_entry_at(index)))
        # Other threads count it, in the structure that they share.
        counted["wakeups"] = mgl_counted(&self.thread_queue.wakeups)
        return counted

    def _connections(self):
        """Return a list of (accepted, opened, closed), in the order of stats.KINDS."""
        cdef const mgl_connections *kind
        cdef list connections = []
        cdef int i
        for i in range(MGL_CONNECTION_KINDS):
            kind = &self.count.connections[i]
            connections.append((
                mgl_counted(&kind.accepted), mgl_counted(&kind.opened), mgl_counted(&kind.closed)))
        return connections

    def _age(self):
        """Return the seconds since the loop was created."""
        return (mgl_clock_ns() - self.made_at) * 1e-9

    def _timed(self):
        """Return (seconds running, seconds waiting, lag, duration), or None without timing.

        *lag* and *duration* are (counts per bucket, total seconds).
        """
        return None if self.measured is None else self.measured.times()

    def _spent(self):
        """Return {callback name or protocol type: (times run, seconds)}, from any thread."""
        return {} if self.measured is None else self.measured.times_by_key()

    def _count(self, str name, int64_t n=1):
        """Add *n* to the counter *name* of LoopStats. Only the loop's thread may call this."""
        mgl_count(mgl_counter_of(&self.count, mgl_counter_entry_at(COUNTERS[name])), n)
