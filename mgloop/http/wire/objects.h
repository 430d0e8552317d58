/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Access to CPython's objects that saves look-ups and allocations. */
#ifndef MGLOOP_OBJECTS_H
#define MGLOOP_OBJECTS_H

#include <Python.h>

/* Without the GIL another thread can change a list at any time, and threads that share an object move the
 * cache line of its reference count between the cores. */
#ifdef Py_GIL_DISABLED
enum { MGL_FREE_THREADED = 1 };
#else
enum { MGL_FREE_THREADED = 0 };
#endif

/* Returns the definition of a method of an extension type, from the descriptor in the type; NULL with
 * TypeError. PyCFunction_NewEx() makes bound methods from it for half of the instructions of an attribute
 * access. */
static inline PyMethodDef *mgl_method_of(PyObject *descriptor) {
    PyMethodDef *method;
    if (!Py_IS_TYPE(descriptor, &PyMethodDescr_Type)) {
        PyErr_Format(PyExc_TypeError, "%R is not a method of an extension type", descriptor);
        return NULL;
    }
    method = ((PyMethodDescrObject *) descriptor)->d_method;
    if (method->ml_flags & METH_METHOD) {
        PyErr_Format(PyExc_TypeError, "%R needs its defining class", descriptor);
        return NULL;
    }
    return method;
}

#endif
