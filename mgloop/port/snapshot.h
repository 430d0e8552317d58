/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Copies of the current context, one for many callbacks.
 *
 * A callback runs in a copy of the context that scheduled it. A copy is an object of its own that
 * the garbage collector counts and visits: a million queued callbacks spent half of their time
 * there. But copies made while no variable is set differ in nothing: a context is a reference
 * to an immutable mapping, and setting a variable replaces the reference. So callbacks share one
 * copy, the snapshot, which nobody ever enters; who runs while it is shared enters a copy of its
 * own, made from the snapshot and gone when the callback is (see Handle.run()).
 *
 * Whether the current context is still as it was when the snapshot was made is asked of that
 * reference. Where a Context keeps it is not part of Python's interface: it is found by experiment
 * when mgloop is imported (_handle.find_mapping()), and where it cannot be found each callback
 * gets its copy at once, as ever.
 *
 * Native because it runs per callback. For the loop's thread, or under the GIL. */
#ifndef MGLOOP_SNAPSHOT_H
#define MGLOOP_SNAPSHOT_H

#include <Python.h>

/* The i-th word of an object. */
static inline void *mgl_word(PyObject *o, Py_ssize_t i) { return ((void **) o)[i]; }

/* A copy of the current context, the one in *snapshot if that would be the same; a new reference.
 * mapping = which word of a Context refers to its mapping, 0 = not known. */
static inline PyObject *mgl_snapshot(PyObject **snapshot, Py_ssize_t mapping) {
    PyObject *current = PyThreadState_Get()->context, *old = *snapshot, *fresh;
    if (old != NULL && current != NULL && mgl_word(current, mapping) == mgl_word(old, mapping)) {
        Py_INCREF(old);
        return old;
    }
    fresh = PyContext_CopyCurrent();
    if (fresh == NULL || mapping == 0) return fresh;
    old = *snapshot; /* making the copy may have let the collector, and so anything, run */
    Py_INCREF(fresh);
    *snapshot = fresh;
    Py_XDECREF(old);
    return fresh;
}

#endif
