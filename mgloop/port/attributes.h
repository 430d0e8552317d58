/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The dict that holds the attributes which programs set on an object.
 *
 * Cython makes this dict together with the object (`cdef dict __dict__`), although hardly any object needs
 * it. While the field is NULL, CPython calls the methods of the object by its specialised instructions and
 * looks into no dict, and the object is 64 bytes smaller. CPython makes the dict when a program sets an
 * attribute.
 *
 * Native because only C can see the field. For one thread: the object is new. */
#ifndef MGLOOP_ATTRIBUTES_H
#define MGLOOP_ATTRIBUTES_H

#include <Python.h>

/* For __cinit__(), while the dict is empty. The object's type must have a field for it. */
static inline void mgl_drop_empty_dict(PyObject *o) {
    PyObject **dict = (PyObject **) ((char *) o + Py_TYPE(o)->tp_dictoffset);
    Py_CLEAR(*dict);
}

/* Return whether a program has set attributes on the object, which may replace its methods. */
static inline int mgl_has_attributes(PyObject *o) {
    return *(PyObject **) ((char *) o + Py_TYPE(o)->tp_dictoffset) != NULL;
}

/* Return whether the caller has the only reference to the object. Without the GIL it returns 0,
 * because another thread could be about to use the object. */
static inline int mgl_only_reference(PyObject *o) {
#ifdef Py_GIL_DISABLED
    (void) o;
    return 0;
#else
    return Py_REFCNT(o) == 1;
#endif
}

#endif
