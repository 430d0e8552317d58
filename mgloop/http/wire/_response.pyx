# SPDX-License-Identifier: GPL-2.0-only
"""One HTTP response: its head, the framing of its body, and its bytes on the way to the transport.

The module is native because it runs per request and per message, on the thread of the loop.

The parts of a response are collected in a buffer of the response (outgoing.h). The buffer is
written to the transport when the application waits, when the response is complete, or when it holds
FLUSH_AT bytes. So a head and a body that are sent one after the other leave as one segment, and so
do ten small chunks.

Python code may run while a message is processed: the garbage collector, a finalizer, or methods of
the application's objects. That code may send other messages, even for the same response. So each
message is first read, checked and measured. Then the state of the response is checked, and then C
functions that cannot fail copy the whole message.

A Request is a Response, and is alive while its task or its connection refers to it. A WebSocket has
a Response while the application rejects the handshake with one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from mgloop._awaitable cimport Waiters, Waiting
from mgloop.http.wire._headers cimport (
    HeaderInfo, as_bytes, measure_headers, plain_headers, put_headers,
)
from mgloop.http.wire._ready cimport must_yield
from mgloop.http.wire._site cimport (
    MGL_CHUNK_LINE, MGL_DECIMAL_DIGITS, Member, STATUS_LINES, mgl_out_free, mgl_out_reserve,
    mgl_outgoing, mgl_pool_give, mgl_pool_take, mgl_put, mgl_put_chunk_line, mgl_put_decimal,
    without,
)
from mgloop.transports._stream cimport Stream

import logging


cdef enum:
    FLUSH_AT = 32 << 10     # bytes in the buffer at which it is written to the transport
    COPY_BELOW = 64 << 10   # smaller parts of a body (in bytes) are copied into the buffer
    # The most bytes that end_head() adds to the site's header lines, and write_part() to a part of
    # the body.
    HEAD_END = 96 + MGL_DECIMAL_DIGITS
    CHUNK_ENDS = MGL_CHUNK_LINE + 7

cdef object logger = logging.getLogger("mgloop.http")

#: For each state of a response, the message that the application may send: for error messages.
cdef tuple EXPECTED = (
    "http.response.start", "http.response.body", "http.response.body", "http.response.trailers",
)


cdef class BaseConnection(Member):
    """The base class of connections that carry responses."""

    def __cinit__(self, *args, **kwargs):
        self.writable = Waiters.__new__(Waiters)

    cdef int use_transport(self, object transport) except -1:
        self.transport = transport
        self.write = transport.write
        self.stream = transport if isinstance(transport, Stream) else None
        return 0

    cdef int write_bytes(self, bytes data) except -1:
        cdef Stream stream = self.stream
        if stream is None:
            self.write(data)
        else:
            stream._write(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0

    cdef bint send_deferred(self) except -1:
        cdef Stream stream = self.stream
        if stream is None:  # a transport that defers writes sends them to compute the size
            return self.transport.get_write_buffer_size() or not self.transport.is_closing()
        stream.flush_pending()
        return stream.pending() or not stream.closing

    cdef int answered(self, Response response, bint keep_alive) except -1:
        raise NotImplementedError

    cdef int wants_more(self, Response response) except -1:
        raise NotImplementedError

    cdef int cut_short(self, Response response) except -1:
        raise NotImplementedError

    cdef int cut(self) except -1:
        raise NotImplementedError

    cdef int write_failed(self, object exc) except -1:
        raise NotImplementedError


cdef inline size_t head_end_size(bytes common) noexcept:
    """Return the most bytes that end_head() may need."""
    return 0 if common is None else HEAD_END + PyBytes_GET_SIZE(common)


cdef class Response:
    """Frame and buffer one response, and write it to the transport of a connection."""

    def __cinit__(self):
        self.connection = UNCONNECTED
        self.length = -1

    def __dealloc__(self):
        mgl_out_free(self.out)

    # ----------------------------------------------------------- parts of the response ----

    cdef int start(self, int status, object headers, bint trailers) except -1:
        """Put the head into the buffer, except for its end.

        trailers: whether the application has announced trailers. Raise ValueError for a status that
        is not final, and RuntimeError for invalid headers.
        """
        cdef mgl_outgoing *out
        cdef HeaderInfo info
        cdef object plain
        cdef bytes first
        if status < 200 or status > 599:
            raise ValueError(f"Invalid HTTP status code {status} in response: expected 200 to 599.")
        plain = plain_headers(headers)
        measure_headers(plain, False, &info)
        self.check_state(MGL_START, "http.response.start")
        first = <bytes>STATUS_LINES[status]
        out = self.reserve(PyBytes_GET_SIZE(first) + info.size)
        mgl_put(out, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
        put_headers(out, plain, &info)
        self.trailers = trailers
        self.hold_head(status, &info)
        return self.flush_later()

    cdef int hold_head(self, int status, HeaderInfo *info) noexcept:
        """Note the meaning of a head that is in the buffer, except for its end."""
        self.status = status
        self.length = info.length
        if self.is_head or status == 204 or status == 304:
            self.framing = FRAMING_NONE
        elif info.length >= 0:
            self.framing = FRAMING_LENGTH
        else:       # end_head() decides
            self.framing = FRAMING_CHUNKED if info.chunked else FRAMING_CLOSE
        self.has_date = info.date
        self.has_server = info.server
        if info.closes:
            self.close_after = True
        self.state = MGL_HELD
        return 0

    cdef int write_body(self, object data, bint more) except -1:
        """Write a part of the body, a bytes-like object or None; complete the response unless
        `more`.
        """
        return self.write_part(b"" if data is None else as_bytes(data), more)

    cdef int write_part(self, bytes data, bint more) except -1:
        cdef mgl_outgoing *out
        cdef bytes common = self.common_lines()
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef bint large = n >= COPY_BELOW
        self.check_state(MGL_BODY_PART, "http.response.body")
        self.check_length(n, more)
        out = self.reserve(head_end_size(common) + CHUNK_ENDS + (0 if large else n))
        self.end_head(common, n, more)
        if self.framing == FRAMING_NONE:
            n = 0
        elif self.framing == FRAMING_LENGTH:
            self.length -= n
        if n > 0:
            self.sent += n
            if self.framing == FRAMING_CHUNKED:
                mgl_put_chunk_line(out, n)
            if large:
                self.write_large(data)
            else:
                mgl_put(out, PyBytes_AS_STRING(data), n)
            if self.framing == FRAMING_CHUNKED:
                mgl_put(out, b"\r\n", 2)
        if not more:
            if self.framing == FRAMING_CHUNKED:
                mgl_put(out, b"0\r\n", 3)
            if not self.trailers:
                if self.framing == FRAMING_CHUNKED:
                    mgl_put(out, b"\r\n", 2)
                return self.complete()
            self.state = MGL_TRAILERS   # trailers are accepted even if they cannot be sent
        return self.flush() if out.len >= FLUSH_AT else self.flush_later()

    cdef int write_trailers(self, object headers, bint more) except -1:
        """Write trailers; complete the response unless `more` of them follow."""
        cdef mgl_outgoing *out
        cdef HeaderInfo info
        cdef object plain = plain_headers(headers)
        measure_headers(plain, True, &info)
        self.check_state(MGL_TRAILER, "http.response.trailers")
        if self.framing == FRAMING_CHUNKED:
            out = self.reserve(info.size + 2)
            put_headers(out, plain, &info)
            if not more:
                mgl_put(out, b"\r\n", 2)
        return 0 if more else self.complete()

    cdef int write_hint(self, object links) except -1:
        """Send a 103 Early Hints response; do nothing in HTTP/1.0, which does not define it."""
        cdef mgl_outgoing *out
        cdef HeaderInfo info
        cdef object plain
        if self.http_10:
            return 0
        plain = plain_headers([(b"link", link) for link in links])
        measure_headers(plain, True, &info)
        self.check_state(MGL_HINT, "http.response.early_hint")
        out = self.reserve(info.size + 28)
        mgl_put(out, b"HTTP/1.1 103 Early Hints\r\n", 26)
        put_headers(out, plain, &info)
        mgl_put(out, b"\r\n", 2)
        return self.flush()

    cdef int send_error(self, int status, bytes text) except -1:
        """Send a response of the server instead of the application's."""
        self.drop_head()
        self.close_after = True
        self.start(status, [(b"content-type", b"text/plain; charset=utf-8")], False)
        return self.write_part(text, False)

    # -------------------------------------------------------------------- checks ----

    cdef int check_state(self, int message, object kind) except -1:
        """Raise RuntimeError unless the message is allowed in the present state.

        Call it when no more Python code can run before the message has been written.
        """
        if self.in_file or self.writing or not mgl_may_send(self.state, message):
            self.refuse(kind)
        return 0

    cdef int refuse(self, object kind) except -1:
        """Raise RuntimeError for a message that is not allowed in the present state."""
        if self.in_file:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, while a file is being sent.")
        if self.writing:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, while another one is being written.")
        if self.state == MGL_COMPLETE:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        raise RuntimeError(f"Expected ASGI message '{EXPECTED[self.state]}', but got '{kind}'.")

    cdef int check_length(self, Py_ssize_t n, bint more) except -1:
        """Compare a part of the body, of `n` bytes, with the rest of the Content-Length.

        Raise RuntimeError if it is longer, or if it is the last part (not `more`) and shorter.
        """
        if self.framing == FRAMING_LENGTH:
            if n > self.length:
                raise RuntimeError("Response content longer than Content-Length")
            if not more and n < self.length:
                raise RuntimeError("Response content shorter than Content-Length")
        return 0

    cdef bint is_close_delimited(self) noexcept:
        """Return whether only the end of the connection marks the end of the body for the client.

        If so, the client takes a response that is cut short by a close() for a complete one.
        """
        return MGL_HELD < self.state < MGL_COMPLETE and self.framing == FRAMING_CLOSE

    # ------------------------------------------------------------- the end of the head ----

    cdef bytes common_lines(self):
        """Return the header lines that all responses of the site have.

        Date and Server are left out if the application has sent its own. Return None if the head
        has ended. May run Python code.
        """
        cdef bytes common
        if self.state != MGL_HELD:
            return None
        common = self.connection.site.headers_now()
        if self.has_date or self.has_server:
            common = without(common, self.has_date, self.has_server)
        return common

    cdef int end_head(self, bytes common, Py_ssize_t n, bint more) noexcept:
        """Write the end of a held head into the buffer; do nothing in other states.

        `n` bytes of body follow the head, and `more` says whether others come after these. The
        caller has reserved head_end_size(common) bytes.
        """
        cdef mgl_outgoing *out = self.out
        if self.state != MGL_HELD:
            return 0
        if self.framing == FRAMING_CLOSE and not more and not self.trailers:
            mgl_put(out, b"content-length: ", 16)
            mgl_put_decimal(out, n)
            mgl_put(out, b"\r\n", 2)
            self.framing = FRAMING_LENGTH
            self.length = n
        elif self.framing >= FRAMING_CHUNKED:
            if self.http_10:
                self.framing = FRAMING_CLOSE
                self.close_after = True
            else:
                self.framing = FRAMING_CHUNKED
                mgl_put(out, b"transfer-encoding: chunked\r\n", 28)
        if not self.keep_alive or self.connection.site.draining or self.expects_continue:
            self.close_after = True
        if self.close_after:
            mgl_put(out, b"connection: close\r\n", 19)
        elif self.http_10:
            mgl_put(out, b"connection: keep-alive\r\n", 24)
        mgl_put(out, PyBytes_AS_STRING(common), PyBytes_GET_SIZE(common))
        mgl_put(out, b"\r\n", 2)
        self.state = MGL_SENDING
        return 0

    cdef int drop_head(self) except -1:
        """Discard a head that is held."""
        cdef mgl_outgoing *out = self.out
        self.out = NULL
        mgl_pool_give(&self.connection.site.pool, out)
        self.state = MGL_UNSTARTED
        return 0

    # -------------------------------------------------------------------- files.send() ----

    def begin_file(self, kind, Py_ssize_t count, bint more):
        """Write everything that precedes a file in the response: for files.send().

        Return whether the file itself has to be sent: not if it is empty, and not for HEAD, 204 and
        304.
        """
        cdef mgl_outgoing *out
        cdef bytes common = self.common_lines()
        # The awaitable of send() is awaited only now. The application may have sent other messages
        # since it called send().
        self.check_state(MGL_FILE, kind)
        self.check_length(count, more)
        out = self.reserve(head_end_size(common) + MGL_CHUNK_LINE)
        self.in_file = True
        self.end_head(common, count, more)
        if self.framing == FRAMING_NONE or count == 0:
            self.flush()
            return False
        if self.framing == FRAMING_CHUNKED:
            mgl_put_chunk_line(out, count)
        self.flush()
        return True

    def end_file(self, Py_ssize_t count, bint more):
        """Write everything that follows a file of `count` bytes: for files.send()."""
        self.in_file = False
        if self.framing == FRAMING_NONE:
            count = 0
        elif self.framing == FRAMING_LENGTH:
            self.length -= count
        self.sent += count
        if self.framing == FRAMING_CHUNKED and count:
            mgl_put(self.reserve(2), b"\r\n", 2)
        if more:
            self.flush()
            self.file_ended()
        else:
            self.write_part(b"", False)

    @property
    def write_timeout(self):
        """The seconds within which the client must receive something, or None for no limit."""
        return self.connection.site.config.timeout_write or None

    @property
    def closing(self):
        """Whether the server is shutting down."""
        return self.connection.site.closing

    @property
    def transport(self):
        """The transport of the connection."""
        return self.connection.transport

    @property
    def loop(self):
        """The loop that serves the request."""
        return self.connection.site.loop

    # -------------------------------------------------------- from the buffer to the transport ----

    cdef mgl_outgoing *reserve(self, size_t size) except NULL:
        """Return the buffer, which has space for `size` more bytes."""
        if self.out is NULL:
            self.out = mgl_pool_take(&self.connection.site.pool)
        mgl_out_reserve(self.out, size)
        return self.out

    cdef int write_large(self, bytes data) except -1:
        """Write the bytes of the buffer to the transport, and then `data`, which is not copied.

        The response keeps its buffer.
        """
        cdef bytes before = self.take_buffer()
        # Not writelines(), because asyncio's in 3.12 and 3.13.0 never pauses the protocol.
        if before is None:
            return 0
        if PyBytes_GET_SIZE(before):
            self.write_now(before)
        return self.write_now(data)

    cdef bytes take_buffer(self):
        """Empty the buffer and return its bytes.

        If memory runs out, the response is lost: end the connection and return None.
        """
        cdef bytes data = None
        try:
            data = PyBytes_FromStringAndSize(self.out.data, self.out.len)
        except MemoryError as exc:
            self.connection.write_failed(exc)
        self.out.len = 0
        return data

    cdef int write_now(self, bytes data) except -1:
        """Write the data to the transport.

        The transport's write() may run Python code. Until it returns, other messages raise
        RuntimeError and flush() does nothing.
        """
        self.writing = True
        try:
            self.connection.write_bytes(data)
        except BaseException as exc:
            self.writing = False
            if not isinstance(exc, Exception):
                raise
            self.connection.write_failed(exc)
        self.writing = False
        return 0

    cdef int flush(self) except -1:
        """Write the bytes of the buffer to the transport."""
        cdef mgl_outgoing *out
        cdef bytes common, data
        if self.out is NULL or self.writing:
            return 0
        if self.state == MGL_HELD:
            common = self.common_lines()
            if self.out is NULL or self.writing or common is None:
                return 0
            self.reserve(head_end_size(common))
            self.end_head(common, -1, True)
        data = self.take_buffer()
        out = self.out
        self.out = NULL
        mgl_pool_give(&self.connection.site.pool, out)
        return self.write_now(data) if data else 0

    cdef int flush_soon(self) except -1:
        """Schedule a flush(), for messages that are sent outside of a step of the task."""
        if not self.flush_due:
            self.flush_due = True
            self.connection.site.loop.call_soon(self._flush_due)
        return 0

    def _flush_due(self):
        self.flush_due = False
        self.flush()

    cdef object wait_writable(self, bint more):
        """Return the awaitable for send(), which waits while the transport has paused writing.

        It also waits if the connection is broken (see must_yield()), until connection_lost().
        """
        cdef Draining result
        if not self.connection.lost and (
                self.connection.paused_writing
                or more and must_yield(self.connection.transport, &self.sends)):
            result = Draining.__new__(Draining)
            result.waiters = self.connection.writable
            result.wait_on(result.waiters, self.connection.site.loop)
            return result
        return self.connection.site.ready

    # --------------------------------------------------------------------- the end ----

    cdef int complete(self) except -1:
        self.state = MGL_COMPLETE
        self.flush()
        self.wake_receivers()
        if self.connection.site.access_log is not None:
            self.log_access()
        return self.connection.answered(self, not self.close_after)

    cdef int log_access(self) except -1:
        """Call the access log, once for each response."""
        if self.logged:
            return 0
        self.logged = True
        try:
            self.connection.site.access_log(
                self.scope, self.status, self.sent, (mgl_clock_ns() - self.began) * 1e-9)
        except Exception:
            logger.exception("Exception in the access log")
        return 0

    cdef int log_incomplete(self) except -1:
        """Call the access log if the response has been cut short."""
        if MGL_HELD <= self.state < MGL_COMPLETE \
                and self.connection.site.access_log is not None:
            self.log_access()
        return 0

    # --------------------------------------------------------------- for subclasses ----

    cdef int flush_later(self) except -1:
        return 0

    cdef int wake_receivers(self) except -1:
        return 0

    cdef int file_ended(self) except -1:
        return 0


# The connection of a Response that Python code has created without one.
cdef BaseConnection UNCONNECTED = BaseConnection.__new__(BaseConnection)


cdef class Draining(Waiting):
    """Wait until the transport resumes writing, or the connection is lost: returned by send()."""

    cdef Waiters waiters

    cdef object step(self, bint *returned):
        cdef object future = self.future
        if future is None or future.done():
            self.finish()
            returned[0] = True
            return None if future is None else future.result()
        returned[0] = False
        return self.suspend()

    cdef int finish(self) except -1:
        if self.future is not None:
            self.stop_waiting(self.waiters)
        return 0
