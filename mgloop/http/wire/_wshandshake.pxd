# SPDX-License-Identifier: GPL-2.0-only
"""Declare the handshake of a WebSocket; _wshandshake.pyx explains it."""

from mgloop.http.wire._response cimport Response
from mgloop.http.wire._wsconnection cimport WebSocketConnection


cdef class WebSocketHandshake(WebSocketConnection):
    cdef bytes key                  # Sec-WebSocket-Key
    cdef list extensions            # those that the client offers
    cdef object early               # data received before accept (see gather()), or None
    cdef Response denial            # the HTTP response that rejects the handshake, or None
    cdef bint app_closed            # the application has sent its last message

    cdef int accept(self, object message) except -1
    cdef int create_codec(self, object agreement) except -1
    cdef list header_lines(self, object headers)
    cdef int reject(self, int status) except -1
    cdef int start_denial(self, object message) except -1
    cdef int continue_denial(self, object message) except -1
    cdef int forget_denial(self) except -1
    cdef int end_handshake(self) except -1
