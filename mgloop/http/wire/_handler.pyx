# SPDX-License-Identifier: GPL-2.0-only
"""Implement the interface for compiled HTTP handlers: a request and a response in C strings.

A program subclasses HTTPHandler in Cython. The server calls its answer() with a request and a
response (_handled.pyx). Both objects refer to structures of the server (_handlerdata.pxd) during
the call only. Afterwards their methods raise RuntimeError, because the memory is used again.

A response collects checked header lines and the body in two buffers. The server copies them behind
the status line when answer() has returned, so a handler that raises has sent nothing.

This module is loaded when a program with a handler is imported. Only the thread of the loop may use
these objects.
"""

from libc.string cimport strlen

from mgloop.http.wire._handlerdata cimport RequestData, ResponseData
from mgloop.http.wire._headers cimport interpret_header
from mgloop.http.wire._headstore cimport StoredHeader
from mgloop.http.wire._site cimport (
    MGL_CONNECTION, MGL_OTHER_HEADER, MGL_TRANSFER_ENCODING, mgl_header_kind, mgl_is_field_value,
    mgl_is_token, mgl_out_reserve, mgl_pool_take, mgl_put, mgl_put_field,
)

from ..._compiled import raise_for_version


cdef extern from "strings.h":
    int strncasecmp(const char *first, const char *second, size_t n) noexcept


def __getattr__(name):
    """Raise ImportError for the classes of another version of the interface."""
    raise_for_version(__name__, name, ("HTTPHandler", "HTTPRequest", "HTTPResponse"))


# --- the request ----------------------------------------------------------------------------------

cdef inline const RequestData *request_data(HTTPRequest_1 self) except NULL:
    if self.data is NULL:
        raise RuntimeError("the request can be used during answer() only")
    return <const RequestData *>self.data


cdef inline const char *text_of(const char *text, Py_ssize_t n, Py_ssize_t *size) noexcept:
    if size is not NULL:
        size[0] = n
    return text


cdef inline const char *name_of(
        const RequestData *data, const StoredHeader *header, Py_ssize_t *size) noexcept:
    if header.known is not NULL:
        return text_of(header.known.text, header.known.length, size)
    return text_of(data.text + header.name_at, header.name_len, size)


cdef const StoredHeader *header_at(const RequestData *data, Py_ssize_t index) except NULL:
    if not 0 <= index < data.header_count:
        raise IndexError("there is no header with this index")
    return &data.headers[index]


cdef class HTTPRequest_1:
    """A request to a compiled handler. The class is mgloop.http.HTTPRequest."""

    cdef const char *method(self, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        return text_of(data.method, data.method_len, size)

    cdef const char *target(self, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        return text_of(data.target, data.target_len, size)

    cdef const char *path(self, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        return text_of(data.parts.path, data.parts.path_len, size)

    cdef const char *query(self, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        if data.parts.query is NULL:
            return text_of(b"", 0, size)
        return text_of(data.parts.query, data.parts.query_len, size)

    cdef const char *body(self, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        return text_of(data.body, data.body_len, size)

    cdef const char *header(self, const char *name, Py_ssize_t *size) except? NULL:
        cdef const RequestData *data = request_data(self)
        cdef const char *found
        cdef Py_ssize_t i, n = 0
        cdef Py_ssize_t length = <Py_ssize_t>strlen(name)
        for i in range(data.header_count):
            found = name_of(data, &data.headers[i], &n)
            if n == length and strncasecmp(found, name, length) == 0:
                return text_of(data.text + data.headers[i].value_at, data.headers[i].value_len,
                               size)
        return text_of(NULL, 0, size)

    cdef Py_ssize_t header_count(self) except -1:
        return request_data(self).header_count

    cdef const char *header_name(self, Py_ssize_t index, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        return name_of(data, header_at(data, index), size)

    cdef const char *header_value(self, Py_ssize_t index, Py_ssize_t *size) except NULL:
        cdef const RequestData *data = request_data(self)
        cdef const StoredHeader *header = header_at(data, index)
        return text_of(data.text + header.value_at, header.value_len, size)

    cdef object client(self):
        cdef const RequestData *data = request_data(self)
        return data.origin(data.owner)["client"]

    cdef str scheme(self):
        cdef const RequestData *data = request_data(self)
        return data.origin(data.owner)["scheme"]


# --- the response ---------------------------------------------------------------------------------

cdef inline ResponseData *response_data(HTTPResponse_1 self) except NULL:
    if self.data is NULL:
        raise RuntimeError("the response can be used during answer() only")
    return <ResponseData *>self.data


cdef class HTTPResponse_1:
    """The response of a compiled handler. The class is mgloop.http.HTTPResponse."""

    cdef int set_status(self, int status) except -1:
        cdef ResponseData *data = response_data(self)
        if status < 200 or status > 599:
            raise ValueError(f"invalid HTTP status code {status}: expected 200 to 599")
        data.status = status
        return 0

    cdef int add_header(self, const char *name, const char *value, Py_ssize_t size) except -1:
        cdef ResponseData *data = response_data(self)
        cdef Py_ssize_t n = <Py_ssize_t>strlen(name)
        cdef int kind
        if not mgl_is_token(name, n):
            raise ValueError(f"invalid HTTP header name {name[:n]!r}")
        if size < 0 or not mgl_is_field_value(value, size):
            raise ValueError(f"invalid value of the HTTP header {name[:n]!r}")
        kind = mgl_header_kind(name, n)
        if kind == MGL_TRANSFER_ENCODING:
            raise ValueError("a handler must not set Transfer-Encoding, because its body is whole")
        if kind != MGL_OTHER_HEADER:
            interpret_header(kind, value[:size], False, &data.info)
        if kind == MGL_CONNECTION:      # the server writes this one
            return 0
        if data.head is NULL:
            data.head = mgl_pool_take(data.pool)
        mgl_out_reserve(data.head, n + size + 4)
        mgl_put_field(data.head, name, n, value, size)
        return 0

    cdef int write(self, const char *data, Py_ssize_t size) except -1:
        cdef ResponseData *answer = response_data(self)
        if size < 0:
            raise ValueError("the size of the data is negative")
        if size == 0:
            return 0        # the pointer may be NULL
        if answer.body is NULL:
            answer.body = mgl_pool_take(answer.pool)
        mgl_out_reserve(answer.body, size)
        mgl_put(answer.body, data, size)
        return 0


cdef class HTTPHandler_1:
    """A handler with a method in Cython, to be subclassed. The class is mgloop.http.HTTPHandler."""

    cdef bint answer(self, HTTPRequest_1 request, HTTPResponse_1 response) except -1:
        return False
