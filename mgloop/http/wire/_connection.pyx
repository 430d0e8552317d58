# SPDX-License-Identifier: GPL-2.0-only
"""An HTTP/1 connection: parse the bytes of a stream into requests, one at a time.

The module is native because every byte of a request passes through it.  Connection is an ordinary
asyncio.Protocol, which works over any transport of any loop.  It runs on the thread of its loop.

llhttp parses the messages.  This module rejects messages that llhttp accepts although RFC 9112
forbids them: a request without exactly one Host, a version other than 1.0 and 1.1, an unknown
transfer coding, a folded header line.  All lenient modes of llhttp are off.

The table in the .pxd defines the state that follows each event.  The application starts after all
data of one read has been parsed, so that a small body is already there when the application calls
receive().  The next request is not parsed before the response to the present one is complete.
Data that arrives before then is buffered up to a limit, and reading pauses at that limit.

Lifetime: the transport and the site each hold a reference until connection_lost().
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcmp

from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._llhttp cimport (
    F_CHUNKED, F_TRANSFER_ENCODING, HPE_OK, HPE_PAUSED, HTTP_REQUEST, llhttp_execute,
    llhttp_get_error_pos, llhttp_get_error_reason, llhttp_init, llhttp_resume,
    llhttp_settings_init, llhttp_settings_t, llhttp_should_keep_alive, llhttp_t,
)
from mgloop.http.wire._body cimport BODY_RECEIVING
from mgloop.http.wire._request cimport Request
from mgloop.http.wire._response cimport MGL_HELD, BaseConnection, Response, mgl_clock_ns
from mgloop.http.wire._site cimport (
    MGL_BODY, MGL_HEAD, MGL_KEEP_ALIVE, MGL_LINGER, MGL_TAIL, MGL_WRITE, Site, closing_response,
    mgl_coarse_time, mgl_deadline_unset, mgl_is_host, mgl_is_method, mgl_lower, mgl_unquote,
)

import logging
import re
import sys
from http import HTTPStatus

from . import _peer


cdef extern from "Python.h":
    bint PyBytes_CheckExact(object o)
    enum:
        PY_SSIZE_T_MAX


cdef enum:
    AHEAD = 64 << 10            # bytes of pipelined requests at which reading pauses
    DISCARD = 1 << 20           # most bytes of a body that are discarded after its response
    MOST_CODINGS = 16           # most transfer codings of one message
    EXTENSIONS = 4096           # most bytes of extensions of one chunk
    MAX_REQUESTS = 64           # most requests of one connection before others are served
    ALL_EXTENSIONS = 16 << 10   # most bytes of extensions of one message, beyond its body's size

cdef object log = logging.getLogger("mgloop.http")

cdef str TYPE = sys.intern("type")
cdef str ASGI = sys.intern("asgi")
cdef str HTTP_VERSION = sys.intern("http_version")
cdef str SERVER = sys.intern("server")
cdef str CLIENT = sys.intern("client")
cdef str SCHEME = sys.intern("scheme")
cdef str METHOD = sys.intern("method")
cdef str ROOT_PATH = sys.intern("root_path")
cdef str PATH = sys.intern("path")
cdef str RAW_PATH = sys.intern("raw_path")
cdef str QUERY_STRING = sys.intern("query_string")
cdef str HEADERS = sys.intern("headers")
cdef str STATE = sys.intern("state")
cdef str EXTENSIONS_KEY = sys.intern("extensions")
cdef dict METHODS = {
    name.encode(): sys.intern(name)
    for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")}
cdef str GET = "GET"
cdef str POST = "POST"
cdef str HEAD = "HEAD"
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
# They return 0, -1 if the message is not acceptable, or -2 with an exception set.

cdef int on_message_begin(llhttp_t *parser) except -2:
    cdef Connection connection = <Connection>parser.data
    connection.forget_head()
    connection.in_head = True
    return 0


cdef int on_piece(llhttp_t *parser, const char *at, size_t length) except -2:
    return (<Connection>parser.data).take_piece(at, length)


cdef int on_chunk_extension(llhttp_t *parser, const char *at, size_t length) except -2:
    cdef Connection connection = <Connection>parser.data
    connection.extension_len += length
    connection.extensions_len += length
    if connection.extension_len > EXTENSIONS \
            or connection.extensions_len > ALL_EXTENSIONS + connection.payload:
        return connection.fail(400, "chunk extensions too long")
    return 0


cdef int on_chunk_header(llhttp_t *parser) except -2:
    cdef Connection connection = <Connection>parser.data
    connection.extension_len = 0
    connection.last_chunk = parser.content_length == 0
    return 0


cdef int on_chunk_complete(llhttp_t *parser) except -2:
    cdef Connection connection = <Connection>parser.data
    if connection.last_chunk:
        return 0
    connection.at_chunk = True
    return HPE_PAUSED


cdef int on_url_complete(llhttp_t *parser) except -2:
    cdef Connection connection = <Connection>parser.data
    connection.url = connection.piece()
    return 0


cdef int on_version(llhttp_t *parser, const char *at, size_t length) except -2:
    """Reject the message unless exactly " HTTP/" lies between the target and the version number.

    llhttp accepts any number of spaces there.
    """
    cdef Connection connection = <Connection>parser.data
    cdef Py_ssize_t place = connection.offset + (at - connection.origin)
    if connection.url is not None and connection.target_end:
        if place - connection.target_end != 6:
            return -1
        connection.target_end = 0
    return 0


cdef int on_header_field_complete(llhttp_t *parser) except -2:
    cdef Connection connection = <Connection>parser.data
    connection.name = connection.lowered()
    return 0


cdef int on_header_value_complete(llhttp_t *parser) except -2:
    return (<Connection>parser.data).header_ended()


cdef int on_headers_complete(llhttp_t *parser) except -2:
    return (<Connection>parser.data).head_ended()


cdef int on_body(llhttp_t *parser, const char *at, size_t length) except -2:
    return (<Connection>parser.data).body_came(at, length)


cdef int on_message_complete(llhttp_t *parser) except -2:
    (<Connection>parser.data).message_ended()
    return HPE_PAUSED


cdef llhttp_settings_t settings
llhttp_settings_init(&settings)
settings.on_message_begin = on_message_begin
settings.on_url = on_piece
settings.on_version = on_version
settings.on_header_field = on_piece
settings.on_header_value = on_piece
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


cdef struct Share:
    # The share of the loop's time that one call of feed() has used.
    int requests
    double began


cdef bint is_used_up(Share *share) noexcept:
    """Return whether the next request must wait until other connections have been served.

    feed() calls it before each request. It returns True after MAX_REQUESTS requests, or after a
    tick of the coarse clock (1 to 10 ms).
    """
    share.requests += 1
    if share.requests == 1:
        return False
    if share.requests == 2:
        share.began = mgl_coarse_time()
        return False
    return share.requests > MAX_REQUESTS or mgl_coarse_time() != share.began


cdef class Connection(BaseConnection):
    """Serve one HTTP/1 connection of `site`, as an asyncio.Protocol."""

    def __cinit__(self, *args, **kwargs):
        self.state = MGL_GONE
        llhttp_init(&self.parser, HTTP_REQUEST, &settings)
        self.parser.data = <void *>self

    def __init__(self, Site site not None):
        self.site = site
        self.state = MGL_READS_HEAD

    # ----------------------------------------------------------- asyncio.Protocol ----

    def connection_made(self, transport):
        """Start to serve the transport; respond with 503 above the limit of connections."""
        cdef Site site = self.site
        self.transport = transport
        self.write = transport.write
        self.over_tls = transport.get_extra_info("sslcontext") is not None
        site.attach(self)
        self.handshake = None
        if 0 < site.limit_connections < len(site.members):
            self.refuse(503, "too many connections")
        else:
            self.timed = True
            self.set_deadline(MGL_HEAD)

    def data_received(self, data):
        """Parse the next bytes of the stream, or buffer them while a request is being answered."""
        if not PyBytes_CheckExact(data):
            data = bytes(data)
        if self.ahead is None:
            self.feed(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        elif self.state < MGL_LINGERS:
            self.keep(data)     # _go_on() parses it together with the data before it

    def eof_received(self):
        """Let the transport close: ASGI treats a client that has ended its side as disconnected."""
        return False

    def connection_lost(self, exc):
        """Release everything, and notify the application that the client has disconnected."""
        cdef Request request = self.request
        self.lost = True
        self.enter(MGL_ON_LOSS)
        mgl_deadline_unset(&self.deadline)
        mgl_deadline_unset(&self.write_deadline)
        self.request = self.unbegun = None
        self.ahead = None
        self.forget_head()
        self.writable.wake_all()
        if request is not None:
            request.disconnect()
        self.site.detach(self)

    def pause_writing(self):
        """Make send() wait, because the client does not read the response."""
        self.paused_writing = True
        self.watch_writing()

    def resume_writing(self):
        """Let send() continue, because the client reads again."""
        self.paused_writing = False
        if self.state != MGL_GONE:      # after close() the timeout runs until the last byte is sent
            mgl_deadline_unset(&self.write_deadline)
        self.writable.wake_all()
        if self.ahead is not None and self.state == MGL_READS_HEAD:
            self.schedule_go_on()

    cdef int watch_writing(self) except -1:
        """Start the timeout within which the client must acknowledge some of the data written."""
        if self.state == MGL_LINGERS:
            return 0    # its own deadline checks the progress already
        self.unsent = _peer.waiting(self.transport)
        self.progress_at = mgl_coarse_time()
        return self.set_deadline(MGL_WRITE)

    # -------------------------------------------------------------------- reading ----

    cdef int feed(self, const char *data, Py_ssize_t n) except -1:
        """Parse the data, and start its requests.

        Data that may not be parsed yet is buffered. If one read holds many requests, other
        connections are served between them.
        """
        cdef Py_ssize_t used
        cdef Share share = Share(0, 0)
        self.feeding = True
        try:
            while n > 0 and self.state < MGL_LINGERS:
                # While the client does not read the earlier responses, no request is started: its
                # response would only add to the buffer.
                if self.state == MGL_HAS_REQUEST or self.paused_writing \
                        and self.state == MGL_READS_HEAD and not self.in_head:
                    self.keep(data[:n])
                    break
                if self.method is None:
                    if self.state == MGL_READS_HEAD and not self.in_head and is_used_up(&share):
                        self.keep(data[:n])
                        self.schedule_go_on()
                        break
                    self.take_method(data, n, &used)
                else:
                    self.one_message(data, n, &used)
                data += used
                n -= used
        finally:
            self.feeding = False
        self.set_time()
        return 0

    cdef int keep(self, bytes data) except -1:
        """Buffer the data until the response to the present request is complete."""
        if self.ahead is None:
            self.ahead = data
        else:
            self.ahead = gather(self.ahead, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if len(self.ahead) >= AHEAD:
            self.pause_reading()
        return 0

    cdef int schedule_go_on(self) except -1:
        if not self.go_on_due:
            self.site.call_soon(self._go_on)
            self.go_on_due = True
        return 0

    cdef int set_time(self) except -1:
        """Set the deadline for the data that the client has to send next, if any."""
        if self.site.closing:
            # A response that was in progress when the shutdown began may have ended just now, or a
            # body that is being discarded.
            self.begin_shutdown()
        if self.state == MGL_READS_HEAD:
            if self.timed:
                return 0
            if self.ahead is not None:
                mgl_deadline_unset(&self.deadline)  # the next request is here
                return 0
            if self.in_head:
                self.timed = True
                self.set_deadline(MGL_HEAD)
            elif self.paused_writing:
                self.set_deadline(MGL_KEEP_ALIVE)   # watch_writing() checks the progress already
            else:
                self.watch_rest(MGL_KEEP_ALIVE)
        elif self.state == MGL_READS_BODY or self.state == MGL_DISCARDS:
            if self.request is not None and self.request.expects_continue:
                mgl_deadline_unset(&self.deadline)  # the client waits for the application
            elif not self.paused_reading:
                self.time_body()
        elif self.state == MGL_HAS_REQUEST:
            mgl_deadline_unset(&self.deadline)
        return 0

    cdef int time_body(self) except -1:
        """Set the deadline for the next data of the body.

        Chunk extensions and trailers do not extend this deadline, because a client could send them
        one byte at a time forever. They have the timeout of a head.
        """
        if self.payload != self.payload_timed:
            self.payload_timed = self.payload
            self.timed = False
            self.set_deadline(MGL_BODY)
        elif not self.timed and self.site.deadlines.lasts[MGL_HEAD] > 0:
            self.timed = True
            self.set_deadline(MGL_HEAD)
        return 0

    cdef int one_message(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1:
        """Parse until the end of the message or of the data; store the bytes parsed in `used`."""
        cdef int error
        cdef object failure
        if data[0] == b" " and self.in_head and self.url is None and not self.at_len \
                and self.carry is None:
            self.refuse(400, "extra whitespace after method")
            return 0
        self.origin = data
        error = self.parse(data, n, used)
        self.offset += n
        if error == HPE_OK:
            if self.at_len:
                self.keep_piece()
        elif error == HPE_PAUSED:
            if self.wants_websocket:
                self.upgrade(data + used[0], n - used[0])
                used[0] = n
                return 0
            llhttp_resume(&self.parser)
        else:
            self.unbegun = None
            failure, self.failure = self.failure, None
            if failure is None:
                failure = (400, llhttp_get_error_reason(&self.parser).decode("ascii", "replace"))
            self.refuse(failure[0], failure[1])
            return 0
        if self.unbegun is not None:
            self.begin_request()
        elif self.request is not None and self.request.receivers is not None:
            if self.request.body_len or self.request.body_state != BODY_RECEIVING:
                self.request.receivers.wake_all()
        if self.request is not None and self.state == MGL_READS_BODY \
                and self.request.body_len >= self.site.body_buffer:
            self.pause_reading()
        return 0

    cdef int parse(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1:
        """Run llhttp_execute(), with the first line of each chunk going through take_chunk_line().

        Return llhttp's error code. HPE_PAUSED means the end of a message; the pause before a
        chunk's first line is handled here.
        """
        cdef int error
        cdef Py_ssize_t done = 0, line
        used[0] = n
        while True:
            if self.at_chunk:
                error = self.take_chunk_line(data + done, n - done, &line)
                if error != HPE_OK:
                    return error
                done += line
            error = llhttp_execute(&self.parser, data + done, n - done)
            if error != HPE_PAUSED:
                return error
            done = llhttp_get_error_pos(&self.parser) - data
            if not self.at_chunk:
                used[0] = done
                return error
            llhttp_resume(&self.parser)

    cdef int take_chunk_line(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1:
        """Remove the blanks around ";" and "=" in a chunk's first line before llhttp parses it.

        RFC 9112, 7.1.1, requires a recipient to remove them, and llhttp rejects them. An incomplete
        line is buffered. Return llhttp's error code, or -1 after fail().
        """
        cdef const char *end = <const char *>memchr(data, b"\n", n)
        cdef Py_ssize_t length = n if end is NULL else end + 1 - data
        cdef bytes line
        used[0] = 0
        if end is not NULL and self.chunk_line is None \
                and memchr(data, b" ", length) is NULL and memchr(data, b"\t", length) is NULL:
            self.at_chunk = False
            return HPE_OK
        used[0] = length
        self.chunk_line = gather(self.chunk_line, data, length)
        if len(self.chunk_line) > EXTENSIONS:
            return self.fail(400, "chunk extensions too long")
        if end is NULL:
            return HPE_OK
        line = BLANKS.sub(rb"\1\2\3", gathered(self.chunk_line))
        self.at_chunk = False
        self.chunk_line = None
        return llhttp_execute(&self.parser, PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line))

    cdef int take_method(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1:
        """Read the method and the space after it.

        llhttp accepts only the methods of a list, and treats only CONNECT in a special way. So it
        is given POST in place of every other method, and all methods reach the application. CONNECT
        is rejected, because an application cannot open a tunnel, but would seem to have opened one
        if it responded with 200.
        """
        cdef Py_ssize_t start, i = 0
        cdef bytes token
        cdef bint ends
        if self.carry is None and not self.blank and n >= 5:
            if memcmp(data, b"GET ", 4) == 0:
                used[0] = 4
                return self.begin_message(GET)
            if memcmp(data, b"POST ", 5) == 0:
                used[0] = 5
                return self.begin_message(POST)
        while not self.carry and i < n and self.blank < 2 \
                and <unsigned char>data[i] == (10 if self.blank else 13):     # "\r\n"
            self.blank += 1
            i += 1
        start = i
        while i < n and i - start <= 20 and data[i] != b" ":
            i += 1
        used[0] = n
        token = PyBytes_FromStringAndSize(data + start, i - start)
        if self.carry is not None:
            token = self.carry + token
        ends = i < n and data[i] == b" "
        if ends or PyBytes_GET_SIZE(token) > 2 or self.blank == 1 and start < n:
            if not mgl_is_method(PyBytes_AS_STRING(token), PyBytes_GET_SIZE(token)) \
                    or self.blank == 1 or token == b"PRI":
                self.refuse(400, "invalid method")
                return 0
        if i == n:
            self.in_head = PyBytes_GET_SIZE(token) > 0      # an empty line does not start a request
            self.carry = token
            return 0
        used[0] = i + 1
        self.carry = None
        if token == b"CONNECT":
            self.refuse(501, "CONNECT is not supported")
            return 0
        method = METHODS.get(token)
        return self.begin_message(token.decode() if method is None else method)

    cdef int begin_message(self, str method) except -1:
        if llhttp_execute(&self.parser, b"POST ", 5) != HPE_OK:
            self.refuse(400, "data after the last request")
            return 0
        self.method = method
        self.offset = 0
        return 0

    cdef int fail(self, int status, str reason) except -2:
        """Record why the message is not acceptable, and return -1 for a callback of the parser."""
        self.failure = (status, reason)
        return -1

    cdef int take_piece(self, const char *at, size_t length) except -2:
        self.head_len += length
        if self.head_len > self.site.limit_head:
            return self.fail(431, "request head too large")
        if self.url is None and self.in_head and self.head_len > self.site.limit_line:
            return self.fail(414, "request line too long")
        if self.at_len == 0:
            self.at = at
        elif self.at + self.at_len != at:
            return self.fail(400, "folded header line")
        self.at_len += length
        self.piece_len += length
        if self.url is None:
            self.target_end = self.offset + (at + length - self.origin)
        if self.piece_len > self.site.limit_field and self.url is not None:
            return self.fail(431, "header too large")
        return 0

    cdef int keep_piece(self) except -1:
        """Copy the beginning of a token whose end is not in this data."""
        self.carry = gather(self.carry, self.at, self.at_len)
        self.at_len = 0
        return 0

    cdef bytes piece(self):
        """Return the token (a name, a value or the target) that has been read."""
        cdef bytes piece
        self.piece_len = 0
        if self.carry is not None:
            if self.at_len:
                self.keep_piece()
            piece = gathered(self.carry)
            self.carry = None
        else:
            piece = PyBytes_FromStringAndSize(self.at, self.at_len)
            self.at_len = 0
        return piece

    cdef bytes lowered(self):
        cdef bytes piece, lower
        cdef const char *source
        cdef Py_ssize_t n
        self.piece_len = 0
        if self.carry is not None:
            piece = self.piece()
            source = PyBytes_AS_STRING(piece)
            n = PyBytes_GET_SIZE(piece)
        else:
            source = self.at
            n = self.at_len
            self.at_len = 0
        lower = PyBytes_FromStringAndSize(NULL, n)
        mgl_lower(PyBytes_AS_STRING(lower), source, n)
        return lower

    cdef int header_ended(self) except -2:
        cdef bytes name = self.name
        cdef bytes value = self.piece()
        cdef Py_ssize_t n = PyBytes_GET_SIZE(value)
        self.name = None
        self.head_len += 4
        if n and (PyBytes_AS_STRING(value)[n - 1] == 32 or PyBytes_AS_STRING(value)[n - 1] == 9):
            value = value.rstrip(b" \t")    # llhttp removes leading blanks only
        if PyBytes_GET_SIZE(name) + 4 + n > self.site.limit_field:
            return self.fail(431, "header too large")
        if not self.in_head:    # a trailer, which is dropped: ASGI cannot express it
            return self.fail(400, "framing header in trailers") if name in NO_TRAILERS else 0
        self.headers.append((name, value))
        if len(self.headers) > self.site.limit_headers:
            return self.fail(431, "too many headers")
        # Content_Length and Transfer_Encoding, with an underscore, are rejected: a CGI or WSGI
        # gateway would map them to the same environment variables as the real headers.
        n = PyBytes_GET_SIZE(name)
        if n == 4:
            if name == b"host":
                self.hosts += 1
                if not mgl_is_host(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)):
                    return self.fail(400, "invalid Host header")
        elif n == 6:
            if name == b"expect":
                if value.lower() != b"100-continue":
                    return self.fail(417, "unsupported Expect header")
                self.expects_continue = True
        elif n == 9:
            if name == b"forwarded":
                self.forwarded = True
        elif n == 12:
            if name == b"content-type":
                self.types += 1
        elif n == 14:
            if PyBytes_AS_STRING(name)[7] == b"_" and name == b"content_length":
                return self.fail(400, "Content_Length")
        elif n == 15:
            if name == b"x-forwarded-for":
                self.forwarded = True
        elif n == 17:
            if name == b"x-forwarded-proto":
                self.forwarded = True
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                self.coding = value if self.coding is None else self.coding + b"," + value
            elif name == b"transfer_encoding":
                return self.fail(400, "Transfer_Encoding")
        return 0

    cdef int head_ended(self) except -2:
        cdef Request request
        cdef Site site = self.site
        cdef bint http_10 = self.parser.http_minor == 0
        self.in_head = self.timed = False
        if self.parser.http_major == 0:
            return self.fail(400, "unsupported HTTP version")
        if self.parser.http_major != 1 or self.parser.http_minor > 1:
            return self.fail(505, "unsupported HTTP version")
        if self.hosts != 1 and (self.hosts > 1 or not http_10):
            return self.fail(400, "missing or multiple Host headers")
        if self.types > 1:
            return self.fail(400, "multiple Content-Type headers")
        if self.parser.flags & F_TRANSFER_ENCODING:
            if http_10:
                return self.fail(400, "Transfer-Encoding in an HTTP/1.0 request")
            if self.coding is not None and not self.known_coding():
                return self.fail(501, "unsupported transfer coding")
        elif self.parser.content_length > <unsigned long long>site.limit_body:
            return self.fail(413, "request body too large")
        request = Request.__new__(Request)
        request.connection = self
        request.is_head = self.method is HEAD
        request.http_10 = http_10
        request.keep_alive = llhttp_should_keep_alive(&self.parser)
        request.expects_continue = self.expects_continue and not http_10
        request.scope = self.make_scope()
        if request.scope is None:
            return -1
        self.request = self.unbegun = request
        self.enter(MGL_ON_HEAD)
        if self.parser.upgrade:
            self.wants_websocket = self.is_websocket()
            if not self.wants_websocket:
                # An upgrade to another protocol is ignored (RFC 9110, 7.8, allows that), and the
                # request is an ordinary one. Without this line llhttp would stop parsing after it.
                self.parser.upgrade = 0
            elif self.parser.flags & F_TRANSFER_ENCODING or self.parser.content_length > 0:
                return self.fail(400, "WebSocket handshake with a body")
        if self.parser.flags & F_CHUNKED:
            self.at_chunk = True
            return HPE_PAUSED
        return 0

    cdef bint known_coding(self) except -1:
        """Return whether all transfer codings before "chunked" are registered ones of HTTP."""
        # If there are more codings, the last item still contains a comma and is not found.
        names = [name.strip().lower() for name in self.coding.split(b",", MOST_CODINGS)]
        for name in names:
            if name not in CODINGS and name != b"chunked":
                return False
        return True

    cdef int body_came(self, const char *at, size_t length) except -2:
        cdef Request request = self.request
        self.payload += length
        if request is None:
            self.discarded += length
            if self.discarded > DISCARD:
                return self.fail(413, "unread request body too large")
            return 0
        if request.body_total + <Py_ssize_t>length > self.site.limit_body:
            return self.fail(413, "request body too large")
        request.add_body(at, length)
        return 0

    cdef int message_ended(self) except -1:
        self.enter(MGL_ON_END)
        self.timed = False
        self.head_len = 0
        self.method = None
        self.url = self.headers = None      # an idle connection must not keep their memory
        self.blank = 0
        if self.request is not None:
            self.request.body_ended()
        return 0

    cdef int forget_head(self) except -1:
        self.at_len = 0
        self.carry = self.name = self.url = None
        self.headers = []
        self.head_len = 0
        self.coding = None
        self.hosts = self.types = 0
        self.discarded = self.piece_len = self.payload = self.extensions_len = 0
        self.payload_timed = -1
        self.in_head = self.expects_continue = self.wants_websocket = self.forwarded = False
        return 0

    # ---------------------------------------------------------------------- scope ----

    cdef dict make_scope(self):
        """Return the ASGI scope of the request whose head has been read, or None after fail()."""
        cdef Site site = self.site
        cdef dict scope, extensions
        if self.common_scope is None:
            self.check_peer()
        scope = self.common_scope.copy()    # a third of the cost of setting each key separately
        scope[CLIENT] = self.client
        scope[ASGI] = site.versions.copy()
        if self.parser.http_minor == 0:
            scope[HTTP_VERSION] = "1.0"
        scope[METHOD] = self.method
        if not self.split_target(scope):
            return None
        scope[HEADERS] = self.headers
        if site.state is not None:
            scope[STATE] = site.state.copy()
        scope[EXTENSIONS_KEY] = extensions = site.own_extensions()
        if self.tls is not None:
            extensions["tls"] = self.tls | {"client_cert_chain": [*self.tls["client_cert_chain"]]}
        if self.forwarded and self.trusted:
            site.proxy(scope)
        return scope

    cdef bint split_target(self, dict scope) except -1:
        """Store the path and the query of the request's target in `scope`.

        Return False after fail().
        """
        cdef bytes url = self.url
        cdef const char *start = PyBytes_AS_STRING(url)
        cdef const char *end = start + PyBytes_GET_SIZE(url)
        cdef const char *at = start
        cdef const char *host = NULL
        cdef const char *query
        cdef bytes raw
        cdef char *room
        cdef Py_ssize_t n
        while at < end:
            if at[0] == b"#":
                end = at    # a fragment has a meaning for the client only, so it is dropped
                break
            if <unsigned char>at[0] <= 32 or <unsigned char>at[0] >= 127:
                self.fail(400, "invalid character in request target")
                return False
            at += 1
        if start == end or start[0] != b"/":
            start = self.path_of_absolute(start, end, &host)
            if start is NULL:
                self.fail(400, "invalid request target")
                return False
            if host is not NULL:
                self.replace_host(host[:start - host])
        query = <const char *>memchr(start, b"?", end - start)
        n = (query if query is not NULL else end) - start
        raw = PyBytes_FromStringAndSize(start, n) if n else b"/"
        start = PyBytes_AS_STRING(raw)
        n = PyBytes_GET_SIZE(raw)
        if memchr(start, b"%", n) is NULL:
            path = PyUnicode_DecodeASCII(start, n, NULL)
        else:
            room = <char *>PyMem_Malloc(n)
            if room is NULL:
                raise MemoryError
            try:
                path = PyUnicode_DecodeUTF8(room, mgl_unquote(room, start, n), "replace")
            finally:
                PyMem_Free(room)
        if self.site.root:
            path = self.site.root + path
            raw = self.site.root_path + raw
        scope[PATH] = path
        scope[RAW_PATH] = raw
        scope[QUERY_STRING] = (
            b"" if query is NULL else PyBytes_FromStringAndSize(query + 1, end - query - 1))
        return True

    cdef int replace_host(self, bytes host) except -1:
        """Replace the value of Host with the host of a target in absolute form.

        RFC 9112, 3.2.2, requires it. Otherwise a client could make a proxy that uses one of them
        and an application that uses the other disagree about the host.
        """
        others = [each for each in self.headers if each[0] != b"host"]
        self.headers = [(b"host", host), *others]
        return 0

    cdef const char *path_of_absolute(
            self, const char *start, const char *end, const char **host) noexcept:
        """Find the path of a target that does not start with "/".

        The target is a URL (http://host/path), and `host` is then set to the start of its host, or
        it is the "*" of an OPTIONS request. Return the start of the path or of the "*", or NULL if
        the target is neither.
        """
        cdef const char *at
        if end - start == 1 and start[0] == b"*":
            return start if self.method == "OPTIONS" else NULL
        at = <const char *>memchr(start, b":", end - start)
        if at is NULL or end - at < 4 or at[1] != b"/" or at[2] != b"/":
            return NULL
        at += 3
        host[0] = at
        while at < end and at[0] != b"/" and at[0] != b"?":
            at += 1
        return at if mgl_is_host(host[0], at - host[0]) else NULL

    cdef int check_peer(self) except -1:
        """Find out the addresses, the TLS details and the scheme, once for all requests."""
        cdef Site site = self.site
        cdef str scheme = "https" if self.over_tls else "http"
        self.client, server, self.tls = _peer.describe(self.transport)
        if self.ends is not None:
            self.client, server = self.ends
        if site.proxy is not None:
            self.trusted = site.proxy.everybody if self.unnamed \
                else site.proxy.trusts_peer(self.client)
        self.common_scope = site.common_scope
        if self.common_scope is None or self.common_scope[SERVER] != server \
                or self.common_scope[SCHEME] != scheme:
            self.common_scope = {
                TYPE: "http", ASGI: None, HTTP_VERSION: "1.1", SERVER: server, CLIENT: None,
                SCHEME: scheme, METHOD: None, ROOT_PATH: site.root, PATH: None, RAW_PATH: None,
                QUERY_STRING: None, HEADERS: None,
            }
            if site.state is not None:
                self.common_scope[STATE] = None
            self.common_scope[EXTENSIONS_KEY] = None
            site.common_scope = self.common_scope
        return 0

    # ------------------------------------------------------------------- requests ----

    cdef int begin_request(self) except -1:
        """Start the application for the request that has just been read."""
        cdef Request request = self.unbegun
        cdef Site site = self.site
        self.unbegun = None
        if site.access_log is not None:
            request.began = mgl_clock_ns()
        if 0 < site.limit_concurrency <= site.in_flight:
            log.warning("Exceeded concurrency limit.")
            self.refuse(503, "too many concurrent requests")
            return 0
        site.in_flight += 1
        site.count_request()
        request.start_task()
        return 0

    cdef int answered(self, Response response, bint keep_alive) except -1:
        if self.request is not response:
            return 0
        self.request = None
        if not keep_alive:
            self.finish(self.state != MGL_HAS_REQUEST or self.ahead is not None)
        else:
            self.enter(MGL_ON_ANSWER)
            if self.feeding:
                return 0    # feed() continues with the next request
            if self.ahead is not None:
                self.schedule_go_on()
            else:
                self.resume_reading()
                self.set_time()
        return 0

    def _go_on(self):
        """Parse the pipelined data after a response, unless the client does not read responses."""
        cdef bytes ahead
        self.go_on_due = False
        if self.ahead is None or self.state != MGL_READS_HEAD or self.paused_writing:
            return
        ahead = gathered(self.ahead)
        self.ahead = None
        self.resume_reading()
        self.feed(PyBytes_AS_STRING(ahead), PyBytes_GET_SIZE(ahead))

    cdef int wants_more(self, Response response) except -1:
        # During sendfile() over TLS, asyncio puts a protocol of its own in place of this one. That
        # protocol cannot receive data, so reading stays paused until the file has been sent.
        if self.request is response and self.paused_reading and self.state == MGL_READS_BODY \
                and not response.in_file:
            self.resume_reading()
            self.set_deadline(MGL_BODY)
        return 0

    cdef int pause_reading(self) except -1:
        if not self.paused_reading:
            self.paused_reading = True
            self.transport.pause_reading()
            mgl_deadline_unset(&self.deadline)
        return 0

    cdef int resume_reading(self) except -1:
        if self.paused_reading:
            self.paused_reading = False
            # asyncio calls data_received() in the context in which resume_reading() was called.
            # Here that would be the context of a request.
            self.site.context.copy().run(self.transport.resume_reading)
        return 0

    # ------------------------------------------------------------------ WebSocket ----

    cdef bint is_websocket(self) except -1:
        """Return whether the request asks for a WebSocket: GET in HTTP/1.1 with that Upgrade."""
        for name, value in self.headers:
            if name == b"upgrade" and value.lower() == b"websocket":
                return self.method is GET and self.parser.http_minor == 1
        return False

    cdef int upgrade(self, const char *data, Py_ssize_t n) except -1:
        """Hand the connection over to a WebSocket, with the `n` bytes of `data` after the head."""
        from . import _upgrade

        cdef dict scope = self.request.scope
        self.request = self.unbegun = None
        problem = _upgrade.check(scope)
        if problem is None and self.site.closing:
            problem = (503, "server is shutting down")
        if problem is not None:
            self.refuse(problem[0], problem[1])
            return 0
        self.enter(MGL_ON_LOSS)
        mgl_deadline_unset(&self.deadline)
        mgl_deadline_unset(&self.write_deadline)
        # Attach the WebSocket before detaching this connection: a site without members counts as
        # drained.
        _upgrade.hand_over(self.site, self.transport, scope, data[:n], self.paused_writing)
        self.site.detach(self)
        return 0

    # --------------------------------------------------------------------- ending ----

    cdef int enter(self, int event) except -1:
        self.state = mgl_next_state(self.state, event)
        return 0

    cdef int finish(self, bint more_comes) except -1:
        """End the connection after the last response.

        A close() makes the kernel send a reset if received data has not been read, or if data
        arrives after it. The reset can overtake the response. So only the sending side is closed,
        and the connection lingers in MGL_LINGERS, if the client has sent data that is unread or may
        still send: if `more_comes` is true, or while it is receiving the response. A transport that
        cannot close its sending side, as over TLS, is closed.
        """
        self.ahead = None
        if self.over_tls or not self.transport.can_write_eof() or not (
                more_comes or self.transport.get_write_buffer_size()
                or _peer.unread(self.transport)):
            return self.close_transport()
        self.enter(MGL_ON_LAST_ANSWER)
        self.resume_reading()
        if not self.transport.is_closing():
            _peer.end_writing(self.transport)
        mgl_deadline_unset(&self.write_deadline)
        return self.watch_end() if self.site.closing else self.watch_rest(MGL_LINGER)

    cdef int close_transport(self) except -1:
        """Close the transport, with a timeout.

        The transport's close() would wait forever for a client that reads nothing, and over TLS for
        one that does not answer close_notify.
        """
        self.enter(MGL_ON_LOSS)
        mgl_deadline_unset(&self.deadline)
        self.transport.close()
        if self.lost:
            return 0
        return self.watch_end() if self.site.closing else self.watch_rest(MGL_WRITE)

    cdef int watch_end(self) except -1:
        """Set the short deadline of a shutdown, within which the client must close or read more."""
        mgl_deadline_unset(&self.write_deadline)
        self.unsent = _peer.waiting(self.transport)
        self.progress_at = mgl_coarse_time()
        return self.set_deadline(MGL_LINGER)

    cdef int restart_deadlines(self) except -1:
        if self.state == MGL_LINGERS or self.state == MGL_GONE and not self.lost:
            return self.watch_end()
        if self.paused_writing:
            self.watch_writing()
        if self.state == MGL_READS_BODY and self.deadline.before is not NULL:
            self.set_deadline(MGL_BODY)
        return 0

    cdef int watch_rest(self, int kind) except -1:
        """Set a deadline that checks how much of the data written is still unacknowledged.

        Call it when nothing more is written for now. The first check always counts as progress.
        """
        self.unsent = PY_SSIZE_T_MAX
        self.progress_at = mgl_coarse_time()
        return self.set_deadline(kind)

    cdef int cut_short(self, Response response) except -1:
        """End the connection in the middle of a response, so that the client sees it is incomplete.

        If only the end of the connection marks the end of the body, reset the connection. Otherwise
        close it after the data that has been written.
        """
        if response.is_close_delimited():
            self.enter(MGL_ON_LOSS)
            _peer.reset(self.transport)
            return 0
        return self.close_transport()

    cdef int cut(self) except -1:
        """Abort the connection, with a reset if part of a response is lost.

        Without the reset the client could take the part that it has received for the whole.
        """
        if self.lost:
            return 0
        if self.transport.get_write_buffer_size() \
                or self.request is not None and self.request.is_close_delimited():
            _peer.reset(self.transport)
        else:
            self.transport.abort()
        return 0

    cdef int refuse(self, int status, str reason) except -1:
        """Send an error response, if none has been sent yet, and end the connection."""
        cdef Request request = self.request
        self.request = self.unbegun = None
        if self.lost:
            return 0
        if self.state == MGL_DISCARDS:      # the response is complete
            return self.finish(True)
        if 400 <= status < 500:
            log.warning("Invalid HTTP request received: %s", reason)
        if request is not None and request.state > MGL_HELD:
            request.disconnect()
            return self.cut_short(request)
        body = f"{status} {HTTPStatus(status).phrase}: {reason}\n".encode()
        if request is not None:
            request.refused(status, len(body))
        self.write(closing_response(status, body, self.site.headers_now()))
        return self.finish(True)

    cdef int write_failed(self, object exc) except -1:
        # Abort first, because logging may fail, too. The client must not wait for a lost response.
        self.transport.abort()
        log.debug("cannot write: %s", exc)
        return 0

    cdef int timed_out(self, int kind) except -1:
        if kind == MGL_KEEP_ALIVE or kind == MGL_TAIL:
            self.idle_for_long()
        elif kind == MGL_HEAD and self.state == MGL_READS_HEAD and not self.in_head:
            self.close_transport()
        elif kind != MGL_HEAD and kind != MGL_BODY:
            if not self.still_taken(kind):
                self.cut()
        elif self.request is not None and self.request.in_file:
            self.set_deadline(MGL_BODY)     # sendfile() reads nothing, so the body may have arrived
        else:
            self.refuse(408, "request timed out")
        return 0

    cdef int idle_for_long(self) except -1:
        """Close the connection after its keep-alive time, unless it has not been idle for so long.

        A client that is still receiving the last response is not idle. One that has received the
        end of it since the last check gets the keep-alive time again.
        """
        cdef Py_ssize_t before = self.unsent
        if self.paused_writing:
            return self.set_deadline(MGL_TAIL)      # the write timeout decides
        if self.still_taken(MGL_TAIL):
            return 0
        if self.unsent > 0:
            return self.cut()
        if 0 < before < PY_SSIZE_T_MAX:
            return self.set_deadline(MGL_KEEP_ALIVE)
        return self.close_transport()

    cdef bint still_taken(self, int kind) except -1:
        """Return whether the client still makes progress in receiving; extend its deadline then."""
        cdef Py_ssize_t unsent = _peer.waiting(self.transport)
        cdef double limit = self.site.timeout_write
        cdef double now = mgl_coarse_time()
        if unsent < self.unsent:
            self.progress_at = now
        self.unsent = unsent
        if kind != MGL_WRITE and unsent == 0 or 0 < limit <= now - self.progress_at + 0.01:
            return False
        self.set_deadline(kind)
        return True

    def begin_shutdown(self):
        """Close the connection unless a request has arrived, whose response is then the last one.

        An incomplete head is dropped.
        """
        if self.state == MGL_READS_HEAD and (self.in_head or self.ahead is None):
            self.finish(False)
        elif self.state == MGL_DISCARDS:
            self.finish(True)

    def cancel(self):
        """Close the connection immediately."""
        self.enter(MGL_ON_LOSS)
        self.cut()
