# SPDX-License-Identifier: GPL-2.0-only
"""Declare ScopeFactory, which makes the ASGI scopes of a connection.

_scope.pyx explains how it works.
"""

from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._requestheaders cimport HeaderList
from mgloop.http.wire._site cimport Site


cdef class ScopeFactory(RequestFactory):
    cdef Site site
    cdef HeaderList headers             # the same object as `sink`
    cdef object client                  # the scope's value for "client"
    cdef dict tls                       # ASGI's extension, or None
    cdef bint trusted                   # the peer is a proxy whose forwarding headers are believed
    cdef dict template                  # a scope with all keys, copied for each request

    # Return the scope of the request whose head the parser has read, or None after head.reject().
    cdef dict make_scope(self, HeadParser head)
    cdef bint put_target(self, HeadParser head, dict scope) except -1


# Return the factory of a connection's scopes.
# `over_tls`: the transport encrypts.
# `ends`: (client, server) from a PROXY header, or None.
# `unnamed`: a PROXY header does not name the client.
cdef ScopeFactory scope_factory(
    Site site, object transport, bint over_tls, object ends, bint unnamed)
