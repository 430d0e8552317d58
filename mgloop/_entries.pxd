# SPDX-License-Identifier: GPL-2.0-only
"""Distinguish the entries of a ready queue: handles of four types, and watchers.

The functions are inline because the loop calls one for each callback.
"""

from cpython.object cimport PyObject

from mgloop._handle cimport Handle, PostedHandle, ThreadSafeHandle, TimerHandle
from mgloop._port cimport Py_TYPE, PyTypeObject


# Return whether an entry is a handle that another thread may have submitted.
cdef inline bint is_posted(PyObject *o) noexcept:
    cdef PyTypeObject *kind = Py_TYPE(o)
    return kind == <PyTypeObject *>PostedHandle or kind == <PyTypeObject *>ThreadSafeHandle


# Return whether an entry is a handle.
cdef inline bint is_handle(PyObject *o) noexcept:
    cdef PyTypeObject *kind = Py_TYPE(o)
    return kind == <PyTypeObject *>Handle or kind == <PyTypeObject *>TimerHandle or is_posted(o)
