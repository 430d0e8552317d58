/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The call stack of another thread at one instant.
 *
 * With the GIL, the other thread does not run while its stack is read. Without the GIL it runs, and may
 * return from a call whose frame is being read. CPython's frames do not support that, and the process
 * could crash. The stack is therefore read while the interpreter has stopped all threads.
 * PyUnstable_GC_VisitObjects() is the available API that does so: the visitor reads everything at the
 * first object and then stops the iteration.
 *
 * During that time no Python code may run and no reference may be dropped, because destructors can be
 * Python code. Frames are therefore kept until mgl_calls_clear(). The functions that are called here do
 * not raise audit events, as reading frame.f_code would. */
#ifndef MGLOOP_CALLS_H
#define MGLOOP_CALLS_H

#include <Python.h>
#include <stdbool.h>

typedef struct mgl_call {
    PyFrameObject *frame;
    PyObject *code;
    PyObject *globals;
    int line;
} mgl_call;

/* Calls from the innermost one to that of `outer`; truncated if memory allocation fails. */
typedef struct mgl_calls {
    mgl_call *call;
    Py_ssize_t len;
    Py_ssize_t capacity;
    PyObject *outer;            /* a code object, borrowed */
    PyObject *innermost;        /* a frame, borrowed */
    void (*also)(void *arg);    /* also called while the threads are stopped, under the same rules; may be NULL */
    void *arg;
} mgl_calls;

static inline bool mgl_calls_grow(mgl_calls *c) {
    Py_ssize_t capacity = c->capacity ? 2 * c->capacity : 64;
    mgl_call *call = (mgl_call *) PyMem_RawRealloc(c->call, (size_t) capacity * sizeof(*call));
    if (call == NULL) return false;
    c->call = call;
    c->capacity = capacity;
    return true;
}

static inline void mgl_calls_read(mgl_calls *c) {
    PyFrameObject *frame = NULL;
    if (mgl_calls_grow(c)) {
        frame = (PyFrameObject *) c->innermost;
        Py_INCREF(frame);
    }
    while (frame != NULL) {
        mgl_call *call = &c->call[c->len++];
        call->frame = frame;
        call->code = (PyObject *) PyFrame_GetCode(frame);
        call->globals = PyFrame_GetGlobals(frame);
        call->line = PyFrame_GetLineNumber(frame);
        if (call->code == c->outer || (c->len == c->capacity && !mgl_calls_grow(c))) break;
        frame = PyFrame_GetBack(frame);
    }
    if (c->also != NULL) c->also(c->arg);
}

#ifdef Py_GIL_DISABLED
static int mgl_calls_visit(PyObject *Py_UNUSED(object), void *arg) {
    mgl_calls_read((mgl_calls *) arg);
    return 0;
}

static inline void mgl_calls_take(mgl_calls *c) {
    PyUnstable_GC_VisitObjects(mgl_calls_visit, c);
}
#else
static inline void mgl_calls_take(mgl_calls *c) {
    mgl_calls_read(c);
}
#endif

static inline void mgl_calls_clear(mgl_calls *c) {
    while (c->len > 0) {
        mgl_call *call = &c->call[--c->len];
        Py_XDECREF(call->globals);
        Py_DECREF(call->code);
        Py_DECREF(call->frame);
    }
    PyMem_RawFree(c->call);
    c->call = NULL;
    c->capacity = 0;
}

#endif
