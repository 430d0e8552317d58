# SPDX-License-Identifier: GPL-2.0-only
"""Declare the interface by which a connection makes its requests."""

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._parser cimport HeadParser


# Makes the requests of one connection, for one interface of applications.
cdef class RequestFactory:
    # Return the request whose head the parser has read, or None after head.reject().
    cdef RequestBody make_request(self, HeadParser head)
