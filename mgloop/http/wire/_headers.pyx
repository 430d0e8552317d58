# SPDX-License-Identifier: GPL-2.0-only
"""The headers that the application sends: check them, measure them, copy them into the buffer.

The module is native because each response has headers. It has no state of its own.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from mgloop.http.wire._site cimport (
    MGL_CONNECTION, MGL_CONTENT_LENGTH, MGL_DATE, MGL_FREE_THREADED, MGL_OTHER_HEADER, MGL_SERVER,
    MGL_TRANSFER_ENCODING, check_header, mgl_decimal, mgl_header_kind, mgl_outgoing, mgl_put_field,
)


cdef extern from "Python.h":
    bint PyBytes_CheckExact(object o)
    bint PyTuple_CheckExact(object o)
    bint PyList_CheckExact(object o)
    Py_ssize_t PySequence_Fast_GET_SIZE(object o)
    PyObject *PySequence_Fast_GET_ITEM(object o, Py_ssize_t i)
    Py_ssize_t PyTuple_GET_SIZE(object t)
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)


cdef bytes as_bytes(object data):
    return <bytes>data if PyBytes_CheckExact(data) else bytes(memoryview(data))


cdef object settled(object items):
    # With the GIL, a list changes only when Python code runs. Copying it costs 200 instructions.
    return items if PyList_CheckExact(items) and not MGL_FREE_THREADED else tuple(items)


cdef object plain_headers(object headers):
    cdef object plain = settled(headers)
    cdef Py_ssize_t i
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        if not is_plain(<object>PySequence_Fast_GET_ITEM(plain, i)):
            return tuple([(as_bytes(name), as_bytes(value)) for name, value in tuple(plain)])
    return plain


cdef inline bint is_plain(object pair) noexcept:
    return (PyTuple_CheckExact(pair) and PyTuple_GET_SIZE(pair) == 2
            and PyBytes_CheckExact(<object>PyTuple_GET_ITEM(pair, 0))
            and PyBytes_CheckExact(<object>PyTuple_GET_ITEM(pair, 1)))


cdef int measure_headers(object plain, bint trailing, HeaderInfo *info) except -1:
    # Only an error, which ends the loop, runs Python code. So the references may be borrowed.
    cdef PyObject *name
    cdef PyObject *value
    cdef int kind
    cdef Py_ssize_t i
    info[0] = HeaderInfo(0, -1, False, False, False, False, False, False)
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        pair = PySequence_Fast_GET_ITEM(plain, i)
        name = PyTuple_GET_ITEM(<object>pair, 0)
        value = PyTuple_GET_ITEM(<object>pair, 1)
        check_header(<bytes>name, <bytes>value)
        info.size += PyBytes_GET_SIZE(<object>name) + PyBytes_GET_SIZE(<object>value) + 4
        kind = mgl_header_kind(PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name))
        if kind != MGL_OTHER_HEADER:
            interpret_header(kind, <bytes>value, trailing, info)
    return 0


cdef int interpret_header(int kind, bytes value, bint trailing, HeaderInfo *info) except -1:
    if kind == MGL_DATE:
        info.date = True
    elif kind == MGL_SERVER:
        info.server = True
    elif trailing:
        raise RuntimeError("Framing headers are not allowed in trailers.")
    elif kind == MGL_CONNECTION:
        # The server writes the Connection header, because it decides whether the connection stays
        # open. The application may ask for "close", and for "upgrade": a 426 names the protocols
        # that the server asks for in its Upgrade header (RFC 9110, 7.8).
        value = value.lower()
        info.omits = True
        if b"close" in value:
            info.closes = True
        if b"upgrade" in value and not info.upgrades:
            info.upgrades = True
            info.size += 21
    elif kind == MGL_CONTENT_LENGTH:
        if info.length >= 0:
            raise RuntimeError("Too many Content-Length headers in response.")
        info.length = content_length(value)
    else:
        if value.lower() != b"chunked":
            raise RuntimeError(
                f"Unsupported Transfer-Encoding {value!r} in response: only chunked is allowed.")
        info.chunked = info.omits = True    # end_head() writes it: once, and not to HTTP/1.0
    return 0


cdef long long content_length(bytes value) except -1:
    """Return the value of a Content-Length; raise RuntimeError if it is invalid."""
    cdef long long length = mgl_decimal(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    if length < 0:
        raise RuntimeError(f"Content-Length {value!r} is not a number of bytes")
    return length


cdef int put_headers(mgl_outgoing *out, object plain, HeaderInfo *info) noexcept:
    cdef PyObject *name
    cdef PyObject *value
    cdef Py_ssize_t i
    cdef int kind
    for i in range(PySequence_Fast_GET_SIZE(plain)):
        pair = PySequence_Fast_GET_ITEM(plain, i)
        name = PyTuple_GET_ITEM(<object>pair, 0)
        value = PyTuple_GET_ITEM(<object>pair, 1)
        if info.omits:
            kind = mgl_header_kind(PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name))
            if kind == MGL_CONNECTION or kind == MGL_TRANSFER_ENCODING:
                continue
        mgl_put_field(
            out, PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name),
            PyBytes_AS_STRING(<object>value), PyBytes_GET_SIZE(<object>value))
    if info.upgrades:
        mgl_put_field(out, b"connection", 10, b"upgrade", 7)
    return 0
