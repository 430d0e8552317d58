# SPDX-License-Identifier: GPL-2.0-only
"""Declare the response of a WSGI application; _wsgiresponse.pyx explains how it works."""

from cpython.object cimport PyObject

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._headers cimport HeaderInfo
from mgloop.http.wire._workpool cimport WorkPool, mgl_link


# How an application has ended.
cdef enum:
    WSGI_DONE
    WSGI_SHORT      # its response is shorter than the Content-Length
    WSGI_FAILED     # it has raised, or has not called start_response()
    WSGI_FILE       # the loop has to send a file as the body (_wsgiextensions.pyx)


# The kinds of answers.
cdef enum:
    WSGI_PART       # a part of the body; the first one also starts the response
    WSGI_END        # the application has ended; the last answer of each request
    WSGI_HINT       # a 103 response
    WSGI_WANTS_BODY     # the application waits for more of the body


# An answer of the application to the loop.
ctypedef struct mgl_answer:
    mgl_link link           # the first field, so that a pointer to it is one to the answer
    PyObject *data          # bytes, or NULL
    int kind
    bint more               # of a part: others follow
    int outcome             # of the end: WSGI_DONE, ...


cdef class WsgiResponse(RequestBody):
    cdef WorkPool pool                  # None if the application runs in the loop's thread

    # For the application's thread.
    cdef bytes head                     # from start_response(), or None
    cdef HeaderInfo head_info
    cdef int head_status
    cdef bint committed                 # the head has been passed to the loop
    cdef bint ended                     # the last part of the body has been passed to the loop
    cdef bint overlong                  # the application has produced more than its Content-Length
    cdef long long remaining            # bytes of the Content-Length to come, or -1
    cdef mgl_answer last                # the answer of kind WSGI_END

    # For the loop's thread.
    cdef Py_ssize_t held                # bytes written while the transport has paused writing

    # For both threads, under the mutex of the pool.
    cdef Py_ssize_t unsent              # bytes that the loop has not passed to the transport
    cdef bint gone                      # nothing can be sent any more

    # In the application's thread.
    cdef int commit(self) except -1
    cdef int produce(self, object data) except -1
    cdef int pass_on(self, bytes data, bint more) except -1
    cdef mgl_answer *new_answer(self, int kind, bytes data, bint more) except NULL
    cdef int wait_sent(self) noexcept
    cdef bint is_gone(self) noexcept

    # In the loop's thread.
    cdef int deliver(self, bytes data, bint more) except -1
    cdef int deliver_end(self, bytes data, int outcome, bytes text) except -1
    cdef int take_part(self, bytes data, bint more) except -1
    cdef int note_sent(self, Py_ssize_t n) noexcept
    cdef int abandon(self) noexcept


# Release an answer.
cdef int free_answer(mgl_answer *answer) noexcept
