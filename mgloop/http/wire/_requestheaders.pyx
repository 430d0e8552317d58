# SPDX-License-Identifier: GPL-2.0-only
"""The headers of a request on their way from the parser to the ASGI scope or the WSGI environ.

The parser passes each header to the HeaderSink of its connection as soon as it has read it. For
ASGI the sink is a HeaderList, which makes the list of pairs for the scope. For WSGI it is an
EnvironFactory (_environ.pyx), which stores the value in the environ.

The table has the names of frequent headers, as objects for both interfaces, because making a string
and hashing it costs more than the rest of storing a header. The table also says which headers the
parser has to interpret.

The module is native because it runs for each header, on the thread of the loop. The table is the
same for all loops, and never changes. A connection and its parser keep the HeaderSink alive.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcmp

from mgloop.http.wire._site cimport MGL_FREE_THREADED

import sys


cdef enum:
    SLOTS = 256     # of the hash table: four times the number of names

#: The names of frequent request headers, and of those that the parser has to interpret.
cdef tuple NAMES = (
    "accept", "accept-charset", "accept-encoding", "accept-language",
    "access-control-request-headers", "access-control-request-method", "authorization",
    "baggage", "cache-control", "cdn-loop", "cf-connecting-ip", "cf-ipcountry", "cf-ray",
    "cf-visitor", "connection", "content-encoding", "content-length", "content-type",
    "content_length", "cookie", "date", "dnt", "expect", "forwarded", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "keep-alive",
    "max-forwards", "origin", "pragma", "priority", "proxy-authorization", "proxy-connection",
    "range", "referer", "sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform", "sec-fetch-dest",
    "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user", "sec-gpc", "te", "traceparent",
    "tracestate", "transfer-encoding", "transfer_encoding", "upgrade",
    "upgrade-insecure-requests", "user-agent", "via", "x-amzn-trace-id", "x-api-key",
    "x-correlation-id", "x-csrf-token", "x-csrftoken", "x-forwarded-for", "x-forwarded-host",
    "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-proto", "x-forwarded-server",
    "x-real-ip", "x-request-id", "x-requested-with", "x-scheme",
)

cdef dict KINDS = {
    "host": HEADER_HOST, "content-type": HEADER_CONTENT_TYPE, "forwarded": HEADER_FORWARDED,
    "x-forwarded-for": HEADER_FORWARDED, "x-forwarded-proto": HEADER_FORWARDED,
    "transfer-encoding": HEADER_TRANSFER_ENCODING, "expect": HEADER_EXPECT,
    "upgrade": HEADER_UPGRADE, "content_length": HEADER_DISGUISED,
    "transfer_encoding": HEADER_DISGUISED,
}

cdef KnownHeader[SLOTS] table
cdef list owners = []       # keep the objects of the table alive


cdef inline unsigned int slot_of(const char *name, Py_ssize_t n) noexcept:
    """Return the slot at which the search for a name of `n` > 0 bytes begins."""
    return (<unsigned int>n * 29 + <unsigned char>name[0] * 7 + <unsigned char>name[n - 1] * 31
            + <unsigned char>name[n // 2] * 13) % SLOTS


cdef int fill_table() except -1:
    cdef bytes name
    cdef str key
    cdef unsigned int slot
    for text in NAMES:
        name = text.encode()
        if len(name) > LONGEST_KNOWN:
            raise ValueError(text)
        key = text.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = "HTTP_" + key
        key = sys.intern(key)
        owners.append((name, key))
        slot = slot_of(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        while table[slot].text is not NULL:
            slot = (slot + 1) % SLOTS
        table[slot] = KnownHeader(
            PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), <PyObject *>name, <PyObject *>key,
            KINDS.get(text, HEADER_PLAIN))
    return 0


fill_table()


cdef const KnownHeader *known_header(const char *name, Py_ssize_t n) noexcept:
    cdef unsigned int slot = slot_of(name, n)
    while table[slot].text is not NULL:
        if table[slot].length == n and memcmp(table[slot].text, name, n) == 0:
            return &table[slot]
        slot = (slot + 1) % SLOTS
    return NULL


cdef dict dict_of_str(dict items):
    return dict(list(items.items()))


cdef class HeaderSink:
    """Receive the headers of the requests of one connection."""

    cdef int begin_head(self) except -1:
        raise NotImplementedError

    cdef int add_header(self, const KnownHeader *known, bytes name, const char *value,
                        Py_ssize_t n) except -1:
        raise NotImplementedError


@cython.final
cdef class HeaderList(HeaderSink):
    """Make the list of headers of an ASGI scope."""

    cdef int begin_head(self) except -1:
        self.pairs = []
        return 0

    cdef int add_header(self, const KnownHeader *known, bytes name, const char *value,
                        Py_ssize_t n) except -1:
        cdef list pairs = self.pairs
        if known is not NULL:
            # Without the GIL the threads of several loops would contend for the same object.
            name = PyBytes_FromStringAndSize(known.text, known.length) if MGL_FREE_THREADED \
                else <bytes>known.name
        pairs.append((name, PyBytes_FromStringAndSize(value, n)))
        return 0
