# SPDX-License-Identifier: GPL-2.0-only
"""The interface by which a connection makes its requests, for ASGI (_scope.pyx) and for WSGI.

The module is native because a connection calls it for each request, on the thread of the loop.
"""

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._parser cimport HeadParser


cdef class RequestFactory:
    """Make the requests of one connection."""

    cdef RequestBody make_request(self, HeadParser head):
        raise NotImplementedError
