# SPDX-License-Identifier: GPL-2.0-only
"""Declare HeadStore, which keeps the headers of a request as C strings."""

from mgloop.http.wire._requestheaders cimport HeaderSink, KnownHeader
from mgloop.http.wire._site cimport Site, mgl_outgoing


# A header whose name and value are in a separate text, from which other headers follow.
cdef struct StoredHeader:
    const KnownHeader *known            # its entry, or NULL
    Py_ssize_t name_at                  # only if `known` is NULL
    Py_ssize_t name_len
    Py_ssize_t value_at
    Py_ssize_t value_len


cdef class HeadStore(HeaderSink):
    cdef Site site                      # for its pool of buffers
    cdef mgl_outgoing *entries          # the StoredHeaders, or NULL between two requests
    cdef mgl_outgoing *text             # their names and values, or NULL between two requests
    cdef Py_ssize_t count

    # Replace all Host headers by one with this value.
    cdef int replace_host(self, const char *host, Py_ssize_t n) except -1
    # Pass the headers on to `sink`, as the parser would have done.
    cdef int replay(self, HeaderSink sink) except -1
    # Forget the headers, and return their memory to the site.
    cdef int release(self) noexcept


cdef inline const StoredHeader *stored_headers(HeadStore self) noexcept:
    return <const StoredHeader *>self.entries.data
