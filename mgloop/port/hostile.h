/* SPDX-License-Identifier: GPL-2.0-only
 *
 * A hook at every point of the generated C where Python code can run. Only for sanitizer builds.
 *
 * Python code can run at unexpected points: a decref may free an object that has a finalizer, an
 * attribute may be a property, and until CPython 3.11 the allocation of a container may start the
 * garbage collector. Such code may write to any connection of the loop. tests/http/isolation does so at
 * each of these points, and checks that no client receives the bytes of another.
 *
 * meson.build makes the compiler include this file first. It replaces the macros and functions of the
 * C API that may run Python code. The replacements call mgl_hostile_point() first, if the process has
 * loaded a library that defines it. */
#ifndef MGLOOP_HOSTILE_H
#define MGLOOP_HOSTILE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>

static inline void mgl_run_hostile(void) {
    static void (*point)(void);
    static int looked_up;
    if (!looked_up) {
        *(void **) &point = dlsym(RTLD_DEFAULT, "mgl_hostile_point");
        looked_up = 1;
    }
    if (point != NULL) point();
}

/* A decref can run Python code only if it frees the object, and not for these types. */
static inline void mgl_hostile_decref(PyObject *op) {
    if (Py_REFCNT(op) == 1 && !PyBytes_CheckExact(op) && !PyUnicode_CheckExact(op) && !PyLong_CheckExact(op))
        mgl_run_hostile();
    Py_DECREF(op);
}

static inline void mgl_hostile_xdecref(PyObject *op) {
    if (op != NULL) mgl_hostile_decref(op);
}

#undef Py_DECREF
#undef Py_XDECREF
#define Py_DECREF(op) mgl_hostile_decref((PyObject *) (op))
#define Py_XDECREF(op) mgl_hostile_xdecref((PyObject *) (op))

/* Inside its own replacement, the name of a macro refers to the function. */
#define PyObject_GetAttr(...) (mgl_run_hostile(), PyObject_GetAttr(__VA_ARGS__))
#define PyObject_SetAttr(...) (mgl_run_hostile(), PyObject_SetAttr(__VA_ARGS__))
#define PyObject_Call(...) (mgl_run_hostile(), PyObject_Call(__VA_ARGS__))
#define PyObject_VectorcallDict(...) (mgl_run_hostile(), PyObject_VectorcallDict(__VA_ARGS__))
#define PyObject_RichCompare(...) (mgl_run_hostile(), PyObject_RichCompare(__VA_ARGS__))
#define PyObject_IsTrue(...) (mgl_run_hostile(), PyObject_IsTrue(__VA_ARGS__))
#define PyObject_GetIter(...) (mgl_run_hostile(), PyObject_GetIter(__VA_ARGS__))
#define PyObject_GetItem(...) (mgl_run_hostile(), PyObject_GetItem(__VA_ARGS__))
#define PyObject_SetItem(...) (mgl_run_hostile(), PyObject_SetItem(__VA_ARGS__))
#define PyTuple_New(...) (mgl_run_hostile(), PyTuple_New(__VA_ARGS__))
#define PyTuple_Pack(...) (mgl_run_hostile(), PyTuple_Pack(__VA_ARGS__))
#define PyList_New(...) (mgl_run_hostile(), PyList_New(__VA_ARGS__))
#define PyDict_New(...) (mgl_run_hostile(), PyDict_New(__VA_ARGS__))
#define PyDict_Copy(...) (mgl_run_hostile(), PyDict_Copy(__VA_ARGS__))
#define PySequence_Tuple(...) (mgl_run_hostile(), PySequence_Tuple(__VA_ARGS__))
#define PySequence_List(...) (mgl_run_hostile(), PySequence_List(__VA_ARGS__))

#endif
