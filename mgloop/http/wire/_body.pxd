# SPDX-License-Identifier: GPL-2.0-only
"""Declare the body of a request, and what a connection calls of its requests.

_body.pyx explains how the application receives the body.
"""

from mgloop._awaitable cimport Waiters
from mgloop.http.wire._response cimport Response


cdef enum:
    BODY_RECEIVING      # more of the body will arrive
    BODY_RECEIVED       # all of it has arrived
    BODY_DELIVERED      # the application has received the end of it
    BODY_DISCONNECTED   # the client is gone, as far as the application is concerned


# Return the body of a 500 response, with the traceback of the exception in debug mode only.
cdef bytes explain(object exc, bint debug)


cdef class RequestBody(Response):
    cdef int body_state
    cdef bint truncated                 # the client disconnected before the end of the body
    cdef object body                    # the part not returned by receive() (see gather()), or None
    cdef Py_ssize_t body_len            # bytes in `body`
    cdef Py_ssize_t body_total          # bytes of body received
    cdef Waiters receivers              # receive() calls that wait, or None
    cdef readonly bint cut_off          # cut_stream() has cut off the response

    cdef int add_body(self, const char *data, Py_ssize_t n) except -1
    cdef int body_ended(self) except -1
    cdef int disconnect(self) except -1
    cdef dict next_message(self)
    cdef int send_continue(self) except -1
    cdef bint write_interim(self, bytes head) except -1
    cdef int cut_stream(self) except -1

    # Called after data of the body, or its end, has arrived, once for each read.
    cdef int body_arrived(self) except -1
    # Called after the server has sent an error response of this status, with `n` bytes of body.
    cdef int refused(self, int status, Py_ssize_t n) except -1

    # For subclasses.
    # Return whether the application may start: not if it starts after the whole body has arrived.
    cdef bint may_begin(self) except -1
    # Start the application.
    cdef int begin(self) except -1
    # Called when the transport has resumed writing.
    cdef int output_resumed(self) except -1
