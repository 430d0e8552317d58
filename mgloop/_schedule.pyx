# SPDX-License-Identifier: GPL-2.0-only
"""call_soon(), call_later(), create_task() and their like: what runs per callback.

    LoopCore (_loop)      the iteration, the queue and the timers that these fill
      +- ScheduleCore     these methods
           +- FdCore      (_interest) add_reader() and its like

They take *args and a keyword. As ordinary methods they would get a tuple and a dict per call; as
METH_FASTCALL functions, put into the type by hand, they get a C array. The signature in full, with
its names and error messages, is Python's business (signatures.py): a call that is not of the common
form goes round through there. create_task() gets the tuple and the dict, because it passes them on.

Threads: of these only call_soon_threadsafe() may be called from another one than the loop's.
"""

from cpython.float cimport PyFloat_AsDouble, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t

from mgloop._handle cimport (
    Handle, PostedHandle, TimerHandle, mgl_heap_push, new_handle, new_posted_handle, new_timer,
)
from mgloop._loop cimport (
    LoopCore, PyTypeObject, WITHOUT_GIL, mgl_count, mgl_inbox_here, mgl_make, queue,
)

from asyncio import BaseEventLoop, tasks

from . import _stdlib, signatures


cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char *ml_name
        void *ml_meth
        int ml_flags
        const char *ml_doc
    int METH_FASTCALL
    int METH_VARARGS
    int METH_KEYWORDS
    Py_ssize_t PyDict_GET_SIZE(PyObject *d) noexcept
    bint PyDict_Next(PyObject *d, Py_ssize_t *position, PyObject **key, PyObject **value) noexcept
    PyObject *call "PyObject_Call"(PyObject *f, PyObject *args, PyObject *keywords) except NULL
    object PyDescr_NewMethod(PyTypeObject *type, PyMethodDef *method)
    void PyType_Modified(PyTypeObject *type)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *t)
    PyObject *PyTuple_GET_ITEM(PyObject *t, Py_ssize_t i)
    int PyUnicode_CompareWithASCIIString(PyObject *s, const char *ascii) noexcept


cdef extern from "watchedname.h":
    void mgl_watch_name(dict module, str name) noexcept
    PyObject *mgl_watched_value() except NULL


cdef object create_task_cold = BaseEventLoop.create_task
# Read at each use, as asyncio does: programs and tests put classes of their own there.
mgl_watch_name(tasks.__dict__, "Task")
cdef object NativeTask = _stdlib.NativeTask
cdef str EAGER_START = "eager_start"
cdef str CONTEXT = "context"
# The keywords that the running version's create_task() passes on to the task. Where that is every
# keyword, it is all but those that create_task() binds, or gives, itself.
cdef bint FORWARDS_EVERY_KEYWORD = _stdlib.CREATE_TASK_FORWARDS_EVERY_KEYWORD
cdef frozenset FORWARDED = frozenset(("name", "context"))
cdef frozenset NOT_FORWARDED = frozenset(("self", "coro", "loop"))


cdef class ScheduleCore(LoopCore):
    """LoopCore and the methods by which callbacks and tasks get into its queue."""


cdef PyObject *asyncios_names = NULL


cdef bint is_context(PyObject *kwnames) noexcept:
    """Whether the only name in `kwnames` is "context". The first such tuple is kept."""
    global asyncios_names
    if PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "context") != 0:
        return False
    if asyncios_names is NULL and not WITHOUT_GIL:
        Py_INCREF(<object>kwnames)
        asyncios_names = kwnames
    return True


cdef inline bint common_form(Py_ssize_t nargs, Py_ssize_t wanted, PyObject *kwnames) noexcept:
    """Enough positional arguments, and no keyword but `context`."""
    if nargs < wanted:
        return False
    if kwnames is NULL or PyTuple_GET_SIZE(kwnames) == 0:
        return True
    if PyTuple_GET_SIZE(kwnames) != 1:
        return False
    # The names in a program's source are interned. That of asyncio's C code is not, and always in
    # the same tuple.
    return (PyTuple_GET_ITEM(kwnames, 0) == <PyObject *>CONTEXT or kwnames == asyncios_names
            or is_context(kwnames))


