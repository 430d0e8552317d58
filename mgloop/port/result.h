/* SPDX-License-Identifier: GPL-2.0-only */
/* Check the result of a C function of compiled code that is not mgloop's. */

#ifndef MGLOOP_RESULT_H
#define MGLOOP_RESULT_H

#include <Python.h>

#include <stdbool.h>

/* Returns -1 with an exception set if the method `name` has failed, or else whether its result is
 * not 0.
 *
 * The result may contradict the exception. Cython's handling of errors crashes on CPython 3.12 and
 * later if a function returns -1 and has not set an exception. */
static inline int mgl_checked_result(int result, const char *name) {
    if (PyErr_Occurred()) return -1;
    if (result != -1) return result != 0;
    PyErr_Format(PyExc_SystemError, "%s() returned -1 without an exception", name);
    return -1;
}

#endif
