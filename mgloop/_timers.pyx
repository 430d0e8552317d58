# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# _loop.pyx explains the directive.
"""Keep the timers of a loop, and read the clock that they follow.

TimerCore is the first native base class of mgloop.Loop; LoopCore inherits from it. It owns the
timer heap. call_at() and call_later() (_schedule) add timers, and a cancelled timer removes itself
(_handle). The module is native because the loop reads the clock in each iteration that has timers.
The loop's thread calls all methods, except time(). The heap lives as long as the loop is open.

Programs and tests replace time(), on the loop or on its class, with a clock of their own and expect
the timers to follow it. A replacement on the loop takes effect immediately. A replacement on the
class of a running loop takes effect when the loop runs again.
"""

from cpython.object cimport PyObject
from libc.math cimport ceil
from libc.stdint cimport int64_t

from mgloop._port cimport mgl_clock_ns, mgl_ring


cdef extern from "poll.h":
    const int64_t MGL_NEVER


cdef extern from "timerheap.h":
    Py_ssize_t mgl_heap_take_due(mgl_heap *h, double now, mgl_ring *ready) except -1


cdef extern from "Python.h":
    int PyObject_GenericSetAttr(object o, object name, PyObject *value) except -1


cdef enum:
    MAX_WAIT_SECONDS = 24 * 3600    # as asyncio: longer waits are split
    # The minimum interval between two wake-ups for timers grows with the number of timers that were
    # due together, because the loop pays for one sleep per wake-up.
    WAKE_MIN_NS = 50 * 1000         # the timer slack that Linux adds to a timeout by default
    WAKE_PER_TIMER_NS = 10 * 1000
    WAKE_MAX_NS = 250 * 1000


cdef class TimerCore:
    """Keep the timers of a loop, and read its clock."""

    def __setattr__(self, name, value):
        # Detecting the assignment of time() here costs nothing in programs without one.
        PyObject_GenericSetAttr(self, name, <PyObject *>value)
        if name == "time":
            self.time_given = True
            self.check_clock()

    def __delattr__(self, name):
        PyObject_GenericSetAttr(self, name, NULL)
        if name == "time":
            self.time_given = False
            self.check_clock()

    cdef int check_clock(self) except -1:
        self.time_patched = self.time_given or type(self).time is not TimerCore.time
        return 0

    cdef bint has_other_clock(self) except -1:
        if not self.clock_checked:
            self.check_clock()
        return self.time_patched

    def time(self):
        """Return the time of the loop's clock in seconds, which is that of time.monotonic()."""
        return mgl_clock_ns() / 1e9

    cdef double read_clock(self) except? -1:
        if self.has_other_clock():
            return self.time()
        return mgl_clock_ns() / 1e9

    cdef int64_t first_deadline(self) except -1:
        cdef double when, now = 0
        if self.timers.len == 0:
            return MGL_NEVER
        if self.has_other_clock():
            now = self.time()
            if self.timers.len == 0:
                return MGL_NEVER    # time() has cancelled the last timer
        when = self.timers.items[0].when
        if self.time_patched:
            # The deadline is in the time of the replaced clock, which may run at another rate.
            # Assume that the time until the deadline is as long as that clock says now.
            when = mgl_clock_ns() / 1e9 + min(when - now, <double>MAX_WAIT_SECONDS)
        if when * 1e9 < <double>MGL_NEVER:
            return <int64_t>ceil(max(when * 1e9, 0.0))
        return MGL_NEVER

    cdef int64_t take_due(self, mgl_ring *ring) except -1:
        cdef double now = self.read_clock()
        cdef int64_t due = mgl_heap_take_due(&self.timers, now, ring)
        if due and not self.time_patched:
            self.next_wake = <int64_t>(now * 1e9) \
                + min(max(due * WAKE_PER_TIMER_NS, WAKE_MIN_NS), WAKE_MAX_NS)
        return due
