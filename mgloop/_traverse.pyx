# SPDX-License-Identifier: GPL-2.0-only
"""Visit for the garbage collector the references that are only in C structures.

The collector does not track handles, and Cython does not generate code to traverse the ready queue,
the timer heap and the poll table. A loop that the program drops without closing it must be
collected anyway (and then warns). The classes that own such references therefore visit them in
tp_traverse. The functions own nothing. The collector calls them with the GIL, or without it while
all other threads are stopped. They change no reference that outlives the call.

The references of a handle in the queue or in the heap count as references of the loop, although
other code may also hold the handle (the awaiter of asyncio.sleep() does). That is safe: if the
loop is garbage the handle can never run, and closing the loop drops the handle's references. The
references of a reader or writer are visited only while its Direction is the only holder.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from mgloop._entries cimport is_handle
from mgloop._handle cimport Handle
from mgloop._port cimport mgl_ring_at, mgl_ring_len


cdef extern from "posted.h":
    PyObject *mgl_posted_next(mgl_posted *p, uintptr_t *cursor) noexcept


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o) noexcept


cdef int visit_references(Handle h, visitproc visit, void *arg) noexcept:
    cdef int i, n, rc = 0
    if h.context is not NULL:
        rc = visit(h.context, arg)
    if rc == 0:
        rc = visit(<PyObject *>h.loop, arg)
    if rc == 0 and h.call.callback is not NULL:
        rc = visit(h.call.callback, arg)
        n = 1 if h.call.nargs < 0 else h.call.nargs
        for i in range(n):
            if rc == 0:
                rc = visit(h.call.args[1 + i], arg)
    return rc


cdef int visit_handle(PyObject *o, visitproc visit, void *arg) noexcept:
    if o is NULL or Py_REFCNT(o) != 1 or not is_handle(o):
        return 0
    return visit_references(<Handle>o, visit, arg)


cdef int visit_ready(const mgl_ring *ready, visitproc visit, void *arg) noexcept:
    cdef PyObject *entry
    cdef Py_ssize_t i
    cdef int rc = 0
    for i in range(<Py_ssize_t>mgl_ring_len(ready)):
        entry = mgl_ring_at(ready, i)
        if rc == 0:
            rc = visit(entry, arg)
        if rc == 0 and is_handle(entry) and not (<Handle>entry).lasting:
            rc = visit_references(<Handle>entry, visit, arg)
    return rc


cdef int visit_posted(mgl_posted *posted, visitproc visit, void *arg) noexcept:
    cdef uintptr_t cursor = 0
    cdef PyObject *handle = mgl_posted_next(posted, &cursor)
    cdef int rc = 0
    while handle is not NULL and rc == 0:
        rc = visit(handle, arg)
        if rc == 0:
            rc = visit_references(<Handle>handle, visit, arg)
        handle = mgl_posted_next(posted, &cursor)
    return rc


cdef int visit_timers(mgl_heap *timers, visitproc visit, void *arg) noexcept:
    cdef Py_ssize_t i
    cdef int rc = 0
    for i in range(timers.len):
        if rc == 0:
            rc = visit_references(<Handle>timers.items[i].timer, visit, arg)
    return rc
