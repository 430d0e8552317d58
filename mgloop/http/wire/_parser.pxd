# SPDX-License-Identifier: GPL-2.0-only
"""Declare HeadParser, which finds the requests in the bytes of a connection, and its events.

_parser.pyx explains how the parser works.
"""

from mgloop.http.wire._llhttp cimport llhttp_t
from mgloop.http.wire._requestheaders cimport HeaderSink, KnownHeader
from mgloop.http.wire._site cimport Site


# The events that parse() returns, as bits. If it returns several, they happened in this order:
# HEAD_READ: the parser has read a whole head. Its fields are valid until end_message().
# BODY_PART: a part of the body is at `body`. It is valid while the caller keeps the data.
# MESSAGE_END: the parser has read a whole message. Call end_message() before parse().
# INVALID: the data is not acceptable, for the reason in `failure`. The parser cannot be used again.
cdef enum:
    MGL_HEAD_READ = 1
    MGL_BODY_PART = 2
    MGL_MESSAGE_END = 4
    MGL_INVALID = 8


cdef class HeadParser:
    cdef llhttp_t llhttp
    cdef Site site                      # for its limits
    cdef HeaderSink sink                # receives the headers; set before the first parse()
    cdef bint in_head                   # a head has begun, and has not ended

    # The head.
    cdef str method                     # None until it has been read
    cdef bytes target                   # None until it has been read
    cdef bint http_10
    cdef bint keep_alive                # the client asks for a persistent connection
    cdef bint expects_continue          # the client waits for 100 Continue
    cdef bint forwarded                 # there is a Forwarded or an X-Forwarded-* header
    cdef bint wants_websocket           # the head is the handshake of a WebSocket
    cdef bint has_body                  # a body follows

    # The events.
    cdef int events                     # the events that llhttp's callbacks have found
    cdef const char *body
    cdef size_t body_len
    cdef Py_ssize_t body_total          # bytes of body in the message so far
    cdef tuple failure                  # (status, reason) of an error response, or None

    # The present token: the target, or the name or the value of a header. `token` points into the
    # data that is being parsed. If the data ends before the token does, the token is copied into
    # `partial_token`.
    cdef const char *token
    cdef Py_ssize_t token_len           # bytes at `token`
    cdef object partial_token           # the beginning of the token (see gather()), or None
    cdef Py_ssize_t token_total         # bytes of the token, in `partial_token` and at `token`
    # The name of the header whose value is being read: its entry in the table, or NULL and the name
    # in lower case.
    cdef const KnownHeader *known
    cdef bytes header_name
    cdef Py_ssize_t name_len
    cdef int leading_crlf               # bytes read of the empty line that may precede a request

    # For checks of the head.
    cdef const char *data               # the data that is being parsed
    cdef Py_ssize_t offset              # bytes between the end of the method and `data`
    cdef Py_ssize_t target_end          # bytes between the ends of the method and of the target
    cdef Py_ssize_t head_len
    cdef Py_ssize_t header_count
    cdef int host_count, content_type_count
    cdef bint upgrades_to_websocket     # there is an Upgrade header that names it
    cdef bytes coding                   # Transfer-Encoding, unless it is just "chunked", or None

    # The framing of a chunked body.
    cdef bint at_chunk_line             # the first line of a chunk comes next
    cdef bint is_last_chunk             # the present chunk is the last one (its size is 0)
    cdef object chunk_line              # beginning of a chunk's first line (see gather()), or None
    cdef Py_ssize_t extension_len       # bytes of extensions in the present chunk
    cdef Py_ssize_t extensions_len      # bytes of extensions in all chunks of the message

    # Parse `n` bytes of data, at most up to the end of the message or of a chunk, and return the
    # events. Store the number of bytes that were parsed in `used`.
    cdef int parse(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1
    # Prepare for the next message.
    cdef int end_message(self) except -1
    # Set `failure`, and return -1 for a callback of llhttp.
    cdef int reject(self, int status, str reason) except -2
    # Forget the head, and release its memory.
    cdef int forget_head(self) except -1

    cdef int run_llhttp(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1
    cdef int parse_chunk_line(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1
    cdef int parse_method(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1
    cdef int begin_message(self, str method) except -1
    cdef int extend_token(self, const char *at, size_t length) except -2
    cdef int save_token(self) except -1
    cdef bytes end_token(self)
    cdef bytes whole_token(self)
    cdef int end_name(self) except -1
    cdef int end_header(self) except -2
    cdef int interpret(self, const KnownHeader *known, const char *value, Py_ssize_t n) except -2
    cdef int end_head(self) except -2
    cdef bint known_coding(self) except -1