cdef PyObject *by_signature(object function, PyObject *self, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames) except NULL:
    cdef Py_ssize_t i
    cdef tuple names = () if kwnames is NULL else <tuple>kwnames
    result = function(
        <object>self, *[<object>args[i] for i in range(nargs)],
        **{names[i]: <object>args[nargs + i] for i in range(len(names))})
    Py_INCREF(result)
    return <PyObject *>result


cdef inline PyObject *context_of(PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames) noexcept:
    """The value of `context=`, or NULL for none."""
    cdef PyObject *context
    if kwnames is NULL or PyTuple_GET_SIZE(kwnames) == 0:
        return NULL
    context = args[nargs]
    return NULL if <object>context is None else context


cdef int check_debug(LoopCore loop, PyObject *callback, str method) except -1:
    loop._check_callback(<object>callback, method)
    return 0


cdef PyObject *call_soon(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames) except NULL:
    cdef LoopCore loop = <LoopCore>self
    cdef Handle h
    if not common_form(nargs, 1, kwnames):
        return by_signature(signatures.call_soon, self, args, nargs, kwnames)
    if loop._closed:
        loop._check_closed()
    if loop._debug:
        loop._check_thread()
        check_debug(loop, args[0], "call_soon")
    h = new_handle(loop, args[0], args + 1, nargs - 1, context_of(args, nargs, kwnames),
                   &loop.snapshot)
    if loop._debug:
        h.source_traceback = _stdlib.extract_stack()
    queue(loop, <PyObject *>h)
    Py_INCREF(h)
    return <PyObject *>h


cdef PyObject *call_soon_threadsafe(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames) except NULL:
    cdef LoopCore loop = <LoopCore>self
    cdef Handle h
    cdef bint here = mgl_inbox_here(loop.inbox)
    if not common_form(nargs, 1, kwnames):
        return by_signature(signatures.call_soon_threadsafe, self, args, nargs, kwnames)
    if loop._closed:
        loop._check_closed()
    if not loop.wakeup_enabled:
        raise RuntimeError(
            "call_soon_threadsafe() needs a loop that can be woken from other threads; this one "
            "was made with enable_wakeup=False: make it with mgloop.new_event_loop()")
    if loop._debug:
        check_debug(loop, args[0], "call_soon_threadsafe")
    h = new_posted_handle(loop, args[0], args + 1, nargs - 1, context_of(args, nargs, kwnames),
                          &loop.snapshot, here)
    if loop._debug:
        h.source_traceback = _stdlib.extract_stack()
    if here:
        mgl_count(&loop.count.threadsafe_calls, 1)
        queue(loop, <PyObject *>h)
    else:
        loop.post(<PostedHandle>h)
    Py_INCREF(h)
    return <PyObject *>h


cdef PyObject *add_timer(LoopCore loop, double when, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames, str method) except NULL:
    """The common part of call_at() and call_later(); args[0] is a time, args[1] the callback."""
    cdef TimerHandle h
    if loop._closed:
        loop._check_closed()
    if loop._debug:
        loop._check_thread()
        check_debug(loop, args[1], method)
    h = new_timer(loop, when, args[1], args + 2, nargs - 2, context_of(args, nargs, kwnames),
                  &loop.snapshot)
    if loop._debug:
        h.source_traceback = _stdlib.extract_stack()
    h.heap = &loop.timers
    # Not a number is before and after nothing, and would put the heap out of order: now, then.
    mgl_heap_push(&loop.timers, when if when == when else 0, <PyObject *>h, &h.index)
    if when * 1e9 < loop.next_wake:
        # Set for sooner than others are kept for, as by call_later(0).
        loop.next_wake = <int64_t>max(when * 1e9, 0)
    Py_INCREF(h)
    return <PyObject *>h


cdef PyObject *call_at(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames) except NULL:
    cdef PyObject *timer
    if not common_form(nargs, 2, kwnames):
        return by_signature(signatures.call_at, self, args, nargs, kwnames)
    if <object>args[0] is None:
        raise TypeError("when cannot be None")
    timer = add_timer(<LoopCore>self, PyFloat_AsDouble(<object>args[0]), args, nargs, kwnames,
                      "call_at")
    if not PyFloat_CheckExact(<object>args[0]):
        (<TimerHandle>timer).given = <object>args[0]
    return timer


