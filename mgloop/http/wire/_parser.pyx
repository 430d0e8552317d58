# SPDX-License-Identifier: GPL-2.0-only
"""The parser of an HTTP/1 connection: find heads, bodies and the ends of messages in its bytes.

The module is native because every byte of a request passes through it. A HeadParser belongs to one
connection, which keeps it alive, and runs on the thread of its loop. It holds no reference to the
connection: parse() returns events (_parser.pxd), and the connection acts on them.

llhttp parses the messages. All its lenient modes are off. This module also rejects messages that
llhttp accepts although RFC 9112 forbids them: a request without exactly one Host, a version other
than 1.0 and 1.1, a folded header line. In six places it corrects llhttp:

1. llhttp accepts only the methods of a list. parse_method() reads the method instead, and gives
   POST to llhttp in place of every method.
2. llhttp accepts several spaces after the method. parse() rejects them.
3. llhttp accepts several spaces before the version. on_version() rejects them, because it knows
   the distance of the version from the target.
4. llhttp rejects blanks around ";" and "=" in the first line of a chunk, which RFC 9112 requires a
   recipient to remove. parse_chunk_line() removes them first.
5. llhttp accepts every transfer coding before "chunked". known_coding() rejects unknown ones.
6. llhttp stops parsing after a request to upgrade to any protocol. end_head() makes a request for
   another protocol than WebSocket an ordinary one.

If a seventh correction is needed, a strict parser of heads is simpler than llhttp with corrections.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._llhttp cimport (
    F_CHUNKED, F_TRANSFER_ENCODING, HPE_OK, HPE_PAUSED, HTTP_REQUEST, llhttp_execute,
    llhttp_get_error_pos, llhttp_get_error_reason, llhttp_init, llhttp_resume,
    llhttp_settings_init, llhttp_settings_t, llhttp_should_keep_alive, llhttp_t,
)
from mgloop.http.wire._requestheaders cimport (
    HEADER_CONTENT_TYPE, HEADER_EXPECT, HEADER_FORWARDED, HEADER_HOST, HEADER_PLAIN,
    HEADER_TRANSFER_ENCODING, HEADER_UPGRADE, LONGEST_KNOWN, HeaderSink, KnownHeader, known_header,
)
from mgloop.http.wire._site cimport mgl_is_host, mgl_is_method, mgl_lower

import re
import sys


cdef extern from "strings.h":
    int strncasecmp(const char *first, const char *second, size_t n) noexcept


cdef enum:
    MOST_CODINGS = 16           # most transfer codings of one message
    EXTENSIONS = 4096           # most bytes of extensions of one chunk
    ALL_EXTENSIONS = 16 << 10   # most bytes of extensions of one message, beyond its body's size

cdef dict METHODS = {
    name.encode(): sys.intern(name)
    for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")}
cdef str GET = "GET"
cdef str POST = "POST"
#: The transfer codings that are accepted before "chunked". The application receives the body still
#: encoded.
cdef frozenset CODINGS = frozenset({b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress",
                                    b"identity"})
#: The headers that are rejected in a trailer, because the message has been framed and routed before
#: its trailer arrives.
cdef frozenset NO_TRAILERS = frozenset({
    b"host", b"content-length", b"transfer-encoding", b"trailer", b"te", b"connection"})
#: Match the blanks around ";" and "=" in the first line of a chunk. Three other things are matched
#: too, and left unchanged: a quoted string, a string without its closing quote, and blanks
#: elsewhere. If the pattern did not match these, the regular expression engine would try a new
#: match at each of their bytes, which takes quadratic time.
cdef object BLANKS = re.compile(
    rb'("(?:[^"\\\r\n]|\\.)*"?)|[ \t]*([;=])[ \t]*|([ \t]+)')


# --- llhttp's callbacks --------------------------------------------------------------------------
# They return 0, HPE_PAUSED to make llhttp return, -1 if the message is not acceptable, or -2 with
# an exception set.

cdef int on_message_begin(llhttp_t *llhttp) except -2:
    cdef HeadParser parser = <HeadParser>llhttp.data
    cdef HeaderSink sink = parser.sink
    parser.forget_head()
    parser.in_head = True
    return sink.begin_head()


cdef int on_token(llhttp_t *llhttp, const char *at, size_t length) except -2:
    return (<HeadParser>llhttp.data).extend_token(at, length)


cdef int on_url_complete(llhttp_t *llhttp) except -2:
    cdef HeadParser parser = <HeadParser>llhttp.data
    parser.target = parser.end_token()
    return 0


cdef int on_version(llhttp_t *llhttp, const char *at, size_t length) except -2:
    """Reject the message unless exactly " HTTP/" lies between the target and the version number."""
    cdef HeadParser parser = <HeadParser>llhttp.data
    cdef Py_ssize_t place = parser.offset + (at - parser.data)
    if parser.target is not None and parser.target_end:
        if place - parser.target_end != 6:
            return -1
        parser.target_end = 0
    return 0


cdef int on_header_field_complete(llhttp_t *llhttp) except -2:
    return (<HeadParser>llhttp.data).end_name()


cdef int on_header_value_complete(llhttp_t *llhttp) except -2:
    return (<HeadParser>llhttp.data).end_header()


cdef int on_headers_complete(llhttp_t *llhttp) except -2:
    return (<HeadParser>llhttp.data).end_head()


cdef int on_chunk_header(llhttp_t *llhttp) except -2:
    cdef HeadParser parser = <HeadParser>llhttp.data
    parser.extension_len = 0
    parser.is_last_chunk = llhttp.content_length == 0
    return 0


cdef int on_chunk_extension(llhttp_t *llhttp, const char *at, size_t length) except -2:
    cdef HeadParser parser = <HeadParser>llhttp.data
    parser.extension_len += length
    parser.extensions_len += length
    if parser.extension_len > EXTENSIONS \
            or parser.extensions_len > ALL_EXTENSIONS + parser.body_total:
        return parser.reject(400, "chunk extensions too long")
    return 0


cdef int on_chunk_complete(llhttp_t *llhttp) except -2:
    cdef HeadParser parser = <HeadParser>llhttp.data
    if parser.is_last_chunk:
        return 0
    parser.at_chunk_line = True
    return HPE_PAUSED


cdef int on_body(llhttp_t *llhttp, const char *at, size_t length) except -2:
    """Note the part of the body. The pause after each chunk ensures that only one is pending."""
    cdef HeadParser parser = <HeadParser>llhttp.data
    parser.events |= MGL_BODY_PART
    parser.body = at
    parser.body_len = length
    parser.body_total += length
    return 0


cdef int on_message_complete(llhttp_t *llhttp) except -2:
    (<HeadParser>llhttp.data).events |= MGL_MESSAGE_END
    return HPE_PAUSED


cdef bint is_word(const char *text, Py_ssize_t n, const char *lower, Py_ssize_t length) noexcept:
    """Return whether a text of `n` bytes is the word `lower` of `length` bytes, in any case."""
    return n == length and strncasecmp(text, lower, n) == 0


cdef llhttp_settings_t settings
llhttp_settings_init(&settings)
settings.on_message_begin = on_message_begin
settings.on_url = on_token
settings.on_version = on_version
settings.on_header_field = on_token
settings.on_header_value = on_token
settings.on_url_complete = on_url_complete
settings.on_header_field_complete = on_header_field_complete
settings.on_header_value_complete = on_header_value_complete
settings.on_headers_complete = on_headers_complete
settings.on_chunk_header = on_chunk_header
settings.on_chunk_complete = on_chunk_complete
settings.on_chunk_extension_name = on_chunk_extension
settings.on_chunk_extension_value = on_chunk_extension
settings.on_body = on_body
settings.on_message_complete = on_message_complete


# --- the parser ----------------------------------------------------------------------------------

@cython.final
cdef class HeadParser:
    """Parse the bytes of one HTTP/1 connection into events: heads, parts of bodies, ends."""

    def __cinit__(self):
        llhttp_init(&self.llhttp, HTTP_REQUEST, &settings)
        self.llhttp.data = <void *>self

    cdef int parse(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1:
        cdef int error
        cdef Py_ssize_t start = 0
        used[0] = 0
        if self.method is None:
            self.parse_method(data, n, used)
            if self.failure is not None:
                return MGL_INVALID
            start = used[0]
            if start == n:
                return 0
            data += start
            n -= start
        if self.in_head and self.target is None and data[0] == b" " and not self.token_len \
                and self.partial_token is None:
            self.reject(400, "extra whitespace after method")
            return MGL_INVALID
        self.events = 0
        self.data = data
        error = self.run_llhttp(data, n, used)
        self.offset += used[0]
        used[0] += start
        if error == HPE_OK:
            if self.token_len:
                self.save_token()
        elif error != HPE_PAUSED:
            if self.failure is None:
                reason = llhttp_get_error_reason(&self.llhttp).decode("ascii", "replace")
                self.failure = (400, reason)
            self.events |= MGL_INVALID
        return self.events

    cdef int run_llhttp(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1:
        """Run llhttp until it finds an event, with parse_chunk_line() for the start of a chunk.

        Return llhttp's error code: HPE_OK if all data has been parsed, or HPE_PAUSED if `used`
        bytes have been parsed.
        """
        cdef int error
        cdef Py_ssize_t done = 0, line
        used[0] = n
        while True:
            if self.at_chunk_line:
                if done == n:
                    return HPE_OK
                error = self.parse_chunk_line(data + done, n - done, &line)
                if error != HPE_OK:
                    return error
                done += line
            error = llhttp_execute(&self.llhttp, data + done, n - done)
            if error != HPE_PAUSED:
                return error
            llhttp_resume(&self.llhttp)
            done = llhttp_get_error_pos(&self.llhttp) - data
            if self.events:
                used[0] = done
                return error

    cdef int parse_chunk_line(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1:
        """Remove the blanks around ";" and "=" in a chunk's first line, and let llhttp parse it.

        A line without blanks is left to the caller. RFC 9112, 7.1.1, requires a recipient to remove
        the blanks, and llhttp rejects them. An incomplete line is buffered. Return llhttp's error
        code, or -1 after reject().
        """
        cdef const char *end = <const char *>memchr(data, b"\n", n)
        cdef Py_ssize_t length = n if end is NULL else end + 1 - data
        cdef bytes line
        used[0] = 0
        if end is not NULL and self.chunk_line is None \
                and memchr(data, b" ", length) is NULL and memchr(data, b"\t", length) is NULL:
            self.at_chunk_line = False
            return HPE_OK
        used[0] = length
        self.chunk_line = gather(self.chunk_line, data, length)
        if len(self.chunk_line) > EXTENSIONS:
            return self.reject(400, "chunk extensions too long")
        if end is NULL:
            return HPE_OK
        line = BLANKS.sub(rb"\1\2\3", gathered(self.chunk_line))
        self.at_chunk_line = False
        self.chunk_line = None
        return llhttp_execute(&self.llhttp, PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line))

    # --------------------------------------------------------------------- method ----

    cdef int parse_method(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1:
        """Read the method and the space after it, or set `failure`.

        llhttp treats only CONNECT in a special way. So it is given POST in place of every other
        method, and all methods reach the application. CONNECT is rejected, because an application
        cannot open a tunnel, but would seem to have opened one if it responded with 200.
        """
        cdef Py_ssize_t start, i = 0
        cdef bytes token
        cdef bint ends
        if self.partial_token is None and not self.leading_crlf and n >= 5:
            if memcmp(data, b"GET ", 4) == 0:
                used[0] = 4
                return self.begin_message(GET)
            if memcmp(data, b"POST ", 5) == 0:
                used[0] = 5
                return self.begin_message(POST)
        while not self.partial_token and i < n and self.leading_crlf < 2 \
                and <unsigned char>data[i] == (10 if self.leading_crlf else 13):     # "\r\n"
            self.leading_crlf += 1
            i += 1
        start = i
        while i < n and i - start <= 20 and data[i] != b" ":
            i += 1
        used[0] = n
        token = PyBytes_FromStringAndSize(data + start, i - start)
        if self.partial_token is not None:
            token = self.partial_token + token
        ends = i < n and data[i] == b" "
        if ends or PyBytes_GET_SIZE(token) > 2 or self.leading_crlf == 1 and start < n:
            if not mgl_is_method(PyBytes_AS_STRING(token), PyBytes_GET_SIZE(token)) \
                    or self.leading_crlf == 1 or token == b"PRI":
                self.reject(400, "invalid method")
                return 0
        if i == n:
            self.in_head = PyBytes_GET_SIZE(token) > 0      # an empty line does not start a request
            self.partial_token = token
            return 0
        used[0] = i + 1
        self.partial_token = None
        if token == b"CONNECT":
            self.reject(501, "CONNECT is not supported")
            return 0
        method = METHODS.get(token)
        return self.begin_message(token.decode() if method is None else method)

    cdef int begin_message(self, str method) except -1:
        if llhttp_execute(&self.llhttp, b"POST ", 5) != HPE_OK:
            self.reject(400, "data after the last request")
            return 0
        self.method = method
        self.offset = 0
        return 0

    # --------------------------------------------------------------------- tokens ----

    cdef int extend_token(self, const char *at, size_t length) except -2:
        """Add bytes to the present token, and check the limits."""
        self.head_len += length
        if self.head_len > self.site.limit_head:
            return self.reject(431, "request head too large")
        if self.target is None and self.in_head and self.head_len > self.site.limit_line:
            return self.reject(414, "request line too long")
        if self.token_len == 0:
            self.token = at
        elif self.token + self.token_len != at:
            return self.reject(400, "folded header line")
        self.token_len += length
        self.token_total += length
        if self.target is None:
            self.target_end = self.offset + (at + length - self.data)
        if self.token_total > self.site.limit_field and self.target is not None:
            return self.reject(431, "header too large")
        return 0

    cdef int save_token(self) except -1:
        """Copy the beginning of a token whose end is not in this data."""
        self.partial_token = gather(self.partial_token, self.token, self.token_len)
        self.token_len = 0
        return 0

    cdef bytes end_token(self):
        """Return the token, whose end has been read."""
        cdef bytes token
        self.token_total = 0
        if self.partial_token is not None:
            if self.token_len:
                self.save_token()
            token = gathered(self.partial_token)
            self.partial_token = None
        else:
            token = PyBytes_FromStringAndSize(self.token, self.token_len)
            self.token_len = 0
        return token

    cdef bytes whole_token(self):
        """Return the token, whose end has been read, or None if all of it is at `token`."""
        return None if self.partial_token is None else self.end_token()

    # ----------------------------------------------------------- headers and heads ----

    cdef int end_name(self) except -1:
        """Store the name of a header, whose end has been read."""
        cdef bytes whole = self.whole_token()
        cdef const char *text = self.token if whole is None else PyBytes_AS_STRING(whole)
        cdef Py_ssize_t n = self.token_len if whole is None else PyBytes_GET_SIZE(whole)
        cdef char lower[LONGEST_KNOWN]
        self.token_len = self.token_total = 0
        self.name_len = n
        self.known = NULL
        if 0 < n <= LONGEST_KNOWN:
            mgl_lower(lower, text, n)
            self.known = known_header(lower, n)
        if self.known is NULL:
            self.header_name = PyBytes_FromStringAndSize(NULL, n)
            mgl_lower(PyBytes_AS_STRING(self.header_name), text, n)
        return 0

    cdef int end_header(self) except -2:
        """Check the header whose value has been read, and pass it on."""
        cdef const KnownHeader *known = self.known
        cdef bytes name = self.header_name
        cdef bytes whole = self.whole_token()
        cdef const char *value = self.token if whole is None else PyBytes_AS_STRING(whole)
        cdef Py_ssize_t n = self.token_len if whole is None else PyBytes_GET_SIZE(whole)
        cdef HeaderSink sink
        self.token_len = self.token_total = 0
        self.header_name = None
        self.head_len += 4
        if self.name_len + 4 + n > self.site.limit_field:
            return self.reject(431, "header too large")
        while n and (value[n - 1] == b" " or value[n - 1] == b"\t"):
            n -= 1      # llhttp removes leading blanks only
        if not self.in_head:    # a trailer, which is dropped: ASGI cannot express it
            if known is not NULL:
                name = <bytes>known.name
            return self.reject(400, "framing header in trailers") if name in NO_TRAILERS else 0
        self.header_count += 1
        if self.header_count > self.site.limit_headers:
            return self.reject(431, "too many headers")
        if known is not NULL and known.kind != HEADER_PLAIN and self.interpret(known, value, n) < 0:
            return -1
        sink = self.sink
        return sink.add_header(known, name, value, n)

    cdef int interpret(self, const KnownHeader *known, const char *value, Py_ssize_t n) except -2:
        """Note the meaning of a header for the head. Return -1 after reject()."""
        if known.kind == HEADER_HOST:
            self.host_count += 1
            if not mgl_is_host(value, n):
                return self.reject(400, "invalid Host header")
        elif known.kind == HEADER_CONTENT_TYPE:
            self.content_type_count += 1
        elif known.kind == HEADER_FORWARDED:
            self.forwarded = True
        elif known.kind == HEADER_TRANSFER_ENCODING:
            if not is_word(value, n, b"chunked", 7):
                coding = PyBytes_FromStringAndSize(value, n)
                self.coding = coding if self.coding is None else self.coding + b"," + coding
        elif known.kind == HEADER_EXPECT:
            if not is_word(value, n, b"100-continue", 12):
                return self.reject(417, "unsupported Expect header")
            self.expects_continue = True
        elif known.kind == HEADER_UPGRADE:
            if is_word(value, n, b"websocket", 9):
                self.upgrades_to_websocket = True
        else:
            # Content_Length or Transfer_Encoding: a CGI or WSGI gateway would map it to the same
            # environment variable as the real header.
            return self.reject(400, "Content_Length" if known.length == 14 else "Transfer_Encoding")
        return 0

    cdef int end_head(self) except -2:
        """Check the head. Make llhttp pause before the first line of a chunk."""
        self.in_head = False
        self.http_10 = self.llhttp.http_minor == 0
        if self.llhttp.http_major == 0:
            return self.reject(400, "unsupported HTTP version")
        if self.llhttp.http_major != 1 or self.llhttp.http_minor > 1:
            return self.reject(505, "unsupported HTTP version")
        if self.host_count != 1 and (self.host_count > 1 or not self.http_10):
            return self.reject(400, "missing or multiple Host headers")
        if self.content_type_count > 1:
            return self.reject(400, "multiple Content-Type headers")
        if self.llhttp.flags & F_TRANSFER_ENCODING:
            if self.http_10:
                return self.reject(400, "Transfer-Encoding in an HTTP/1.0 request")
            if self.coding is not None and not self.known_coding():
                return self.reject(501, "unsupported transfer coding")
        elif self.llhttp.content_length > <unsigned long long>self.site.limit_body:
            return self.reject(413, "request body too large")
        self.keep_alive = llhttp_should_keep_alive(&self.llhttp)
        self.has_body = self.llhttp.flags & F_TRANSFER_ENCODING != 0 \
            or self.llhttp.content_length > 0
        self.wants_websocket = (
            self.llhttp.upgrade and self.upgrades_to_websocket and self.method is GET
            and not self.http_10 and self.site.wsgi is None)
        if not self.wants_websocket:
            # An upgrade to another protocol is ignored (RFC 9110, 7.8, allows that), and the
            # request is an ordinary one. Without this line llhttp would stop parsing after it.
            self.llhttp.upgrade = 0
        self.at_chunk_line = self.llhttp.flags & F_CHUNKED != 0
        self.events |= MGL_HEAD_READ
        return HPE_PAUSED if self.at_chunk_line else 0

    cdef bint known_coding(self) except -1:
        """Return whether all transfer codings before "chunked" are registered ones of HTTP."""
        # If there are more codings, the last item still contains a comma and is not found.
        names = [name.strip().lower() for name in self.coding.split(b",", MOST_CODINGS)]
        for name in names:
            if name not in CODINGS and name != b"chunked":
                return False
        return True

    cdef int reject(self, int status, str reason) except -2:
        self.failure = (status, reason)
        return -1

    cdef int end_message(self) except -1:
        # An idle connection must not keep the memory of a head.
        self.head_len = 0
        self.method = None
        self.target = None
        self.leading_crlf = 0
        return 0

    cdef int forget_head(self) except -1:
        self.token_len = 0
        self.partial_token = self.header_name = self.target = None
        self.head_len = self.header_count = 0
        self.coding = None
        self.host_count = self.content_type_count = 0
        self.token_total = self.body_total = self.extensions_len = 0
        self.in_head = self.expects_continue = self.forwarded = False
        self.wants_websocket = self.upgrades_to_websocket = False
        return 0
