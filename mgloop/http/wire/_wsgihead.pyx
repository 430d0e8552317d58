# SPDX-License-Identifier: GPL-2.0-only
"""The status and the headers that a WSGI application passes to start_response(), as bytes.

The module is native because it runs once per response, in the thread of the application.  It has no
state.  The headers are copied into a tuple first, because another thread of the application may
change its list.  Then they are checked and measured, and at last copied.

As in gunicorn, headers of the connection (hop-by-hop headers) are dropped, because the server
writes them.  "Connection: close" ends the connection after the response.  The Content-Length of a
204 is dropped, because RFC 9110, 8.6, forbids it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.string cimport memcpy

from mgloop.http.wire._headers cimport HeaderInfo
from mgloop.http.wire._site cimport (
    MGL_CONNECTION, MGL_CONTENT_LENGTH, MGL_DATE, MGL_SERVER, MGL_TRANSFER_ENCODING, mgl_decimal,
    mgl_header_kind, mgl_is_field_value, mgl_is_token,
)


cdef extern from "Python.h":
    bint PyTuple_CheckExact(object o)
    Py_ssize_t PyTuple_GET_SIZE(object t)
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)


cdef extern from "wsgihead.h":
    ctypedef struct mgl_text:
        const char *at
        size_t len
    bint mgl_latin_text(PyObject *string, mgl_text *text)
    void mgl_strip(mgl_text *text)
    int mgl_status_code(const mgl_text *text)
    bint mgl_is_hop_by_hop(const mgl_text *name)
    bint mgl_says_close(const mgl_text *text)


cdef enum:
    # Bytes around the texts: "HTTP/1.1 " and "\r\n", ": " and "\r\n".
    AROUND_STATUS = 11
    AROUND_HEADER = 4


cdef bytes wsgi_head(object line, object headers, int *status, HeaderInfo *info):
    cdef mgl_text text, name
    cdef tuple plain = pairs(headers)
    cdef bytes head
    cdef char *to
    cdef Py_ssize_t i
    info[0] = HeaderInfo(0, -1, False, False, False, False, False)
    status[0] = read_status(line, &text)
    info.size = text.len + AROUND_STATUS
    for i in range(PyTuple_GET_SIZE(plain)):
        measure(<object>PyTuple_GET_ITEM(plain, i), status[0], info)
    head = PyBytes_FromStringAndSize(NULL, info.size)
    to = put(PyBytes_AS_STRING(head), b"HTTP/1.1 ", 9)
    to = put(put(to, text.at, text.len), b"\r\n", 2)
    for i in range(PyTuple_GET_SIZE(plain)):
        pair = PyTuple_GET_ITEM(plain, i)
        mgl_latin_text(PyTuple_GET_ITEM(<object>pair, 0), &name)
        if is_dropped(&name, status[0]):
            continue
        mgl_latin_text(PyTuple_GET_ITEM(<object>pair, 1), &text)
        mgl_strip(&text)
        to = put(put(to, name.at, name.len), b": ", 2)
        to = put(put(to, text.at, text.len), b"\r\n", 2)
    return head


cdef inline char *put(char *to, const char *text, size_t n) noexcept:
    memcpy(to, text, n)
    return to + n


cdef inline bint is_dropped(const mgl_text *name, int status) noexcept:
    """Return whether a header is not sent."""
    return mgl_is_hop_by_hop(name) or (
        status == 204 and mgl_header_kind(name.at, name.len) == MGL_CONTENT_LENGTH)


cdef tuple pairs(object headers):
    """Return the headers as a tuple of tuples of two objects."""
    cdef tuple plain = tuple(headers)
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(plain)):
        pair = PyTuple_GET_ITEM(plain, i)
        if not PyTuple_CheckExact(<object>pair) or PyTuple_GET_SIZE(<object>pair) != 2:
            return tuple([(name, value) for name, value in plain])
    return plain


cdef int read_status(object line, mgl_text *text) except -1:
    """Return the code of a status such as "200 OK"; set `text` to its characters."""
    cdef int code
    if not isinstance(line, str):
        raise TypeError(f"The status must be a str, not {type(line).__name__}.")
    if not mgl_latin_text(<PyObject *>line, text) or not mgl_is_field_value(text.at, text.len):
        raise ValueError(f"Invalid character in the status {line!r}.")
    code = mgl_status_code(text)
    if not 200 <= code <= 999:
        raise ValueError(f"The status {line!r} does not start with a status code from 200 to 999.")
    return code


cdef int measure(object pair, int status, HeaderInfo *info) except -1:
    """Check a header, and add its size and its meaning to `info`."""
    cdef mgl_text name, value
    cdef int kind
    cdef PyObject *first = PyTuple_GET_ITEM(pair, 0)
    cdef PyObject *second = PyTuple_GET_ITEM(pair, 1)
    if not isinstance(<object>first, str) or not isinstance(<object>second, str):
        raise TypeError(f"The name and the value of a header must be str, not {pair!r}.")
    if not mgl_latin_text(first, &name) or not mgl_is_token(name.at, name.len):
        raise ValueError(f"Invalid header name {<object>first!r}.")
    if not mgl_latin_text(second, &value) or not mgl_is_field_value(value.at, value.len):
        raise ValueError(f"Invalid value {<object>second!r} of the header {<object>first!r}.")
    mgl_strip(&value)
    if is_dropped(&name, status):
        if mgl_header_kind(name.at, name.len) == MGL_CONNECTION and mgl_says_close(&value):
            info.closes = True
        return 0
    info.size += name.len + value.len + AROUND_HEADER
    kind = mgl_header_kind(name.at, name.len)
    if kind == MGL_DATE:
        info.date = True
    elif kind == MGL_SERVER:
        info.server = True
    elif kind == MGL_CONTENT_LENGTH:
        if info.length >= 0:
            raise ValueError("Too many Content-Length headers in response.")
        info.length = mgl_decimal(value.at, value.len)
        if info.length < 0:
            raise ValueError(f"Content-Length {<object>second!r} is not a number of bytes.")
    return 0


cdef bytes hint_head(object headers):
    cdef list lines = [b"HTTP/1.1 103 Early Hints\r\n"]
    cdef bytes name, value
    for first, second in tuple(headers):
        name = latin_bytes(first)
        value = latin_bytes(second).strip(b" \t")
        if not mgl_is_token(PyBytes_AS_STRING(name), len(name)):
            raise ValueError(f"Invalid header name {first!r}.")
        if not mgl_is_field_value(PyBytes_AS_STRING(value), len(value)):
            raise ValueError(f"Invalid value {second!r} of the header {first!r}.")
        kind = mgl_header_kind(PyBytes_AS_STRING(name), len(name))
        if kind in (MGL_CONNECTION, MGL_CONTENT_LENGTH, MGL_TRANSFER_ENCODING):
            raise ValueError(f"The header {first!r} is not allowed in early hints.")
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    return b"".join(lines)


cdef bytes latin_bytes(object text):
    if isinstance(text, bytes):
        return bytes(text)
    if not isinstance(text, str):
        raise TypeError(
            f"The names and values of early hints must be str or bytes, not {type(text).__name__}.")
    return text.encode("latin-1")