cdef PyObject *call_later(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames) except NULL:
    cdef LoopCore loop = <LoopCore>self
    cdef object delay
    cdef double when
    if not common_form(nargs, 2, kwnames):
        return by_signature(signatures.call_later, self, args, nargs, kwnames)
    delay = <object>args[0]
    if delay is None:
        raise TypeError("delay must not be None")
    if PyFloat_CheckExact(delay) or PyLong_CheckExact(delay):
        when = loop.read_clock() + PyFloat_AsDouble(delay)
    else:
        when = PyFloat_AsDouble(loop.time() + delay)
    return add_timer(loop, when, args, nargs, kwnames, "call_later")


cdef bint all_forwarded(dict keywords) except -1:
    """Whether create_task() passes these on, and neither binds them itself nor rejects them."""
    for keyword in keywords:
        if (keyword in NOT_FORWARDED) if FORWARDS_EVERY_KEYWORD else (keyword not in FORWARDED):
            return False
    return True


cdef inline dict kept_keywords(LoopCore loop, PyObject *keywords):
    """Return the keyword arguments that the loop keeps for such a task, or None."""
    cdef PyObject *keyword
    cdef PyObject *value
    cdef Py_ssize_t position = 0
    if keywords is NULL or PyDict_GET_SIZE(keywords) == 0:
        return loop.future_keywords
    if PyDict_GET_SIZE(keywords) == 1 and FORWARDS_EVERY_KEYWORD \
            and PyDict_Next(keywords, &position, &keyword, &value) \
            and keyword == <PyObject *>EAGER_START and <object>value is True:
        return loop.eager_keywords
    return None


# `keywords` is NULL for none.
cdef PyObject *create_task(PyObject *self, PyObject *args, PyObject *keywords) except NULL:
    """asyncio.Task(coro, loop=self, **keywords). BaseEventLoop.create_task() handles task factories
    and debug mode, and raises the errors."""
    cdef LoopCore loop = <LoopCore>self
    cdef dict kept = None
    cdef PyObject *kind
    if PyTuple_GET_SIZE(args) != 1 or loop._task_factory is not None or loop._debug \
            or loop._closed:
        return create_task_by_asyncio(self, args, keywords)
    kind = mgl_watched_value()
    if kind == <PyObject *>NativeTask:
        kept = kept_keywords(loop, keywords)
        if kept is not None:
            return mgl_make(<PyTypeObject *>kind, args, <PyObject *>kept)
    kept = {"loop": loop}
    if keywords is not NULL:
        if not all_forwarded(<dict>keywords):
            return create_task_by_asyncio(self, args, keywords)
        kept.update(<dict>keywords)
    return call(kind, args, <PyObject *>kept)


cdef PyObject *create_task_by_asyncio(PyObject *self, PyObject *args,
                                      PyObject *keywords) except NULL:
    cdef tuple with_self = (<object>self,) + <tuple>args
    return call(<PyObject *>create_task_cold, <PyObject *>with_self, keywords)


cdef PyMethodDef hot_methods[5]

cdef int install_method(int i, const char *name, void *function, int flags,
                        const char *doc) except -1:
    cdef PyTypeObject *owner = <PyTypeObject *>ScheduleCore
    hot_methods[i].ml_name = name
    hot_methods[i].ml_meth = function
    hot_methods[i].ml_flags = flags | METH_KEYWORDS
    hot_methods[i].ml_doc = doc
    (<dict>owner.tp_dict)[name.decode()] = PyDescr_NewMethod(owner, &hot_methods[i])
    return 0


install_method(
    0, "call_soon", <void *>call_soon, METH_FASTCALL,
    "Call callback(*args) in the next iteration; returns a Handle. As asyncio.loop.call_soon.")
install_method(
    1, "call_soon_threadsafe", <void *>call_soon_threadsafe, METH_FASTCALL,
    "call_soon() for use from another thread: also wakes the loop.")
install_method(
    2, "call_at", <void *>call_at, METH_FASTCALL,
    "Call callback(*args) at `when`, in seconds of loop.time(); returns a TimerHandle.")
install_method(
    3, "call_later", <void *>call_later, METH_FASTCALL,
    "Call callback(*args) after `delay` seconds; returns a TimerHandle.")
# The task's class takes a tuple and a dict, which asyncio.create_task() has already.
install_method(
    4, "create_task", <void *>create_task, METH_VARARGS,
    "Schedule a coroutine as a Task; as asyncio.loop.create_task of the running version.")
PyType_Modified(<PyTypeObject *>ScheduleCore)
