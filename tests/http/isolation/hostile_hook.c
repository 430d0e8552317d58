/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What mgloop's sanitizer builds call at every point where Python code can run (port/hostile.h): here a
 * Python function that program.py has set. Loaded into the process before mgloop is. */
#include <Python.h>
#include <stdbool.h>

static PyObject *callback;
static unsigned long thread;
static bool running;
static long points;

/* Calls `function` from now on at each point that this thread passes; None = no more. */
void hostile_set(PyObject *function) {
    PyObject *old = callback;
    thread = PyThread_get_thread_ident();
    callback = function == Py_None ? NULL : Py_NewRef(function);
    Py_XDECREF(old);
}

long hostile_points(void) { return points; }

void mgl_hostile_point(void) {
    PyObject *type, *value, *traceback, *result;
    points++;
    if (callback == NULL || running || PyThread_get_thread_ident() != thread || !PyGILState_Check()) return;
    running = true;
    PyErr_Fetch(&type, &value, &traceback);
    result = PyObject_CallNoArgs(callback);
    if (result == NULL) PyErr_WriteUnraisable(callback);
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
    running = false;
}
