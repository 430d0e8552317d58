/* SPDX-License-Identifier: GPL-2.0-only
 *
 * A name of a Python module that is read for each future or task, and that programs may rebind.
 *
 * asyncio looks up `futures.Future` and `tasks.Task` at each use, so that a program can put its own class
 * there. Such a lookup takes 60 to 120 instructions. Since 3.12 CPython reports each change of a dict to
 * its watchers, so the value is kept until the module changes. Each use looks the name up in 3.11, without
 * the GIL (another thread could change the module), and if all of the interpreter's eight watchers are taken.
 *
 * Each extension module that includes this file has one such name. For the thread that holds the GIL. */
#ifndef MGLOOP_WATCHEDNAME_H
#define MGLOOP_WATCHEDNAME_H

#include <Python.h>

static struct {
    PyObject *dict;  /* the Python module's, owned */
    PyObject *name;  /* owned */
    PyObject *value; /* borrowed from the dict; NULL: look it up */
    int watched;     /* CPython reports changes of the dict */
} mgl_watched_name;

#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_GIL_DISABLED)
/* CPython calls this before each change. */
static int mgl_module_changes(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    (void) event, (void) key, (void) value;
    if (dict == mgl_watched_name.dict) mgl_watched_name.value = NULL;
    return 0;
}

static int mgl_watch_dict(PyObject *dict) {
    int watcher = PyDict_AddWatcher(mgl_module_changes);
    if (watcher >= 0 && PyDict_Watch(watcher, dict) == 0) return 1;
    PyErr_Clear();
    return 0;
}
#else
static int mgl_watch_dict(PyObject *dict) {
    (void) dict;
    return 0;
}
#endif

/* Once, at import. */
static void mgl_watch_name(PyObject *dict, PyObject *name) {
    mgl_watched_name.dict = Py_NewRef(dict);
    mgl_watched_name.name = Py_NewRef(name);
    mgl_watched_name.watched = mgl_watch_dict(dict);
}

/* The present value of the name, borrowed; AttributeError if the Python module does not have it. */
static PyObject *mgl_watched_value(void) {
    if (mgl_watched_name.value != NULL) return mgl_watched_name.value;
    PyObject *found = PyDict_GetItemWithError(mgl_watched_name.dict, mgl_watched_name.name);
    if (found == NULL && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, mgl_watched_name.name);
    if (mgl_watched_name.watched) mgl_watched_name.value = found;
    return found;
}

#endif
