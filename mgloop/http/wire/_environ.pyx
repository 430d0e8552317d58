# SPDX-License-Identifier: GPL-2.0-only
"""The WSGI environs of the requests of a connection, made from their heads and from the peer.

The module is native because it runs for each request, on the thread of the loop. A connection
creates its EnvironFactory for its first request and keeps it alive. The factory has a template
with all keys, which is copied for each request.

PEP 3333 requires that all strings consist of the characters of Latin-1, one for each byte of the
request. The headers are stored under the names of CGI (RFC 3875), while the parser reads the head:
the copy of the template is made at its beginning.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetDefault
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.string cimport memchr

from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._requestheaders cimport KnownHeader, dict_of_str
from mgloop.http.wire._site cimport Site
from mgloop.http.wire._target cimport Target, decode_path, split_target
from mgloop.http.wire._wsgiinput cimport NO_BODY, WsgiInput

import sys

from ..._loop import VERSION
from . import _peer, _tlsvariables
from ._errorlog import ErrorLog
from ._filewrapper import FileWrapper


cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    unsigned char *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyDict_GET_SIZE(dict d)


cdef str REQUEST_METHOD = sys.intern("REQUEST_METHOD")
cdef str SCRIPT_NAME = sys.intern("SCRIPT_NAME")
cdef str PATH_INFO = sys.intern("PATH_INFO")
cdef str QUERY_STRING = sys.intern("QUERY_STRING")
cdef str RAW_URI = sys.intern("RAW_URI")
cdef str REQUEST_URI = sys.intern("REQUEST_URI")
cdef str SERVER_NAME = sys.intern("SERVER_NAME")
cdef str SERVER_PORT = sys.intern("SERVER_PORT")
cdef str SERVER_PROTOCOL = sys.intern("SERVER_PROTOCOL")
cdef str SERVER_SOFTWARE = sys.intern("SERVER_SOFTWARE")
cdef str REMOTE_ADDR = sys.intern("REMOTE_ADDR")
cdef str REMOTE_PORT = sys.intern("REMOTE_PORT")
cdef str CONTENT_LENGTH = sys.intern("CONTENT_LENGTH")
cdef str HTTPS = sys.intern("HTTPS")
cdef str HTTP_HOST = sys.intern("HTTP_HOST")
cdef str HTTP_COOKIE = sys.intern("HTTP_COOKIE")
cdef str WSGI_URL_SCHEME = sys.intern("wsgi.url_scheme")
cdef str WSGI_INPUT = sys.intern("wsgi.input")
cdef str WSGI_EARLY_HINTS = sys.intern("wsgi.early_hints")

cdef str HTTP = "http"
cdef dict PORTS = {"http": "80", "https": "443"}

#: The headers that TrustedProxies reads, and their keys.
cdef tuple FORWARDING = (
    (b"x-forwarded-for", "HTTP_X_FORWARDED_FOR"), (b"x-forwarded-proto", "HTTP_X_FORWARDED_PROTO"),
    (b"forwarded", "HTTP_FORWARDED"),
)


cdef str new_key(bytes name):
    """Return the key of a header, or None if the header is not passed to the application.

    A name with an underscore is dropped. Its key would be that of the name with a hyphen, which a
    proxy in front may remove from requests and set itself.
    """
    cdef Py_ssize_t n = PyBytes_GET_SIZE(name)
    cdef const char *text = PyBytes_AS_STRING(name)
    cdef str key
    cdef unsigned char *at
    cdef unsigned char char
    cdef Py_ssize_t i
    if memchr(text, b"_", n) is not NULL:
        return None
    key = PyUnicode_New(n + 5, 127)     # the parser accepts ASCII names only
    at = PyUnicode_1BYTE_DATA(key)
    for i in range(5):
        at[i] = b"HTTP_"[i]
    at += 5
    for i in range(n):
        char = <unsigned char>text[i] & 127
        if b"a" <= char <= b"z":
            char -= 32
        at[i] = b"_" if char == b"-" else char
    return key


# --- the factory ----------------------------------------------------------------------------------

cdef EnvironFactory environ_factory(
        Site site, object transport, bint over_tls, object ends, bint unnamed):
    cdef EnvironFactory factory = EnvironFactory.__new__(EnvironFactory)
    cdef dict variables = None
    client, server = _peer.addresses(transport) if ends is None else ends
    factory.site = site
    factory.client = client
    factory.scheme = "https" if over_tls else HTTP
    factory.server_from_host = server is None or server[1] is None
    if site.proxy is not None:
        factory.trusted = site.proxy.everybody if unnamed else site.proxy.trusts_peer(client)
    if over_tls:
        variables = _tlsvariables.variables(transport.get_extra_info("ssl_object"))
    factory.template = template_of(site, factory.scheme, server, variables).copy()
    factory.template[REMOTE_ADDR], factory.template[REMOTE_PORT] = _peer.remote(client)
    return factory


cdef dict template_of(Site site, str scheme, object server, dict variables):
    """Return an environ with all keys, the last one that the site has made if it is equal.

    `variables`: the variables of TLS, or None.
    """
    cdef dict template = site.common_environ
    cdef str name = None
    cdef str port = None
    if server is not None and server[1] is not None:
        name = server[0]
        port = str(server[1])
    if variables is None and template is not None \
            and template[SERVER_NAME] == name and template[SERVER_PORT] == port:
        return template
    template = new_template(site, scheme, name, port)
    if variables is None:
        site.common_environ = template
    else:
        template.update(variables)
    return template


cdef dict new_template(Site site, str scheme, str name, str port):
    """Return an environ with all keys.

    A value that each request sets is None. It is present because setting a key that exists is
    faster than adding it, and does not make the dict grow.
    """
    cdef object config = site.config
    return dict_of_str({
        REQUEST_METHOD: None,
        SCRIPT_NAME: site.root_path.decode("latin-1"),
        PATH_INFO: None,
        QUERY_STRING: "",
        RAW_URI: None,
        REQUEST_URI: None,
        SERVER_NAME: name,
        SERVER_PORT: port,
        SERVER_PROTOCOL: "HTTP/1.1",
        SERVER_SOFTWARE: "mgloop/" + VERSION,
        REMOTE_ADDR: None,
        REMOTE_PORT: None,
        "wsgi.version": (1, 0),
        WSGI_URL_SCHEME: scheme,
        WSGI_INPUT: NO_BODY,
        "wsgi.input_terminated": True,
        "wsgi.errors": ErrorLog(),
        "wsgi.multithread": config.wsgi_threads != 0,
        "wsgi.multiprocess": config.workers > 1,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        WSGI_EARLY_HINTS: None,
    })


@cython.final
cdef class EnvironFactory:
    """Make the WSGI environs of the requests of one connection."""

    cdef int begin_head(self) except -1:
        self.repeated = None
        self.environ = self.template.copy()
        return 0

    cdef int add_header(self, const KnownHeader *known, bytes name, const char *value,
                        Py_ssize_t n) except -1:
        cdef dict environ = self.environ
        cdef str key = new_key(name) if known is NULL else <str>known.key
        cdef str text
        cdef Py_ssize_t size
        cdef PyObject *first
        if key is None:
            return 0
        text = PyUnicode_DecodeLatin1(value, n, NULL)
        # Not the identity of the result: short strings are the same object.
        size = PyDict_GET_SIZE(environ)
        first = PyDict_SetDefault(environ, key, text)
        if PyDict_GET_SIZE(environ) == size:
            # Joining each value as it comes would copy the beginning again for each of them.
            if self.repeated is None:
                self.repeated = {}
            self.repeated.setdefault(key, [<object>first]).append(text)
        return 0

    cdef dict make_environ(self, HeadParser head):
        cdef Target target
        cdef dict environ = self.environ
        cdef dict repeated = self.repeated
        cdef str uri
        cdef str problem = split_target(head.target, head.method, &target)
        self.environ = self.repeated = None
        if problem is not None:
            head.reject(400, problem)
            return None
        environ[REQUEST_METHOD] = head.method
        uri = PyUnicode_DecodeLatin1(
            PyBytes_AS_STRING(head.target), PyBytes_GET_SIZE(head.target), NULL)
        environ[RAW_URI] = uri
        environ[REQUEST_URI] = uri
        if target.path_len == PyBytes_GET_SIZE(head.target) \
                and memchr(target.path, b"%", target.path_len) is NULL:
            environ[PATH_INFO] = uri
        else:
            environ[PATH_INFO] = decode_path(target.path, target.path_len, True)
        if target.query_len:
            environ[QUERY_STRING] = PyUnicode_DecodeLatin1(target.query, target.query_len, NULL)
        if target.host is not NULL:
            environ[HTTP_HOST] = PyUnicode_DecodeLatin1(target.host, target.host_len, NULL)
        if head.http_10:
            environ[SERVER_PROTOCOL] = "HTTP/1.0"
        if head.forwarded and self.trusted:
            self.apply_forwarded(environ, repeated)
        if repeated is not None:
            for key, values in repeated.items():
                environ[key] = ("; " if key == HTTP_COOKIE else ",").join(values)
        if self.server_from_host:
            name, port = _peer.host_of(environ.get(HTTP_HOST, ""))
            environ[SERVER_NAME] = name
            environ[SERVER_PORT] = port or PORTS[environ[WSGI_URL_SCHEME]]
        return environ

    cdef int apply_forwarded(self, dict environ, dict repeated) except -1:
        """Replace the client and the scheme by those that the trusted proxies name."""
        cdef list headers = []
        for name, key in FORWARDING:
            for value in (repeated or {}).get(key) or [environ.get(key)]:
                if value is not None:
                    headers.append((name, value.encode("latin-1")))
        scope = {"headers": headers, "client": self.client, "scheme": self.scheme}
        self.site.proxy(scope)
        environ[REMOTE_ADDR], environ[REMOTE_PORT] = _peer.remote(scope["client"])
        scheme = scope["scheme"]
        environ[WSGI_URL_SCHEME] = scheme
        if scheme == "https":
            environ[HTTPS] = "on"
        else:
            environ.pop(HTTPS, None)
        return 0


cdef int put_body(dict environ, WsgiInput body, Py_ssize_t length) except -1:
    """Store the body in the environ.

    The length of a chunked body is known after it has arrived. RFC 3875 (4.1.2) requires it, and
    Django does not read a body without it.
    """
    environ[WSGI_INPUT] = body
    if length >= 0 and CONTENT_LENGTH not in environ:
        environ[CONTENT_LENGTH] = str(length)
    return 0
