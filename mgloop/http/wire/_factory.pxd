# SPDX-License-Identifier: GPL-2.0-only
"""Declare the interface by which a connection makes its requests."""

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._requestheaders cimport HeaderSink


# Makes the requests of one connection, for one interface of applications.
cdef class RequestFactory:
    cdef HeaderSink sink                # receives the headers of each head before make_request()

    # Return the request whose head the parser has read, or None after head.reject().
    cdef RequestBody make_request(self, HeadParser head)
