# SPDX-License-Identifier: GPL-2.0-only
"""An HTTP/1 connection: serve the requests of one stream of bytes, one at a time.

The module is native because every byte of a request passes through it. Connection is an ordinary
asyncio.Protocol, which works over any transport of any loop. It runs on the thread of its loop.

The parser (_parser.pyx) turns the bytes into events. The table in the .pxd defines the state that
follows each of them. The application starts after all data of one read has been parsed, so that a
small body is already there when the application calls receive(). The next request is not parsed
before the response to the present one is complete. Data that arrives before then is buffered up to
a limit, and reading pauses at that limit.

Lifetime: the transport and the site each hold a reference until connection_lost().
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._parser cimport (
    MGL_BODY_PART, MGL_HEAD_READ, MGL_INVALID, MGL_MESSAGE_END, HeadParser,
)
from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._response cimport MGL_HELD, BaseConnection, Response, mgl_clock_ns
from mgloop.http.wire._scope cimport scope_factory
from mgloop.http.wire._site cimport (
    MGL_BODY, MGL_HEAD, MGL_KEEP_ALIVE, MGL_LINGER, MGL_TAIL, MGL_WRITE, Site, closing_response,
    mgl_coarse_time, mgl_deadline_unset,
)

import logging
import sys
from http import HTTPStatus

from . import _peer


cdef extern from "Python.h":
    bint PyBytes_CheckExact(object o)
    enum:
        PY_SSIZE_T_MAX


cdef enum:
    MOST_PIPELINED = 64 << 10   # bytes of pipelined requests at which reading pauses
    MOST_DISCARDED = 1 << 20    # most bytes of a body that are discarded after its response
    MAX_REQUESTS = 64           # most requests of one connection before others are served

cdef object logger = logging.getLogger("mgloop.http")
cdef str HEAD = sys.intern("HEAD")


cdef struct TimeSlice:
    # The part of the loop's time that one call of feed() has used.
    int requests
    double began


cdef bint is_used_up(TimeSlice *time_slice) noexcept:
    """Return whether the next request must wait until other connections have been served.

    feed() calls it before each request. It returns True after MAX_REQUESTS requests, or after a
    tick of the coarse clock (1 to 10 ms).
    """
    time_slice.requests += 1
    if time_slice.requests == 1:
        return False
    if time_slice.requests == 2:
        time_slice.began = mgl_coarse_time()
        return False
    return time_slice.requests > MAX_REQUESTS or mgl_coarse_time() != time_slice.began


# The class, and so the file, is long because every method depends on the state: the state decides
# about reading, about each deadline and about the way in which the connection ends.
cdef class Connection(BaseConnection):
    """Serve one HTTP/1 connection of `site`, as an asyncio.Protocol."""

    def __cinit__(self, *args, **kwargs):
        self.state = MGL_GONE
        self.parser = HeadParser.__new__(HeadParser)

    def __init__(self, Site site not None):
        self.site = self.parser.site = site
        self.state = MGL_READS_HEAD

    # ----------------------------------------------------------- asyncio.Protocol ----

    def connection_made(self, transport):
        """Start to serve the transport; respond with 503 above the limit of connections."""
        cdef Site site = self.site
        self.use_transport(transport)
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
        if self.pipelined is None:
            self.feed(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        elif self.state < MGL_LINGERS:
            self.buffer_pipelined(data)     # _parse_pipelined() parses it with the data before it

    def eof_received(self):
        """Let the transport close: ASGI treats a client that has ended its side as disconnected."""
        return False

    def connection_lost(self, exc):
        """Release everything, and notify the application that the client has disconnected."""
        cdef RequestBody request = self.request
        self.lost = True
        self.enter(MGL_ON_LOSS)
        mgl_deadline_unset(&self.deadline)
        mgl_deadline_unset(&self.write_deadline)
        self.request = self.unstarted = None
        self.pipelined = None
        self.parser.forget_head()
        self.writable.wake_all()
        if request is not None:
            request.disconnect()
        self.site.detach(self)

    def pause_writing(self):
        """Make send() wait, because the client does not read the response."""
        self.paused_writing = True
        self.watch_write_progress()

    def resume_writing(self):
        """Let the application continue, because the client reads again."""
        self.paused_writing = False
        if self.state != MGL_GONE:      # after close() the timeout runs until the last byte is sent
            mgl_deadline_unset(&self.write_deadline)
        self.writable.wake_all()
        if self.request is not None:
            self.request.output_resumed()
        if self.pipelined is not None and self.state == MGL_READS_HEAD:
            self.schedule_parsing()

    cdef int watch_write_progress(self) except -1:
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
        cdef TimeSlice time_slice = TimeSlice(0, 0)
        cdef bint between_requests
        self.feeding = True
        try:
            while n > 0 and self.state < MGL_LINGERS:
                between_requests = self.state == MGL_READS_HEAD and not self.parser.in_head
                # While the client does not read the earlier responses, no request is started: its
                # response would only add to the buffer.
                if self.state == MGL_HAS_REQUEST or self.paused_writing and between_requests:
                    self.buffer_pipelined(data[:n])
                    break
                if between_requests and is_used_up(&time_slice):
                    self.buffer_pipelined(data[:n])
                    self.schedule_parsing()
                    break
                self.parse_message(data, n, &used)
                data += used
                n -= used
        finally:
            self.feeding = False
        self.set_read_deadline()
        return 0

    cdef int buffer_pipelined(self, bytes data) except -1:
        """Buffer the data until the response to the present request is complete."""
        if self.pipelined is None:
            self.pipelined = data
        else:
            self.pipelined = gather(
                self.pipelined, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if len(self.pipelined) >= MOST_PIPELINED:
            self.pause_reading()
        return 0

    cdef int schedule_parsing(self) except -1:
        if not self.parsing_due:
            self.site.call_soon(self._parse_pipelined)
            self.parsing_due = True
        return 0

    cdef int set_read_deadline(self) except -1:
        """Set the deadline for the data that the client has to send next, if any."""
        if self.site.closing:
            # A response that was in progress when the shutdown began may have ended just now, or a
            # body that is being discarded.
            self.begin_shutdown()
        if self.state == MGL_READS_HEAD:
            if self.timed:
                return 0
            if self.pipelined is not None:
                mgl_deadline_unset(&self.deadline)  # the next request is here
                return 0
            if self.parser.in_head:
                self.timed = True
                self.set_deadline(MGL_HEAD)
            elif self.paused_writing:
                self.set_deadline(MGL_KEEP_ALIVE)   # the write timeout decides
            else:
                self.watch_unsent(MGL_KEEP_ALIVE)
        elif self.state == MGL_READS_BODY or self.state == MGL_DISCARDS:
            if self.request is not None and self.request.expects_continue:
                mgl_deadline_unset(&self.deadline)  # the client waits for the application
            elif not self.paused_reading:
                self.set_body_deadline()
        elif self.state == MGL_HAS_REQUEST:
            mgl_deadline_unset(&self.deadline)
        return 0

    cdef int set_body_deadline(self) except -1:
        """Set the deadline for the next data of the body.

        Chunk extensions and trailers do not extend this deadline, because a client could send them
        one byte at a time forever. They have the timeout of a head.
        """
        if self.parser.body_total != self.timed_total:
            self.timed_total = self.parser.body_total
            self.timed = False
            self.set_deadline(MGL_BODY)
        elif not self.timed and self.site.deadlines.lasts[MGL_HEAD] > 0:
            self.timed = True
            self.set_deadline(MGL_HEAD)
        return 0

    cdef int parse_message(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1:
        """Parse until the end of the message or of the data; store the bytes parsed in `used`."""
        cdef Py_ssize_t parsed
        cdef int events = 0
        used[0] = 0
        if self.requests is None:
            self.requests = self.request_factory()
            self.parser.sink = self.requests.sink
        while used[0] < n and not events & MGL_MESSAGE_END:
            events = self.parser.parse(data + used[0], n - used[0], &parsed)
            used[0] += parsed
            if events & MGL_HEAD_READ and not self.head_read() \
                    or events & MGL_BODY_PART and not self.body_part_read() \
                    or events & MGL_INVALID:
                used[0] = n
                return self.refuse(self.parser.failure[0], self.parser.failure[1])
        if events & MGL_MESSAGE_END:
            self.message_ended()
            if self.parser.wants_websocket:
                self.upgrade(data + used[0], n - used[0])
                used[0] = n
                return 0
        return self.data_parsed()

    cdef bint head_read(self) except -1:
        """Create the request of the head; return False if the parser has rejected the head."""
        cdef HeadParser head = self.parser
        cdef RequestBody request
        self.timed = False
        self.discarded = 0
        self.timed_total = -1
        request = self.requests.make_request(head)
        if request is None:
            return False
        request.connection = self
        request.is_head = head.method is HEAD       # the parser interns the usual methods
        request.http_10 = head.http_10
        request.keep_alive = head.keep_alive
        request.expects_continue = head.expects_continue and not head.http_10
        self.request = self.unstarted = request
        self.enter(MGL_ON_HEAD)
        if head.wants_websocket and head.has_body:
            head.reject(400, "WebSocket handshake with a body")
            return False
        return True

    cdef RequestFactory request_factory(self):
        """Return the object that makes the requests of this connection."""
        cdef RequestFactory factory
        if self.site.wsgi is not None:
            factory = self.site.wsgi.request_factory(
                self.transport, self.over_tls, self.ends, self.unnamed)
        else:
            factory = scope_factory(
                self.site, self.transport, self.over_tls, self.ends, self.unnamed)
        if self.site.handler is not None:
            factory = self.site.handler.request_factory(
                factory, self.transport, self.over_tls, self.ends, self.unnamed)
        return factory

    cdef bint body_part_read(self) except -1:
        """Give the part of the body to the request; return False if the body is too large."""
        cdef HeadParser parser = self.parser
        cdef RequestBody request = self.request
        cdef Py_ssize_t length = parser.body_len
        if request is None:
            self.discarded += length
            if self.discarded > MOST_DISCARDED:
                parser.reject(413, "unread request body too large")
                return False
        elif request.body_total + length > self.site.limit_body:
            parser.reject(413, "request body too large")
            return False
        else:
            try:
                request.add_body(parser.body, length)
            except OSError:     # the disk with the temporary files is full
                logger.exception("Cannot store a request body.")
                parser.reject(507, "cannot store the request body")
        return parser.failure is None

    cdef int message_ended(self) except -1:
        self.enter(MGL_ON_END)
        self.timed = False
        self.parser.end_message()
        if self.request is not None:
            self.request.body_ended()
        return 0

    cdef int data_parsed(self) except -1:
        """Start the request that has been read, or give its application the body so far."""
        if self.unstarted is not None:
            if self.unstarted.may_begin():
                self.begin_request()
        elif self.request is not None:
            self.request.body_arrived()
        if self.request is not None and self.state == MGL_READS_BODY \
                and self.request.body_len >= self.site.body_buffer:
            self.pause_reading()
        return 0

    # ------------------------------------------------------------------- requests ----

    cdef int begin_request(self) except -1:
        """Start the application for the request that has just been read."""
        cdef RequestBody request = self.unstarted
        cdef Site site = self.site
        self.unstarted = None
        if site.access_log is not None:
            request.began = mgl_clock_ns()
        if 0 < site.limit_concurrency <= site.in_flight:
            logger.warning("Exceeded concurrency limit.")
            self.refuse(503, "too many concurrent requests")
            return 0
        site.in_flight += 1
        site.count_request()
        request.begin()
        return 0

    cdef int answered(self, Response response, bint keep_alive) except -1:
        if self.request is not response:
            return 0
        self.request = None
        if not keep_alive:
            self.finish(self.state != MGL_HAS_REQUEST or self.pipelined is not None)
        else:
            self.enter(MGL_ON_ANSWER)
            if self.feeding:
                return 0    # feed() continues with the next request
            if self.pipelined is not None:
                self.schedule_parsing()
            else:
                self.resume_reading()
                self.set_read_deadline()
        return 0

    def _parse_pipelined(self):
        """Parse the pipelined data after a response, unless the client does not read responses."""
        cdef bytes data
        self.parsing_due = False
        if self.pipelined is None or self.state != MGL_READS_HEAD or self.paused_writing:
            return
        data = gathered(self.pipelined)
        self.pipelined = None
        self.resume_reading()
        self.feed(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

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

    cdef int upgrade(self, const char *data, Py_ssize_t n) except -1:
        """Hand the connection over to a WebSocket, with the `n` bytes of `data` after the head."""
        from . import _upgrade

        cdef dict scope = self.request.scope
        self.request = self.unstarted = None
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
        self.pipelined = None
        if self.over_tls or not self.transport.can_write_eof() or not (
                more_comes or self.transport.get_write_buffer_size()
                or _peer.unread(self.transport)):
            return self.close_transport()
        self.enter(MGL_ON_LAST_ANSWER)
        self.resume_reading()
        if not self.transport.is_closing():
            _peer.end_writing(self.transport)
        mgl_deadline_unset(&self.write_deadline)
        return self.watch_shutdown() if self.site.closing else self.watch_unsent(MGL_LINGER)

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
        return self.watch_shutdown() if self.site.closing else self.watch_unsent(MGL_WRITE)

    cdef int watch_shutdown(self) except -1:
        """Set the short deadline of a shutdown, within which the client must close or read more."""
        mgl_deadline_unset(&self.write_deadline)
        self.unsent = _peer.waiting(self.transport)
        self.progress_at = mgl_coarse_time()
        return self.set_deadline(MGL_LINGER)

    cdef int restart_deadlines(self) except -1:
        if self.state == MGL_LINGERS or self.state == MGL_GONE and not self.lost:
            return self.watch_shutdown()
        if self.paused_writing:
            self.watch_write_progress()
        if self.state == MGL_READS_BODY and self.deadline.before is not NULL:
            self.set_deadline(MGL_BODY)
        return 0

    cdef int watch_unsent(self, int kind) except -1:
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
        cdef RequestBody request = self.request
        self.request = self.unstarted = None
        if self.lost:
            return 0
        if self.state == MGL_DISCARDS:      # the response is complete
            return self.finish(True)
        if 400 <= status < 500:
            logger.warning("Invalid HTTP request received: %s", reason)
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
        logger.debug("cannot write: %s", exc)
        return 0

    cdef int timed_out(self, int kind) except -1:
        if kind == MGL_KEEP_ALIVE or kind == MGL_TAIL:
            self.keep_alive_expired()
        elif kind == MGL_HEAD and self.state == MGL_READS_HEAD and not self.parser.in_head:
            self.close_transport()
        elif kind != MGL_HEAD and kind != MGL_BODY:
            if not self.makes_progress(kind):
                self.cut()
        elif self.request is not None and self.request.in_file:
            self.set_deadline(MGL_BODY)     # sendfile() reads nothing, so the body may have arrived
        else:
            self.refuse(408, "request timed out")
        return 0

    cdef int keep_alive_expired(self) except -1:
        """Close the connection after its keep-alive time, unless it has not been idle for so long.

        A client that is still receiving the last response is not idle. One that has received the
        end of it since the last check gets the keep-alive time again.
        """
        cdef Py_ssize_t before = self.unsent
        if self.paused_writing:
            return self.set_deadline(MGL_TAIL)      # the write timeout decides
        if self.makes_progress(MGL_TAIL):
            return 0
        if self.unsent > 0:
            return self.cut()
        if 0 < before < PY_SSIZE_T_MAX:
            return self.set_deadline(MGL_KEEP_ALIVE)
        return self.close_transport()

    cdef bint makes_progress(self, int kind) except -1:
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
        if self.state == MGL_READS_HEAD and (self.parser.in_head or self.pipelined is None):
            self.finish(False)
        elif self.state == MGL_DISCARDS:
            self.finish(True)

    def cancel(self):
        """Close the connection immediately."""
        self.enter(MGL_ON_LOSS)
        self.cut()
