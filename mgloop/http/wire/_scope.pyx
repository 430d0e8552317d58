# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI scopes of the requests of a connection, made from their heads and from the peer.

The module is native because it runs for each request, on the thread of the loop. A connection
creates its ScopeFactory for its first request and keeps it alive. The factory holds the properties
of the peer, which are the same for all requests: the addresses, the TLS details and the scheme.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._request cimport Request
from mgloop.http.wire._requestheaders cimport HeaderList, dict_of_str
from mgloop.http.wire._site cimport Site
from mgloop.http.wire._target cimport Target, decode_path, split_target

import sys

from . import _peer


cdef str TYPE = sys.intern("type")
cdef str ASGI = sys.intern("asgi")
cdef str HTTP_VERSION = sys.intern("http_version")
cdef str SERVER = sys.intern("server")
cdef str CLIENT = sys.intern("client")
cdef str SCHEME = sys.intern("scheme")
cdef str METHOD = sys.intern("method")
cdef str ROOT_PATH = sys.intern("root_path")
cdef str PATH = sys.intern("path")
cdef str RAW_PATH = sys.intern("raw_path")
cdef str QUERY_STRING = sys.intern("query_string")
cdef str HEADERS = sys.intern("headers")
cdef str STATE = sys.intern("state")
cdef str EXTENSIONS = sys.intern("extensions")


cdef ScopeFactory scope_factory(
        Site site, object transport, bint over_tls, object ends, bint unnamed):
    cdef ScopeFactory factory = ScopeFactory.__new__(ScopeFactory)
    factory.site = site
    factory.sink = factory.headers = HeaderList.__new__(HeaderList)
    factory.client, server, factory.tls = _peer.describe(transport)
    if ends is not None:
        factory.client, server = ends
    if site.proxy is not None:
        factory.trusted = site.proxy.everybody if unnamed \
            else site.proxy.trusts_peer(factory.client)
    factory.template = template_of(site, "https" if over_tls else "http", server)
    return factory


cdef dict template_of(Site site, str scheme, object server):
    """Return a scope with all keys. The connections of a site share it as long as it is equal."""
    cdef dict template = site.common_scope
    if template is None or template[SERVER] != server or template[SCHEME] != scheme:
        template = {
            TYPE: "http", ASGI: None, HTTP_VERSION: "1.1", SERVER: server, CLIENT: None,
            SCHEME: scheme, METHOD: None, ROOT_PATH: site.root, PATH: None, RAW_PATH: None,
            QUERY_STRING: None, HEADERS: None,
        }
        if site.state is not None:
            template[STATE] = None
        template[EXTENSIONS] = None
        template = dict_of_str(template)
        site.common_scope = template
    return template


@cython.final
cdef class ScopeFactory(RequestFactory):
    """Make the ASGI scopes of the requests of one connection."""

    cdef RequestBody make_request(self, HeadParser head):
        cdef Request request = Request.__new__(Request)
        request.scope = self.make_scope(head)
        return None if request.scope is None else request

    cdef dict make_scope(self, HeadParser head):
        cdef Site site = self.site
        cdef dict scope, extensions
        scope = self.template.copy()    # a third of the cost of setting each key separately
        scope[CLIENT] = self.client
        scope[ASGI] = site.versions.copy()
        if head.http_10:
            scope[HTTP_VERSION] = "1.0"
        scope[METHOD] = head.method
        if not self.put_target(head, scope):
            return None
        if site.state is not None:
            scope[STATE] = site.state.copy()
        extensions = site.own_extensions()
        if self.tls is not None:
            extensions = extensions.copy()      # so that the site can use its dicts again
            extensions["tls"] = self.tls | {"client_cert_chain": [*self.tls["client_cert_chain"]]}
        scope[EXTENSIONS] = extensions
        if head.forwarded and self.trusted:
            site.proxy(scope)
        return scope

    cdef bint put_target(self, HeadParser head, dict scope) except -1:
        """Store the path and the query of the request's target, and the headers, in `scope`.

        The host of a target in absolute form replaces the Host header. Return False after
        head.reject().
        """
        cdef Target target
        cdef Site site = self.site
        cdef bytes raw = head.target
        cdef list headers = self.headers.pairs
        cdef str path
        cdef str problem = split_target(raw, head.method, &target)
        self.headers.pairs = None
        if problem is not None:
            head.reject(400, problem)
            return False
        if target.host is not NULL:
            headers = [(b"host", target.host[:target.host_len]),
                       *[pair for pair in headers if pair[0] != b"host"]]
        scope[HEADERS] = headers
        path = decode_path(target.path, target.path_len, False)
        scope[QUERY_STRING] = (
            b"" if target.query_len == 0
            else PyBytes_FromStringAndSize(target.query, target.query_len))
        if target.path_len != PyBytes_GET_SIZE(raw):
            raw = PyBytes_FromStringAndSize(target.path, target.path_len)
        if site.root:
            path = site.root + path
            raw = site.root_path + raw
        scope[PATH] = path
        scope[RAW_PATH] = raw
        return True
