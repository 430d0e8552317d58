/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Copies of the current context, each shared by many callbacks.
 *
 * A callback runs in a copy of the context that scheduled it. Each copy is an object that the garbage
 * collector counts and visits; a million queued callbacks spent half of their time there. A context is
 * a reference to an immutable mapping, and setting a variable replaces the reference. Copies between
 * two changes of a variable are therefore identical, and callbacks share one copy, the snapshot. The
 * snapshot is never entered. A callback that runs while the snapshot is shared enters a temporary copy
 * of it (see Handle.run()).
 *
 * The reference to the mapping shows whether the current context has changed since the snapshot was
 * created. Its position in a Context object is not part of Python's API. It is determined by
 * experiment when mgloop is imported (_handle.find_mapping()). If that fails, each callback gets its
 * own copy.
 *
 * Native because it runs per callback. For the loop's thread, or for any thread under the GIL. */
#ifndef MGLOOP_SNAPSHOT_H
#define MGLOOP_SNAPSHOT_H

#include <Python.h>

/* Returns the i-th word of an object. */
static inline void *mgl_word(PyObject *o, Py_ssize_t i) { return ((void **) o)[i]; }

/* Returns a copy of the current context as a new reference; *snapshot if that is identical. mapping:
 * index of the word of a Context that refers to its mapping; 0 if unknown. */
static inline PyObject *mgl_snapshot(PyObject **snapshot, Py_ssize_t mapping) {
    PyObject *current = PyThreadState_Get()->context, *old = *snapshot, *fresh;
    if (old != NULL && current != NULL && mgl_word(current, mapping) == mgl_word(old, mapping)) {
        Py_INCREF(old);
        return old;
    }
    fresh = PyContext_CopyCurrent();
    if (fresh == NULL || mapping == 0) return fresh;
    old = *snapshot; /* read again: the copy may have triggered the collector, and thus any code */
    Py_INCREF(fresh);
    *snapshot = fresh;
    Py_XDECREF(old);
    return fresh;
}

#endif
