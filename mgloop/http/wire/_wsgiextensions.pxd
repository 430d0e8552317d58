# SPDX-License-Identifier: GPL-2.0-only
"""Declare the optional parts of WSGI; _wsgiextensions.pyx explains them."""

from mgloop.http.wire._wsgiinput cimport StreamInput
from mgloop.http.wire._wsgiresponse cimport WsgiResponse


cdef class WsgiExtensions(WsgiResponse):
    cdef StreamInput stream             # the body that the application reads as it arrives, or None
    cdef tuple file                     # (file, offset, count) that the loop has to send, or None
    cdef object sender                  # the task that sends the file, or None

    # In the application's thread.
    cdef bint choose_file(self, object wrapper) except -1
    cdef bytes read_small_file(self)
    cdef int notify(self, int kind, bytes data) except -1

    # In the loop's thread.
    cdef StreamInput start_stream(self)
    cdef int take_notice(self, int kind, bytes data) except -1
    cdef int deliver_hint(self, bytes data) except -1
    cdef int body_wanted(self) except -1
    cdef bint start_file(self) except -1
    cdef int cancel_file(self) except -1
    # Called when the file has been sent, or could not be sent, with the outcome.
    cdef int file_sent(self, int outcome) except -1
