# SPDX-License-Identifier: GPL-2.0-only
"""Declare the coroutine of a request's task; _apptask.pyx explains it."""

from mgloop.http.wire._body cimport RequestBody


# The states of the application, by the names of inspect.getcoroutinestate().
cdef enum:
    APP_CREATED     # the application has not been called
    APP_RUNNING
    APP_SUSPENDED   # it waits, or its end is being handled
    APP_CLOSED      # it has returned or raised


cdef class AppTask(RequestBody):
    cdef object coroutine               # the application's coroutine, or None before the first step
    cdef readonly object task
    cdef int app_state

    # For the subclass.
    # Return the application's coroutine. Called in the first step.
    cdef object call_app(self)
    # Called when the application has begun to wait.
    cdef int app_suspended(self) except -1
    # Called at the end of the application. app_raised() re-raises exceptions that end the task.
    cdef int app_returned(self, object value) except -1
    cdef int app_raised(self, object exc) except -1
    cdef int app_closed(self) except -1
