# SPDX-License-Identifier: GPL-2.0-only
"""Schedule callbacks and tasks: call_soon(), call_later(), create_task() and related methods.

    HookCore (_hooks)     small methods of BaseEventLoop, and all that it inherits
      +- ScheduleCore     the methods that add to the ready queue and the timer heap
           +- FdCore      (_interest) add_reader() and related methods

The module is native because these methods run once per callback. They take *args and a keyword
argument. Ordinary methods would receive these in a new tuple and dict per call. C functions with
the flag METH_FASTCALL receive them in a C array instead; install_method() puts such functions into
the type. They handle only the common form of a call. _signatures.py handles all other forms: it has
the full Python signatures and their error messages. create_task() takes the tuple and the dict,
because it passes them on.

Only the loop's thread may call these methods, except call_soon_threadsafe(). LoopCore's queues hold
the new handles until they run.
"""

from cpython.float cimport PyFloat_AsDouble, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t

from mgloop._handle cimport (
    Handle, PostedHandle, TimerHandle, mgl_heap_push, new_handle, new_posted_handle, new_timer,
)
from mgloop._hooks cimport HookCore
from mgloop._loop cimport (
    LoopCore, PyTypeObject, WITHOUT_GIL, mgl_count, mgl_make, mgl_thread_queue,
    mgl_thread_queue_here, queue,
)

from asyncio import BaseEventLoop, tasks

from . import _signatures, _stdlib


cdef extern from "threadqueue.h":
    bint mgl_thread_queue_waits(mgl_thread_queue *queue) noexcept


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


cdef object base_create_task = BaseEventLoop.create_task
cdef object tasks_module = tasks
cdef object NativeTask = _stdlib.NativeTask
cdef str EAGER_START = "eager_start"
cdef str CONTEXT = "context"
# The keywords that create_task() of the running Python version passes on to the task. Newer
# versions pass on every keyword, except those that are parameters of create_task() (`self`, `coro`)
# and the one that it passes itself (`loop`).
cdef bint FORWARDS_EVERY_KEYWORD = _stdlib.CREATE_TASK_FORWARDS_EVERY_KEYWORD
cdef frozenset FORWARDED = frozenset(("name", "context"))
cdef frozenset NOT_FORWARDED = frozenset(("self", "coro", "loop"))


cdef class ScheduleCore(HookCore):
    """Add to HookCore the methods that schedule callbacks and tasks."""


# The tuple of keyword names that asyncio's C code passes, after its first call.
cdef PyObject *context_names = NULL


cdef bint is_context(PyObject *kwnames) noexcept:
    """Return whether the only name in `kwnames` is "context", and cache the first such tuple."""
    global context_names
    if PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "context") != 0:
        return False
    if context_names is NULL and not WITHOUT_GIL:
        Py_INCREF(<object>kwnames)
        context_names = kwnames
    return True


cdef inline bint common_form(Py_ssize_t nargs, Py_ssize_t wanted, PyObject *kwnames) noexcept:
    """Return whether a call has enough positional arguments and no keyword except `context`."""
    if nargs < wanted:
        return False
    if kwnames is NULL or PyTuple_GET_SIZE(kwnames) == 0:
        return True
    if PyTuple_GET_SIZE(kwnames) != 1:
        return False
    # Keyword names from Python source are interned, so that comparing pointers is enough. The name
    # that asyncio's C code passes is not interned, but is always in the same tuple.
    return (PyTuple_GET_ITEM(kwnames, 0) == <PyObject *>CONTEXT or kwnames == context_names
            or is_context(kwnames))


