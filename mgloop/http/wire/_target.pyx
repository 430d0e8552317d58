# SPDX-License-Identifier: GPL-2.0-only
"""The target of a request: its path and its query, and the decoding of the path.

The module is native because it runs for each request. It has no state. The ASGI scope (_scope)
and the WSGI environ (_environ) are made from the parts, each with its own types.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeLatin1, PyUnicode_DecodeUTF8
from libc.string cimport memchr

from mgloop.http.wire._site cimport mgl_is_host, mgl_unquote


cdef str split_target(bytes raw, str method, Target *target):
    cdef const char *start = PyBytes_AS_STRING(raw)
    cdef const char *end = start + PyBytes_GET_SIZE(raw)
    cdef const char *at = start
    cdef const char *query
    while at < end:
        if at[0] == b"#":
            end = at    # a fragment has a meaning for the client only, so it is dropped
            break
        if <unsigned char>at[0] <= 32 or <unsigned char>at[0] >= 127:
            return "invalid character in request target"
        at += 1
    target.host = NULL
    target.host_len = 0
    if start == end or start[0] != b"/":
        # RFC 9112, 3.2.2, requires that the host of the target replaces the Host header. Otherwise
        # a client could make a proxy that uses one of them and an application that uses the other
        # disagree about the host.
        start = path_of_absolute(start, end, method, &target.host)
        if start is NULL:
            return "invalid request target"
        if target.host is not NULL:
            target.host_len = start - target.host
    query = <const char *>memchr(start, b"?", end - start)
    target.query = NULL
    target.query_len = 0
    if query is not NULL:
        target.query = query + 1
        target.query_len = end - query - 1
        end = query
    target.path = start
    target.path_len = end - start
    if start == end:
        target.path = b"/"
        target.path_len = 1
    return None


cdef str decode_path(const char *path, Py_ssize_t n, bint latin_1):
    cdef char *decoded
    if memchr(path, b"%", n) is NULL:
        return PyUnicode_DecodeASCII(path, n, NULL)
    decoded = <char *>PyMem_Malloc(n)
    if decoded is NULL:
        raise MemoryError
    try:
        n = mgl_unquote(decoded, path, n)
        if latin_1:
            return PyUnicode_DecodeLatin1(decoded, n, NULL)
        return PyUnicode_DecodeUTF8(decoded, n, "replace")
    finally:
        PyMem_Free(decoded)


cdef const char *path_of_absolute(
        const char *start, const char *end, str method, const char **host) noexcept:
    """Find the path of a target that does not start with "/".

    The target is a URL (http://host/path), and `host` is then set to the start of its host, or it
    is the "*" of an OPTIONS request. Return the start of the path or of the "*", or NULL if the
    target is neither.
    """
    cdef const char *at
    if end - start == 1 and start[0] == b"*":
        return start if method == "OPTIONS" else NULL
    at = <const char *>memchr(start, b":", end - start)
    if at is NULL or end - at < 4 or at[1] != b"/" or at[2] != b"/":
        return NULL
    at += 3
    host[0] = at
    while at < end and at[0] != b"/" and at[0] != b"?":
        at += 1
    return at if mgl_is_host(host[0], at - host[0]) else NULL
