# SPDX-License-Identifier: GPL-2.0-only
"""Declare the functions with which owners of handles implement tp_traverse.

Each visits references, and returns the first result of `visit` that is not 0.
"""

from cpython.object cimport PyObject

from mgloop._handle cimport mgl_heap
from mgloop._port cimport mgl_posted, mgl_ring, visitproc


# The references of a handle, if the caller is its only owner; `o` may be another object or NULL.
cdef int visit_handle(PyObject *o, visitproc visit, void *arg) noexcept
# The entries of a ready queue, and the references of the handles in it.
cdef int visit_ready(const mgl_ring *ready, visitproc visit, void *arg) noexcept
# The submitted handles, and their references.
cdef int visit_posted(mgl_posted *posted, visitproc visit, void *arg) noexcept
# The references of the timers. The collector does not track the timers themselves.
cdef int visit_timers(mgl_heap *timers, visitproc visit, void *arg) noexcept
