# SPDX-License-Identifier: GPL-2.0-only
"""Measure how long a loop runs and waits, and how long its callbacks wait and run.

A loop that was created with timing has a Measured object for stats() and callback_times(). All
other loops test only one pointer. The module is native because it runs per callback. The
loop's thread calls the methods, and any thread may call those that return results. The object lives
as long as its loop, and does not know it. port/timing.h describes the measurement.
"""

cimport cython
from libc.stdint cimport int64_t

from mgloop._handle cimport Handle
from mgloop._port cimport mgl_clock_ns, mgl_count, mgl_counted

import functools
import types
from asyncio import tasks as asyncio_tasks


cdef extern from "timing.h":
    mgl_timing *mgl_timing_new()
    void mgl_timing_free(mgl_timing *timing)
    void mgl_histogram_add(mgl_histogram *histogram, int64_t ns) noexcept
    void mgl_stopwatch_start(int64_t *watch, int64_t now) noexcept
    void mgl_stopwatch_stop(int64_t *watch, int64_t now) noexcept
    void mgl_timing_read(mgl_timing *timing, int64_t *running, int64_t *waiting) noexcept
    void mgl_timing_mark(mgl_timing *timing, size_t length, int64_t now) noexcept
    int64_t mgl_timing_take(mgl_timing *timing, int64_t now) noexcept


cdef enum:
    MAX_KEYS = 1000     # limit of the callback names whose run time is measured separately

# Types whose names can be read without running user code.
cdef object NAMED = frozenset(
    (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType))


@cython.final
cdef class RunTime:
    """Count the runs and the nanoseconds of one callback name or protocol type.

    The loop's thread writes the fields, and other threads may read them.
    """
    cdef int64_t times, ns


@cython.final
cdef class Measured:
    """Measure the times of one loop."""

    def __cinit__(self):
        self.timing = mgl_timing_new()
        if self.timing is NULL:
            raise MemoryError
        self.run_times = {}

    def __dealloc__(self):
        mgl_timing_free(self.timing)

    cdef void start_running(self) noexcept:
        mgl_stopwatch_start(&self.timing.run, mgl_clock_ns())

    cdef void stop_running(self) noexcept:
        mgl_stopwatch_stop(&self.timing.run, mgl_clock_ns())

    cdef void start_waiting(self, size_t ready) noexcept:
        cdef int64_t now = mgl_clock_ns()
        mgl_timing_mark(self.timing, ready, now)
        mgl_stopwatch_start(&self.timing.wait, now)

    cdef void stop_waiting(self, size_t ready) noexcept:
        cdef int64_t now = mgl_clock_ns()
        mgl_stopwatch_stop(&self.timing.wait, now)
        mgl_timing_mark(self.timing, ready, now)

    cdef void mark(self, size_t ready, int64_t now) noexcept:
        mgl_timing_mark(self.timing, ready, now)

    cdef int64_t take(self, int64_t now) noexcept:
        return mgl_timing_take(self.timing, now)

    cdef void add_lag(self, int64_t ns) noexcept:
        mgl_histogram_add(&self.timing.lag, ns)

    cdef void add_run(self, object key, int64_t ns) noexcept:
        cdef RunTime run_time
        mgl_histogram_add(&self.timing.duration, ns)
        run_time = <RunTime>self.run_times.get(key)
        if run_time is None:
            if len(self.run_times) >= MAX_KEYS:
                key = "others"
            run_time = <RunTime>self.run_times.setdefault(key, RunTime())
        mgl_count(&run_time.times, 1)
        mgl_count(&run_time.ns, ns)

    cdef tuple times(self):
        """Return (seconds running, seconds waiting, lag, duration).

        *lag* and *duration* are histograms: see histogram().
        """
        cdef int64_t running, waiting
        mgl_timing_read(self.timing, &running, &waiting)
        return (
            running * 1e-9, waiting * 1e-9,
            histogram(&self.timing.lag), histogram(&self.timing.duration))

    cdef dict times_by_key(self):
        """Return {callback name or protocol type: (times run, seconds)}."""
        cdef RunTime run_time
        cdef dict result = {}
        for key, run_time in self.run_times.copy().items():
            result[key] = mgl_counted(&run_time.times), mgl_counted(&run_time.ns) * 1e-9
        return result


cdef object histogram(const mgl_histogram *h):
    """Return a histogram as (counts per bucket, total seconds)."""
    cdef int i
    return (
        tuple([mgl_counted(&h.counts[i]) for i in range(MGL_BUCKETS)]),
        mgl_counted(&h.nanoseconds) * 1e-9)


cdef object key_of(object entry):
    """Return the key under which the run time of an entry of the ready queue is counted.

    It is the name of the callback, or the type of a transport's protocol, or the watcher's type.
    """
    if isinstance(entry, Handle):
        entry = (<Handle>entry).readable()
        if (<Handle>entry).call.callback is NULL:
            return "cancelled"
        return callback_name(<object>(<Handle>entry).call.callback)
    get_protocol = getattr(entry, "get_protocol", None)
    protocol = None if get_protocol is None else get_protocol()
    return type(entry if protocol is None else protocol)


cdef object callback_name(object callback):
    """Return the name of the coroutine if the callback belongs to a task, else the function's.

    Of any other object only the type is read, because the object may be a proxy whose attributes
    run user code.
    """
    while type(callback) is functools.partial:
        callback = callback.func
    kind = type(callback)
    try:
        if kind not in NAMED and kind.__name__ != "TaskStepMethWrapper":
            return kind.__qualname__
        owner = getattr(callback, "__self__", None)
        if issubclass(type(owner), asyncio_tasks.Task):
            # get_coro() crashes before CPython 3.12.5 if an eager task has ended.
            coroutine = getattr(owner, "_coro", None)
            if coroutine is not None:
                callback = coroutine
        return str(callback.__qualname__)
    except Exception:
        pass
    return type(callback).__qualname__
