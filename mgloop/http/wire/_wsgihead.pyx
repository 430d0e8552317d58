# SPDX-License-Identifier: GPL-2.0-only
"""The status and the headers that a WSGI application passes to start_response(), as bytes.

The module is native because it runs once per response, in the thread of the application. It has no
state. An upper limit of the size is computed first. Then each header is checked and copied.

As in gunicorn, headers of the connection (hop-by-hop headers) are dropped, because the server
writes them. "Connection: close" ends the connection after the response. The Content-Length of a
204 is dropped, because RFC 9110, 8.6, forbids it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from mgloop.http.wire._headers cimport HeaderInfo, settled
from mgloop.http.wire._site cimport (
    MGL_CONNECTION, MGL_CONTENT_LENGTH, MGL_DATE, MGL_OTHER_HEADER, MGL_SERVER,
    MGL_TRANSFER_ENCODING, mgl_decimal, mgl_header_kind, mgl_is_field_value, mgl_is_token,
)


cdef extern from "Python.h":
    bint PyTuple_CheckExact(object o)
    Py_ssize_t PyTuple_GET_SIZE(object t)
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_ssize_t PySequence_Fast_GET_SIZE(object o)
    PyObject *PySequence_Fast_GET_ITEM(object o, Py_ssize_t i)


cdef extern from "wsgihead.h":
    ctypedef struct mgl_text:
        const char *at
        size_t len
    bint mgl_latin_text(PyObject *string, mgl_text *text)
    void mgl_strip(mgl_text *text)
    int mgl_status_code(const mgl_text *text)
    int mgl_wsgi_header_kind(const mgl_text *name)
    bint mgl_says_close(const mgl_text *text)


cdef enum:
    # Bytes around the texts: "HTTP/1.1 " and "\r\n", ": " and "\r\n".
    AROUND_STATUS = 11
    AROUND_HEADER = 4


cdef bytes wsgi_head(object line, object headers, int *status, HeaderInfo *info):
    # Only errors run Python code, and end the loops. So `plain` does not change.
    cdef mgl_text text
    cdef object plain = pairs(headers)
    cdef bytes head
    cdef char *to
    cdef Py_ssize_t i
    info[0] = HeaderInfo(0, -1, False, False, False, False, False, False)
    status[0] = read_status(line, &text)
    info.size = text.len + AROUND_STATUS
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        pair = <object>PySequence_Fast_GET_ITEM(plain, i)
        info.size += size_of(pair)
    head = PyBytes_FromStringAndSize(NULL, info.size)
    to = put(PyBytes_AS_STRING(head), b"HTTP/1.1 ", 9)
    to = put(put(to, text.at, text.len), b"\r\n", 2)
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        pair = <object>PySequence_Fast_GET_ITEM(plain, i)
        to = put_header(to, pair, status[0], info)
    info.size = to - PyBytes_AS_STRING(head)
    return head if info.size == PyBytes_GET_SIZE(head) else head[:info.size]


cdef inline char *put(char *to, const char *text, size_t n) noexcept:
    memcpy(to, text, n)
    return to + n


cdef object pairs(object headers):
    """Return the headers as a list or tuple of tuples of two objects."""
    cdef object plain = settled(headers)
    cdef Py_ssize_t i
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        pair = PySequence_Fast_GET_ITEM(plain, i)
        if not PyTuple_CheckExact(<object>pair) or PyTuple_GET_SIZE(<object>pair) != 2:
            return tuple([(name, value) for name, value in tuple(plain)])
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


cdef Py_ssize_t size_of(object pair) except -1:
    """Return the size of a header line; raise TypeError unless it consists of two strings."""
    cdef PyObject *first = PyTuple_GET_ITEM(pair, 0)
    cdef PyObject *second = PyTuple_GET_ITEM(pair, 1)
    if not isinstance(<object>first, str) or not isinstance(<object>second, str):
        raise TypeError(f"The name and the value of a header must be str, not {pair!r}.")
    return PyUnicode_GET_LENGTH(<object>first) + PyUnicode_GET_LENGTH(<object>second) \
        + AROUND_HEADER


cdef char *put_header(char *to, object pair, int status, HeaderInfo *info) except NULL:
    """Check a header that size_of() has measured, add its meaning to `info`, and copy its line.

    Return the end of the line. A header that is not sent is not copied.
    """
    cdef mgl_text name, value
    cdef int kind
    cdef PyObject *first = PyTuple_GET_ITEM(pair, 0)
    cdef PyObject *second = PyTuple_GET_ITEM(pair, 1)
    if not mgl_latin_text(first, &name) or not mgl_is_token(name.at, name.len):
        raise ValueError(f"Invalid header name {<object>first!r}.")
    if not mgl_latin_text(second, &value) or not mgl_is_field_value(value.at, value.len):
        raise ValueError(f"Invalid value {<object>second!r} of the header {<object>first!r}.")
    mgl_strip(&value)
    kind = mgl_wsgi_header_kind(&name)
    if kind != MGL_OTHER_HEADER and not is_sent(kind, &value, <object>second, status, info):
        return to
    to = put(put(to, name.at, name.len), b": ", 2)
    return put(put(to, value.at, value.len), b"\r\n", 2)


cdef bint is_sent(
        int kind, const mgl_text *value, object text, int status, HeaderInfo *info) except -1:
    """Store the meaning of a header that the server handles itself; return whether it is sent."""
    if kind == MGL_DATE:
        info.date = True
    elif kind == MGL_SERVER:
        info.server = True
    elif kind == MGL_CONTENT_LENGTH and status != 204:
        if info.length >= 0:
            raise ValueError("Too many Content-Length headers in response.")
        info.length = mgl_decimal(value.at, value.len)
        if info.length < 0:
            raise ValueError(f"Content-Length {text!r} is not a number of bytes.")
    else:
        if kind == MGL_CONNECTION and mgl_says_close(value):
            info.closes = True
        return False
    return True


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
