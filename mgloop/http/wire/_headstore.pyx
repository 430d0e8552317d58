# SPDX-License-Identifier: GPL-2.0-only
"""The headers of a request as C strings, for a compiled handler (_handled.pyx).

The parser's data is gone when the handler is called, because a request may arrive in several reads.
So a HeadStore copies the headers. Its memory comes from the pool of the site, and returns there as
soon as the handler has decided. If the handler passes the request on, replay() gives the headers to
the HeaderSink of the application.

The module is native because it runs for each header, on the thread of the loop. A connection keeps
its HeadStore alive.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from mgloop.http.wire._requestheaders cimport HEADER_HOST, HeaderSink, KnownHeader, known_header
from mgloop.http.wire._site cimport (
    mgl_out_free, mgl_out_reserve, mgl_outgoing, mgl_pool_give, mgl_pool_take, mgl_put,
)


cdef const KnownHeader *HOST = known_header(b"host", 4)


@cython.final
cdef class HeadStore(HeaderSink):
    """Store the headers of one request at a time."""

    def __dealloc__(self):
        mgl_out_free(self.entries)
        mgl_out_free(self.text)

    cdef int begin_head(self) except -1:
        self.release()
        self.entries = mgl_pool_take(&self.site.pool)
        self.text = mgl_pool_take(&self.site.pool)
        return 0

    cdef int add_header(self, const KnownHeader *known, bytes name, const char *value,
                        Py_ssize_t n) except -1:
        cdef StoredHeader header
        header.known = known
        header.name_len = 0 if known is not NULL else PyBytes_GET_SIZE(name)
        mgl_out_reserve(self.entries, sizeof(header))
        mgl_out_reserve(self.text, header.name_len + n)
        header.name_at = self.text.len
        if known is NULL:
            mgl_put(self.text, PyBytes_AS_STRING(name), header.name_len)
        header.value_at = self.text.len
        header.value_len = n
        mgl_put(self.text, value, n)
        mgl_put(self.entries, <const char *>&header, sizeof(header))
        self.count += 1
        return 0

    cdef int replace_host(self, const char *host, Py_ssize_t n) except -1:
        cdef StoredHeader *headers = <StoredHeader *>self.entries.data
        cdef Py_ssize_t i, kept = 0
        for i in range(self.count):
            if headers[i].known is NULL or headers[i].known.kind != HEADER_HOST:
                headers[kept] = headers[i]
                kept += 1
        self.count = kept
        self.entries.len = kept * sizeof(StoredHeader)
        return self.add_header(HOST, None, host, n)

    cdef int replay(self, HeaderSink sink) except -1:
        cdef const StoredHeader *header
        cdef bytes name
        cdef Py_ssize_t i
        sink.begin_head()
        for i in range(self.count):
            header = &stored_headers(self)[i]
            name = None
            if header.known is NULL:
                name = PyBytes_FromStringAndSize(self.text.data + header.name_at, header.name_len)
            sink.add_header(header.known, name, self.text.data + header.value_at, header.value_len)
        return 0

    cdef int release(self) noexcept:
        cdef mgl_outgoing *entries = self.entries
        cdef mgl_outgoing *text = self.text
        self.entries = self.text = NULL
        self.count = 0
        mgl_pool_give(&self.site.pool, entries)
        mgl_pool_give(&self.site.pool, text)
        return 0
