# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI scopes of the requests of a connection, made from their heads and from the peer.

The module is native because it runs for each request, on the thread of the loop.  A connection
creates its ScopeFactory for its first request and keeps it alive.  The factory holds the properties
of the peer, which are the same for all requests: the addresses, the TLS details and the scheme.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.string cimport memchr

from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._site cimport Site, mgl_is_host, mgl_unquote

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
    factory.client, server, factory.tls = _peer.describe(transport)
    if ends is not None:
        factory.client, server = ends
    if site.proxy is not None:
        factory.trusted = site.proxy.everybody if unnamed \
            else site.proxy.trusts_peer(factory.client)
    factory.template = template_of(site, "https" if over_tls else "http", server)
    return factory


cdef dict template_of(Site site, str scheme, object server):
    """Return a scope with all keys.  The connections of a site share it as long as it is equal."""
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
        site.common_scope = template
    return template


@cython.final
cdef class ScopeFactory:
    """Make the ASGI scopes of the requests of one connection."""

    cdef dict make_scope(self, HeadParser head):
        cdef Site site = self.site
        cdef dict scope, extensions
        scope = self.template.copy()    # a third of the cost of setting each key separately
        scope[CLIENT] = self.client
        scope[ASGI] = site.versions.copy()
        if head.http_10:
            scope[HTTP_VERSION] = "1.0"
        scope[METHOD] = head.method
        if not split_target(head, site, scope):
            return None
        scope[HEADERS] = head.headers
        if site.state is not None:
            scope[STATE] = site.state.copy()
        scope[EXTENSIONS] = extensions = site.own_extensions()
        if self.tls is not None:
            extensions["tls"] = self.tls | {"client_cert_chain": [*self.tls["client_cert_chain"]]}
        if head.forwarded and self.trusted:
            site.proxy(scope)
        return scope


cdef bint split_target(HeadParser head, Site site, dict scope) except -1:
    """Store the path and the query of the request's target in `scope`.

    Return False after head.reject().
    """
    cdef bytes target = head.target
    cdef const char *start = PyBytes_AS_STRING(target)
    cdef const char *end = start + PyBytes_GET_SIZE(target)
    cdef const char *at = start
    cdef const char *host = NULL
    cdef const char *query
    cdef bytes raw
    cdef str path
    cdef Py_ssize_t n
    while at < end:
        if at[0] == b"#":
            end = at    # a fragment has a meaning for the client only, so it is dropped
            break
        if <unsigned char>at[0] <= 32 or <unsigned char>at[0] >= 127:
            head.reject(400, "invalid character in request target")
            return False
        at += 1
    if start == end or start[0] != b"/":
        start = path_of_absolute(head, start, end, &host)
        if start is NULL:
            head.reject(400, "invalid request target")
            return False
        if host is not NULL:
            replace_host(head, host[:start - host])
    query = <const char *>memchr(start, b"?", end - start)
    n = (query if query is not NULL else end) - start
    raw = PyBytes_FromStringAndSize(start, n) if n else b"/"
    path = decoded_path(raw)
    if site.root:
        path = site.root + path
        raw = site.root_path + raw
    scope[PATH] = path
    scope[RAW_PATH] = raw
    scope[QUERY_STRING] = (
        b"" if query is NULL else PyBytes_FromStringAndSize(query + 1, end - query - 1))
    return True


cdef str decoded_path(bytes raw):
    """Return the path with its percent-encoding decoded. Invalid UTF-8 becomes U+FFFD."""
    cdef const char *start = PyBytes_AS_STRING(raw)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(raw)
    cdef char *unquoted
    if memchr(start, b"%", n) is NULL:
        return PyUnicode_DecodeASCII(start, n, NULL)
    unquoted = <char *>PyMem_Malloc(n)
    if unquoted is NULL:
        raise MemoryError
    try:
        return PyUnicode_DecodeUTF8(unquoted, mgl_unquote(unquoted, start, n), "replace")
    finally:
        PyMem_Free(unquoted)


cdef int replace_host(HeadParser head, bytes host) except -1:
    """Replace the value of Host with the host of a target in absolute form.

    RFC 9112, 3.2.2, requires it. Otherwise a client could make a proxy that uses one of them and an
    application that uses the other disagree about the host.
    """
    others = [each for each in head.headers if each[0] != b"host"]
    head.headers = [(b"host", host), *others]
    return 0


cdef const char *path_of_absolute(
        HeadParser head, const char *start, const char *end, const char **host) noexcept:
    """Find the path of a target that does not start with "/".

    The target is a URL (http://host/path), and `host` is then set to the start of its host, or it
    is the "*" of an OPTIONS request. Return the start of the path or of the "*", or NULL if the
    target is neither.
    """
    cdef const char *at
    if end - start == 1 and start[0] == b"*":
        return start if head.method == "OPTIONS" else NULL
    at = <const char *>memchr(start, b":", end - start)
    if at is NULL or end - at < 4 or at[1] != b"/" or at[2] != b"/":
        return NULL
    at += 3
    host[0] = at
    while at < end and at[0] != b"/" and at[0] != b"?":
        at += 1
    return at if mgl_is_host(host[0], at - host[0]) else NULL