cdef PyObject *call_by_signature(object function, PyObject *self, PyObject *const *args,
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
    """Return the argument `context`, or NULL if it is missing or None; a borrowed reference."""
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
        return call_by_signature(_signatures.call_soon, self, args, nargs, kwnames)
    if loop._closed:
        loop._check_closed()
    if loop._debug:
        loop._check_thread()
        check_debug(loop, args[0], "call_soon")
    h = new_handle(loop, args[0], args + 1, nargs - 1, context_of(args, nargs, kwnames))
    if loop._debug:
        h.source_traceback = _stdlib.extract_stack()
    queue(loop, <PyObject *>h)
    Py_INCREF(h)
    return <PyObject *>h


cdef PyObject *call_soon_threadsafe(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames) except NULL:
    cdef LoopCore loop = <LoopCore>self
    cdef Handle h
    # In the loop's thread, the loop waits only if another greenlet runs, which must wake it.
    cdef bint here = (mgl_thread_queue_here(loop.thread_queue)
                      and not mgl_thread_queue_waits(loop.thread_queue))
    if not common_form(nargs, 1, kwnames):
        return call_by_signature(_signatures.call_soon_threadsafe, self, args, nargs, kwnames)
    if loop._closed:
        loop._check_closed()
    if not loop.wakeup_enabled:
        raise RuntimeError(
            "call_soon_threadsafe() requires a loop that other threads can wake up; this one "
            "was created with enable_wakeup=False: create it with mgloop.new_event_loop()")
    if loop._debug:
        check_debug(loop, args[0], "call_soon_threadsafe")
    h = new_posted_handle(loop, args[0], args + 1, nargs - 1, context_of(args, nargs, kwnames),
                          here)
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
    """Add a timer for call_at() or call_later(), at *when* in seconds of loop.time().

    args[0] is the caller's time or delay, args[1] the callback, and the callback's arguments
    follow.
    """
    cdef TimerHandle h
    if loop._closed:
        loop._check_closed()
    if loop._debug:
        loop._check_thread()
        check_debug(loop, args[1], method)
    h = new_timer(loop, when, args[1], args + 2, nargs - 2, context_of(args, nargs, kwnames))
    if loop._debug:
        h.source_traceback = _stdlib.extract_stack()
    h.heap = &loop.timers
    # NaN compares false with every number and would break the order of the heap. Use 0, which means
    # that the timer is due now.
    mgl_heap_push(&loop.timers, when if when == when else 0, <PyObject *>h, &h.index)
    if when * 1e9 < loop.next_wake:
        # The timer is due before the loop's next planned wake-up, as after call_later(0).
        loop.next_wake = <int64_t>max(when * 1e9, 0)
    Py_INCREF(h)
    return <PyObject *>h


cdef PyObject *call_at(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames) except NULL:
    cdef PyObject *timer
    if not common_form(nargs, 2, kwnames):
        return call_by_signature(_signatures.call_at, self, args, nargs, kwnames)
    if <object>args[0] is None:
        raise TypeError("when cannot be None")
    timer = add_timer(<LoopCore>self, PyFloat_AsDouble(<object>args[0]), args, nargs, kwnames,
                      "call_at")
    if not PyFloat_CheckExact(<object>args[0]):
        (<TimerHandle>timer).exact_when = <object>args[0]
    return timer


cdef PyObject *call_later(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames) except NULL:
    cdef LoopCore loop = <LoopCore>self
    cdef object delay
    cdef double when
    if not common_form(nargs, 2, kwnames):
        return call_by_signature(_signatures.call_later, self, args, nargs, kwnames)
    delay = <object>args[0]
    if delay is None:
        raise TypeError("delay must not be None")
    if PyFloat_CheckExact(delay) or PyLong_CheckExact(delay):
        when = loop.read_clock() + PyFloat_AsDouble(delay)
    else:
        when = PyFloat_AsDouble(loop.time() + delay)
    return add_timer(loop, when, args, nargs, kwnames, "call_later")


cdef bint all_forwarded(dict keywords) except -1:
    """Return whether create_task() passes all these keywords on to the task.

    It binds some keywords itself and rejects others.
    """
    for keyword in keywords:
        if (keyword in NOT_FORWARDED) if FORWARDS_EVERY_KEYWORD else (keyword not in FORWARDED):
            return False
    return True


cdef inline dict cached_keywords(LoopCore loop, PyObject *keywords):
    """Return the loop's cached dict of keyword arguments that fits *keywords*, or None."""
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


cdef PyObject *create_task(PyObject *self, PyObject *args, PyObject *keywords) except NULL:
    """Return asyncio.Task(coro, loop=self, **keywords); `keywords` may be NULL.

    With a task factory, in debug mode, and for calls that raise an error, call
    BaseEventLoop.create_task().
    """
    cdef LoopCore loop = <LoopCore>self
    cdef dict task_keywords
    cdef object task_class
    if PyTuple_GET_SIZE(args) != 1 or loop._task_factory is not None or loop._debug \
            or loop._closed:
        return create_task_by_asyncio(self, args, keywords)
    # Look the class up at each use, as asyncio does, because programs and tests replace it.
    task_class = tasks_module.Task
    if task_class is NativeTask:
        task_keywords = cached_keywords(loop, keywords)
        if task_keywords is not None:
            return mgl_make(<PyTypeObject *>task_class, args, <PyObject *>task_keywords)
    task_keywords = {"loop": loop}
    if keywords is not NULL:
        if not all_forwarded(<dict>keywords):
            return create_task_by_asyncio(self, args, keywords)
        task_keywords.update(<dict>keywords)
    return call(<PyObject *>task_class, args, <PyObject *>task_keywords)


cdef PyObject *create_task_by_asyncio(PyObject *self, PyObject *args,
                                      PyObject *keywords) except NULL:
    cdef tuple with_self = (<object>self,) + <tuple>args
    return call(<PyObject *>base_create_task, <PyObject *>with_self, keywords)


cdef PyMethodDef methods[5]

cdef int install_method(int i, const char *name, void *function, int flags,
                        const char *doc) except -1:
    cdef PyTypeObject *owner = <PyTypeObject *>ScheduleCore
    methods[i].ml_name = name
    methods[i].ml_meth = function
    methods[i].ml_flags = flags | METH_KEYWORDS
    methods[i].ml_doc = doc
    (<dict>owner.tp_dict)[name.decode()] = PyDescr_NewMethod(owner, &methods[i])
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
# The task's class takes a tuple and a dict, and asyncio.create_task() passes them already.
install_method(
    4, "create_task", <void *>create_task, METH_VARARGS,
    "Schedule a coroutine as a Task; as asyncio.loop.create_task of the running version.")
PyType_Modified(<PyTypeObject *>ScheduleCore)
