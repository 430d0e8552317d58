# SPDX-License-Identifier: GPL-2.0-only
"""Declare EnvironFactory, which makes the WSGI environs of a connection.

_environ.pyx explains how it works.
"""

from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._requestheaders cimport HeaderSink
from mgloop.http.wire._site cimport Site
from mgloop.http.wire._wsgiinput cimport WsgiInput


cdef class EnvironFactory(HeaderSink):
    cdef Site site
    cdef dict template                  # an environ with all keys, copied for each request
    cdef dict environ                   # of the head that is being read, or None between heads
    cdef dict repeated                  # the values of repeated headers by their keys, or None
    cdef tuple client                   # (host, port), or None for a UNIX socket
    cdef str scheme
    cdef bint server_from_host          # the Host header provides SERVER_NAME: a UNIX socket
    cdef bint trusted                   # the peer is a proxy whose forwarding headers are believed

    # Return the environ of the request whose head the parser has read, or None after head.reject().
    # The caller has to replace "wsgi.early_hints", and "wsgi.input" if the request has a body.
    cdef dict make_environ(self, HeadParser head)
    cdef int apply_forwarded(self, dict environ, dict repeated) except -1


# Return the factory of a connection's environs.
# `over_tls`: the transport encrypts.
# `ends`: (client, server) from a PROXY header, or None.
# `unnamed`: a PROXY header does not name the client.
cdef EnvironFactory environ_factory(
    Site site, object transport, bint over_tls, object ends, bint unnamed)

# Store the body of a request in its environ.
# `length`: the size of the body in bytes, or -1 if it is not known yet.
cdef int put_body(dict environ, WsgiInput body, Py_ssize_t length) except -1

# The keys that the request itself sets or reads.
cdef str WSGI_EARLY_HINTS, REQUEST_METHOD
