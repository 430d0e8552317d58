# SPDX-License-Identifier: GPL-2.0-only
"""Declare the data that the objects of _handler.pyx refer to during a call of a handler."""

from mgloop.http.wire._headers cimport HeaderInfo
from mgloop.http.wire._headstore cimport StoredHeader
from mgloop.http.wire._site cimport mgl_outgoing, mgl_outgoing_pool
from mgloop.http.wire._target cimport Target


cdef struct RequestData:
    const char *method
    Py_ssize_t method_len
    const char *target
    Py_ssize_t target_len
    Target parts
    const StoredHeader *headers
    Py_ssize_t header_count
    const char *text                    # the names and values of the headers
    const char *body
    Py_ssize_t body_len
    void *owner                         # the argument of `origin`
    dict (*origin)(void *owner)         # returns the client and the scheme, as items of a scope


cdef struct ResponseData:
    mgl_outgoing_pool *pool
    int status
    mgl_outgoing *head                  # header lines that have been checked, or NULL
    mgl_outgoing *body                  # or NULL
    HeaderInfo info                     # the meaning of these lines
