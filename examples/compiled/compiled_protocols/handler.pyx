# SPDX-License-Identifier: GPL-2.0-only
"""Implement an HTTP handler, which sends the body of a request back."""

from libc.string cimport memcmp

from mgloop.http cimport HTTPHandler, HTTPRequest, HTTPResponse


cdef class EchoHandler(HTTPHandler):
    """Answer requests for /echo with their body, and leave all others to the application."""

    cdef readonly Py_ssize_t answered       # requests so far

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        cdef Py_ssize_t size = 0
        cdef const char *text = request.path(&size)
        if size != 5 or memcmp(text, b"/echo", 5) != 0:
            return False
        text = request.header("content-type", &size)
        if text is not NULL:
            response.add_header("content-type", text, size)
        text = request.body(&size)
        response.write(text, size)
        self.answered += 1
        return True


handler = EchoHandler()
