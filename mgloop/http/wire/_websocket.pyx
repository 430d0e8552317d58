# SPDX-License-Identifier: GPL-2.0-only
"""A WebSocket session between a transport and an ASGI application.

The HTTP connection hands the transport over after the upgrade request. From then on the session
owns the connection: the response to the handshake, the messages in both directions, keep-alive
pings, the closing handshake, and the task in which the application runs. The module is native
because it runs per message; _frames does the framing. WebSocket is an asyncio.Protocol for any
transport, and runs on the thread of its loop.

A table in the .pxd defines the reaction to each message in each state. The data flow is:

    peer -> application    data_received() -> FrameReader -> `queue` -> receive()
        pump() parses messages until the queue is full. The rest stays in the reader, and reading
        pauses. pump() continues when receive() has brought the queue down to half of its limit.
    application -> peer    send() -> FrameWriter -> transport.write()
        send() waits while the transport has paused writing. Pings that arrive during that time are
        answered after it, and only the last one. A peer that reads nothing for `timeout_write` is
        disconnected.

receive() returns a Receive, and send() a Send. Like a coroutine, it does its work when it is
awaited. If it need not wait, it returns without a frame and without a future.

A session ends in one of the ways below. The application receives websocket.disconnect with the code
and the reason after all messages that arrived before the end, and again at each later receive():

    close frame of the peer      its code, or 1005 without a code; the session answers it and closes
    websocket.close              the code that the application has sent; the peer has CLOSE_TIMEOUT
                                 seconds for its own close frame
    violation of the protocol    the code that is sent to the peer (1002, 1007, 1009); data of the
                                 next LINGER_TIMEOUT seconds is discarded, because an immediate
                                 close() could reset the connection before the peer has read the
                                 close frame
    no pong after a ping         1011
    begin_shutdown()             1012
    everything else              1006

An exception of the application ends its task. An exception in a callback of the transport is logged
and ends the connection. The site keeps a session alive until its task has ended and its transport
is closed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from mgloop._awaitable cimport CALL_CLOSED, CALL_CREATED, PENDING, Call, Waiters
from mgloop.http.wire._frames cimport (
    FrameReader, FrameWriter, WS_BINARY, WS_CLOSE, WS_NEED_DATA, WS_PING, WS_PONG,
    WS_TEXT, close_frame, control_frame, sendable,
)
from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._ready cimport is_leaving
from mgloop.http.wire._site cimport (
    STATUS_LINES, check_piece, closing_response, content_length, header_line, without,
)

import binascii
import contextvars
import hashlib
import http
import logging
import sys

from ... import _stdlib
from . import _peer, deflate
from ._coroutines import run_application
from ..errors import ClientDisconnected, because_client_left

logger = logging.getLogger("mgloop.http")

cdef bytes GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

# Seconds within which the peer must send its close frame, and must close the connection after a
# violation of the protocol.
cdef double CLOSE_TIMEOUT = 10.0
cdef double LINGER_TIMEOUT = 2.0
# The same during a shutdown of the server, in which it also covers pending data.
cdef double SHUTDOWN_TIMEOUT = 1.0
# Seconds from timeout_stream_shutdown on after which a shutdown cancels the application.
cdef double CANCEL_AFTER = 2.0

cdef enum:
    # Bytes of messages in the queue at which it is full, whatever their number.
    QUEUE_BYTES = 256 * 1024
    # Bytes received before the application has accepted or rejected the handshake, above which
    # reading pauses.
    EARLY_BYTES = 64 * 1024

cdef bint WRITELINES_PAUSES = _stdlib.WRITELINES_PAUSES

cdef dict KINDS = {
    "websocket.accept": MSG_ACCEPT,
    "websocket.send": MSG_SEND,
    "websocket.close": MSG_CLOSE,
    "websocket.http.response.start": MSG_START,
    "websocket.http.response.body": MSG_BODY,
}


cdef double seconds_of(object value):
    return value or 0.0


@cython.final
cdef class WebSocket:
    """Serve one WebSocket session, as an asyncio.Protocol."""

    def __cinit__(self):
        self.receivers = Waiters.__new__(Waiters)
        self.senders = Waiters.__new__(Waiters)

    def __init__(self, site, transport, scope, key, extensions, protocols):
        # `protocols` is not used: the application chooses from the list in its scope.
        cdef object config = site.config
        self.site = site
        self.loop = site.loop
        self.transport = transport
        self.scope = scope
        self.key = key
        self.extensions = extensions
        self.state = WS_CONNECTING
        self.queue = []
        self.end_reason = ""
        self.max_queue = config.ws_max_queue or sys.maxsize
        self.ping_interval = seconds_of(config.ws_ping_interval)
        self.ping_timeout = seconds_of(config.ws_ping_timeout)
        self.write_timeout = seconds_of(config.timeout_write)
        self.stream_timeout = seconds_of(config.timeout_stream_shutdown)

    def start(self, leftover=b""):
        """Start the application; `leftover` is the data that arrived after the upgrade request."""
        cdef object context, running
        self.began = self.loop.time()
        self.site.attach(self)
        self.attached = True
        if leftover:
            self.data_received(leftover)
        # The session has its own context. The call that creates the coroutine runs in it, too.
        context = contextvars.copy_context()
        try:
            running = context.run(self.site.app, self.scope, self.receive, self.send)
            self.task = self.loop.create_task(run_application(running), context=context)
        except BaseException as exc:
            self.over(exc)
            if not isinstance(exc, Exception):
                raise
        else:
            self.task.add_done_callback(self.on_task_done)

    # ---------------------------------------------------------- the application's end ----

    def receive(self):
        """Return an awaitable for the next message, as ASGI's receive()."""
        cdef Receive call = Receive.__new__(Receive)
        call.session = self
        call.state = CALL_CREATED
        return call

    def send(self, message):
        """Return an awaitable that sends the message, as ASGI's send()."""
        cdef Send call = Send.__new__(Send)
        call.session = self
        call.message = message
        call.state = CALL_CREATED
        return call

    def on_task_done(self, task):
        if task.cancelled():
            self.over(None if self.cancelled else RuntimeError(
                "The task of the WebSocket application was cancelled."))
            return
        exc = task.exception()
        if exc is None and task.result() is not None:
            logger.error("ASGI callable should return None, but returned '%s'.", task.result())
        self.over(exc)

    cdef int over(self, object exc) except -1:
        """End the session after the application has ended; `exc` is its exception, or None."""
        self.task = None
        try:
            if exc is not None and not because_client_left(exc):
                logger.error("Exception in ASGI application\n", exc_info=exc)
            elif self.state <= WS_DENYING and not (self.lost or self.cancelled):
                logger.error("ASGI callable returned without completing handshake.")
            self.queue.clear()
            self.head = 0
            self.queued_bytes = 0
            if self.lost:
                self.state = WS_CLOSED
            elif self.state == WS_CONNECTING or (
                    self.state == WS_DENYING and self.response_head is not None):
                self.refuse(500)
            elif self.state == WS_DENYING:
                # The head has been sent. The client must see that the body is incomplete.
                self.state = WS_CLOSED
                self.transport.abort()
            elif self.state == WS_OPEN:
                self.say_close(1000 if exc is None else 1011, "")
                self.end_messages(1006, "")
        except Exception:
            self.fail_hard("Exception while closing a WebSocket")
        return self.part()

    cdef object take(self):
        """Return the next message for the application, or None if it has to wait for one."""
        cdef object payload
        if not self.announced:
            self.announced = True
            return {"type": "websocket.connect"}
        if self.head < len(self.queue):
            payload = self.queue[self.head]
            self.queue[self.head] = None
            self.head += 1
            self.queued_bytes -= len(payload)
            if self.head == len(self.queue):
                self.queue.clear()
                self.head = 0
            elif self.head >= min(self.max_queue, 1024):
                del self.queue[:self.head]
                self.head = 0
            if self.reading_paused:
                self.read_on()
            if type(payload) is str:
                return {"type": "websocket.receive", "text": payload}
            return {"type": "websocket.receive", "bytes": payload}
        if self.ended:
            return {"type": "websocket.disconnect", "code": self.end_code,
                    "reason": self.end_reason}
        return None

    cdef bint put(self, object message) except -1:
        """Process a message of the application; return False if it has to wait."""
        cdef object kind = message["type"]
        cdef int number = KINDS.get(kind, MSG_UNKNOWN)
        cdef int todo
        if not self.lost and (self.state == WS_OPEN or self.state == WS_DENYING) and (
                self.writing_paused or is_leaving(self.transport, &self.sends)):
            return False
        if self.app_closed or self.lost:
            self.gone(number, kind)
            return True
        todo = reaction(number, self.state)
        if todo == DO_SEND:
            self.send_payload(message)
        elif todo == DO_ACCEPT:
            self.accept(message)
        elif todo == DO_CLOSE:
            self.close_by_app(message)
        elif todo == DO_REFUSE:
            self.app_closed = True
            self.refuse(403)
        elif todo == DO_START:
            self.start_response(message)
        elif todo == DO_BODY:
            self.continue_response(message)
        elif todo == DO_GONE:
            self.gone(number, kind)
        elif todo == DO_EXPECT_ACCEPT:
            raise RuntimeError(
                "Expected ASGI message 'websocket.accept', 'websocket.close' "
                f"or 'websocket.http.response.start' but got '{kind}'.")
        elif todo == DO_EXPECT_BODY:
            raise RuntimeError(
                f"Expected ASGI message 'websocket.http.response.body' but got '{kind}'.")
        else:
            raise RuntimeError(
                f"Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'.")
        return True

    cdef int gone(self, int message, object kind) except -1:
        """Handle a message that the application sends after the end of the session.

        Ignore the first websocket.close. Raise RuntimeError if the application has sent its last
        message already, or if the message is unknown. Raise ClientDisconnected otherwise, because
        the application may not have received the disconnect yet.
        """
        if self.app_closed:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}', after sending 'websocket.close'.")
        if message == MSG_CLOSE:
            # Many applications always send websocket.close at their end.
            self.app_closed = True
            return 0
        if message == MSG_UNKNOWN:
            raise RuntimeError(
                f"Expected ASGI message 'websocket.send' or 'websocket.close', but got '{kind}'.")
        raise ClientDisconnected("the WebSocket is closed")

    cdef int accept(self, object message) except -1:
        cdef object agreement = None
        cdef object subprotocol = message.get("subprotocol")
        cdef list head = [
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"]
        head.append(header_line(b"sec-websocket-accept", binascii.b2a_base64(
            hashlib.sha1(self.key + GUID, usedforsecurity=False).digest(), newline=False)))
        if self.site.config.ws_per_message_deflate and self.extensions:
            agreement = deflate.negotiate(self.extensions)
        if agreement is not None:
            head.append(header_line(b"sec-websocket-extensions", agreement.answer))
        if subprotocol:
            head.append(header_line(b"sec-websocket-protocol", subprotocol.encode("ascii")))
        lines, _ = self.head_lines(message.get("headers"), ())
        head += lines
        head.append(b"\r\n")
        max_size = self.site.config.ws_max_size or 0
        if agreement is None:
            self.reader = FrameReader(max_size)
            self.writer = FrameWriter()
        else:
            self.reader = FrameReader(max_size, agreement.client_bits, agreement.client_takeover)
            self.writer = FrameWriter(agreement.server_bits, agreement.server_takeover)
        self.write(b"".join(head))
        self.state = WS_OPEN
        self.extensions = None
        self.log_answer(101, 0)
        self.schedule_ping()
        if self.early is not None:
            self.reader.feed(gathered(self.early))
            self.early = None
        self.read_on()
        return 0

    cdef int send_payload(self, object message) except -1:
        cdef object payload = message.get("bytes")
        cdef list frames
        if payload is None:
            payload = message.get("text")
            if payload is None:
                return 0
            if not isinstance(payload, str):
                raise TypeError(f"'text' must be str, not {type(payload).__name__}")
        elif isinstance(payload, str):
            raise TypeError("'bytes' must be bytes, not str")
        frames = self.writer.message(payload)
        if len(frames) == 1:
            self.transport.write(frames[0])
        elif WRITELINES_PAUSES:
            self.transport.writelines(frames)
        else:
            for part in frames:
                self.transport.write(part)
        return 0

    cdef int close_by_app(self, object message) except -1:
        cdef object code = message.get("code")
        cdef object reason = message.get("reason") or ""
        if code is None:
            code = 1000
        if not isinstance(code, int) or not (code == 1005 or (
                1000 <= code < 5000 and sendable(code))):
            raise RuntimeError(f"Invalid WebSocket close code {code!r}.")
        if len(reason.encode()) > 123:
            raise RuntimeError("The reason of 'websocket.close' is longer than 123 bytes.")
        if code == 1005 and reason:
            raise RuntimeError("'websocket.close' with code 1005 cannot have a reason.")
        self.app_closed = True
        self.say_close(code, reason)
        self.end_messages(code, reason)
        return 0

    # ------------------------------------------------ a response instead of a handshake ----

    cdef int refuse(self, int status) except -1:
        """Reject the handshake with a response of the server, and close the connection."""
        cdef bytes body = b"" if status == 403 else http.HTTPStatus(status).phrase.encode()
        self.state = WS_CLOSED
        self.write(closing_response(status, body, self.site.default_headers()))
        self.end_messages(1006, "")
        self.log_answer(status, len(body))
        return self.finish_transport()

    cdef tuple head_lines(self, object given, tuple left_out):
        """Return the header lines of a response, and a dict of the application's headers.

        The lines are those of all responses of the site and those of `given`, without the names in
        `left_out`. The dict maps lower-case names of `given` to values. Raise RuntimeError for an
        invalid header, and for a second Content-Length.
        """
        cdef list lines = []
        cdef dict values = {}
        for name, value in given or ():
            lower = bytes(name).lower()
            if lower in left_out:
                continue
            if lower == b"content-length" and lower in values:
                raise RuntimeError("Too many Content-Length headers in response.")
            lines.append(header_line(bytes(name), bytes(value)))
            values[lower] = bytes(value)
        common = without(self.site.default_headers(), b"date" in values, b"server" in values)
        return [common, *lines], values

    cdef int start_response(self, object message) except -1:
        """Prepare the head of a response that rejects the handshake.

        It is sent with the first part of the body. If that is all of the body, the response gets a
        Content-Length.
        """
        cdef int status = message["status"]
        cdef long long left = -1
        if not 200 <= status < 600:
            raise RuntimeError("Invalid HTTP status code '%d' in response." % status)
        # The connection ends with this response, and that marks the end of a body without a length.
        lines, values = self.head_lines(
            message.get("headers"), (b"connection", b"transfer-encoding"))
        if b"content-length" in values:
            left = content_length(values[b"content-length"])
        lines.append(b"connection: close\r\n")
        self.response_empty = status == 204 or status == 304
        if b"content-type" not in values and not self.response_empty:
            lines.append(b"content-type: text/plain; charset=utf-8\r\n")
        self.response_head = STATUS_LINES[status] + b"".join(lines)
        self.response_left = left
        self.response_status = status
        self.state = WS_DENYING
        return 0

    cdef int continue_response(self, object message) except -1:
        cdef bytes body = bytes(message.get("body") or b"")
        cdef bint more = message.get("more_body", False)
        cdef bytes head = self.response_head
        if self.response_empty:
            body = b""
        elif self.response_left >= 0:
            check_piece(len(body), self.response_left, more)
            self.response_left -= len(body)
        elif head is not None and not more:
            head += b"content-length: %d\r\n" % len(body)
        if head is not None:
            self.response_head = None
            body = head + b"\r\n" + body
            self.log_answer(self.response_status, 0)
        if body:
            self.transport.write(body)
        if not more:
            self.app_closed = True
            self.state = WS_CLOSED
            self.end_messages(1006, "")
            self.finish_transport()
        return 0

    # -------------------------------------------------------------- the peer's end ----

    def data_received(self, data):
        self.heard = True
        if self.state == WS_CONNECTING or self.state == WS_DENYING:
            self.early = gather(
                self.early, PyBytes_AS_STRING(<bytes?>data), PyBytes_GET_SIZE(data))
            self.early_bytes += len(data)
            if self.early_bytes > EARLY_BYTES:
                self.control_reading(True)
        elif self.state == WS_OPEN or self.state == WS_CLOSING:
            try:
                self.reader.feed(data)
                self.pump()
            except Exception:
                self.fail_hard("Exception while handling WebSocket data")

    def eof_received(self):
        """Let the transport close: a peer that ends its side has nothing more to say or to read."""

    def connection_lost(self, exc):
        self.lost = True
        self.stop_pings()
        self.disarm()
        self.owed = None
        # The application still receives the messages that have arrived, and then the disconnect.
        if self.state == WS_OPEN and self.reader.has_data():
            self.pump_safely()
        else:
            self.state = WS_CLOSED
            self.end_messages(1006, "")
        self.senders.wake_all()
        self.part()

    def pause_writing(self):
        self.writing_paused = True
        if self.deadline is None and self.write_timeout > 0:
            self.arm(self.write_timeout)

    def resume_writing(self):
        self.writing_paused = False
        if self.state <= WS_OPEN:
            self.disarm()
        if self.owed is not None and self.state == WS_OPEN:
            self.write(control_frame(WS_PONG, self.owed))
        self.owed = None
        self.senders.wake_all()

    cdef bint full(self) noexcept:
        return (len(self.queue) - self.head >= self.max_queue
                or self.queued_bytes >= QUEUE_BYTES)

    cdef int pump(self) except -1:
        """Parse the received data until the queue is full, and handle its messages and frames."""
        cdef int kind
        if self.pumping:
            return 0
        self.pumping = True
        try:
            while self.state == WS_CLOSING or (self.state == WS_OPEN and not self.full()):
                kind = self.reader.advance()
                if kind == WS_TEXT or kind == WS_BINARY:
                    if self.state == WS_OPEN:
                        self.deliver(self.reader.payload)
                elif kind == WS_NEED_DATA:
                    break
                elif kind == WS_PING:
                    if self.writing_paused:
                        self.owed = self.reader.payload
                    elif self.state == WS_OPEN:
                        self.write(control_frame(WS_PONG, self.reader.payload))
                elif kind == WS_PONG:
                    self.on_pong()
                elif kind == WS_CLOSE:
                    self.peer_closed()
                else:
                    self.break_off(self.reader.code, self.reader.reason)
        finally:
            self.pumping = False
        if self.state == WS_OPEN and self.lost and not self.reader.has_data():
            self.state = WS_CLOSED
            self.end_messages(1006, "")
        return self.control_reading(self.state == WS_OPEN and self.full())

    cdef int read_on(self) except -1:
        """Continue to parse if the application has emptied the queue down to half of its limit."""
        if self.state != WS_OPEN or (
                2 * (len(self.queue) - self.head) <= self.max_queue
                and 2 * self.queued_bytes <= QUEUE_BYTES):
            self.pump_safely()
        return 0

    cdef int pump_safely(self) except -1:
        """Run pump(), and handle its exceptions: for callers unrelated to the data of the peer."""
        try:
            self.pump()
        except Exception:
            self.fail_hard("Exception while handling WebSocket data")
        return 0

    cdef int deliver(self, object payload) except -1:
        self.queue.append(payload)
        self.queued_bytes += len(payload)
        self.receivers.wake_one()
        return 0

    cdef int end_messages(self, int code, str reason) except -1:
        """Let websocket.disconnect, with the code and the reason, follow the messages in the queue.

        Wake all receive() and send() calls that wait. Do nothing if the end is set already.
        """
        if not self.ended:
            self.ended = True
            self.end_code = code
            self.end_reason = reason
            self.early = None
            self.receivers.wake_all()
            self.senders.wake_all()
        return 0

    cdef int peer_closed(self) except -1:
        cdef int code = self.reader.code
        cdef bint answered = self.state == WS_CLOSING
        self.stop_pings()
        self.state = WS_CLOSED
        if not answered:
            self.write(close_frame(code, "" if code == 1005 else self.reader.reason))
        self.end_messages(code, self.reader.reason)
        return self.finish_transport()

    cdef int say_close(self, int code, str reason) except -1:
        """Start the closing handshake: send a close frame and wait for the peer's."""
        cdef bytes frame = close_frame(code, reason)
        self.stop_pings()
        self.state = WS_CLOSING
        self.write(frame)
        if not self.lost:
            self.arm(CLOSE_TIMEOUT)
        # The data that has been received but not parsed may contain the peer's close frame.
        return self.pump_safely()

    cdef int break_off(self, int code, str reason) except -1:
        """Send a close frame after a violation of the protocol, and discard all later data."""
        cdef bint said = self.state == WS_CLOSING
        self.stop_pings()
        self.state = WS_LINGERING
        if not said:
            self.write(close_frame(code, reason))
        self.end_messages(code, reason)
        if self.lost:
            return 0
        if self.transport.can_write_eof():
            _peer.end_writing(self.transport)
            return self.arm(LINGER_TIMEOUT)
        self.state = WS_CLOSED
        return self.finish_transport()

    cdef int control_reading(self, bint pause) except -1:
        if pause == self.reading_paused or self.lost:
            return 0
        self.reading_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        return 0

    cdef int write(self, bytes data) except -1:
        if not self.lost:
            self.transport.write(data)
        return 0

    cdef int finish_transport(self) except -1:
        """Close the transport after it has written all data, or abort it if that takes too long."""
        if self.lost:
            return 0
        self.transport.close()
        return self.arm(CLOSE_TIMEOUT)

    cdef int fail_hard(self, str what) except -1:
        """Log the present exception and abort the connection; call it in an except clause."""
        logger.exception(what)
        self.stop_pings()
        self.state = WS_CLOSED
        self.end_messages(1011, "")
        self.transport.abort()
        return 0

    # ------------------------------------------------------------------ time ----

    cdef int arm(self, double seconds) except -1:
        self.disarm()
        if self.site.closing:
            seconds = min(seconds, SHUTDOWN_TIMEOUT)
        self.deadline_seconds = seconds
        self.unsent = self.transport.get_write_buffer_size()
        self.deadline = self.loop.call_later(seconds, self.on_deadline)
        return 0

    cdef int disarm(self) except -1:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        return 0

    def on_deadline(self):
        """Abort the transport if the peer has received nothing since arm(), or has not closed."""
        self.deadline = None
        if not self.site.closing and self.transport.get_write_buffer_size() < self.unsent:
            self.arm(self.deadline_seconds)
        else:
            self.transport.abort()

    cdef int stop_pings(self) except -1:
        if self.ping_timer is not None:
            self.ping_timer.cancel()
            self.ping_timer = None
        self.pinged = None
        return 0

    cdef int schedule_ping(self) except -1:
        if self.ping_interval > 0:
            self.ping_timer = self.loop.call_later(self.ping_interval, self.on_ping_timer)
        return 0

    def on_ping_timer(self):
        if self.writing_paused:         # the write timeout decides
            self.schedule_ping()
            return
        self.pings += 1
        self.pinged = self.pings.to_bytes(4, "big")
        self.heard = False
        self.write(control_frame(WS_PING, self.pinged))
        if self.ping_timeout > 0:
            self.ping_timer = self.loop.call_later(self.ping_timeout, self.on_pong_timer)
        else:
            self.schedule_ping()

    def on_pong_timer(self):
        """End the session if no pong has arrived in time.

        A peer from which other data has arrived gets more time, and so does one whose data is not
        read at present, because it may be alive.
        """
        if self.heard or self.reading_paused:
            self.heard = False
            self.ping_timer = self.loop.call_later(self.ping_timeout, self.on_pong_timer)
            return
        self.stop_pings()
        self.state = WS_CLOSED
        self.write(close_frame(1011, "keepalive ping timeout"))
        self.end_messages(1011, "keepalive ping timeout")
        # A peer that does not answer pings may not read either, so closing has a timeout.
        self.finish_transport()

    cdef int on_pong(self) except -1:
        if self.pinged is not None and self.reader.payload == self.pinged:
            self.pinged = None
            if self.ping_timeout > 0:
                self.ping_timer.cancel()
                self.schedule_ping()
        return 0

    # ------------------------------------------------------------------ the site ----

    def begin_shutdown(self):
        """Notify the peer and the application that the server is shutting down."""
        if self.stream_timeout > 0 and self.task is not None and self.last_call is None:
            self.last_call = self.loop.call_later(
                self.stream_timeout + CANCEL_AFTER, self.cancel_late)
        try:
            if self.state == WS_CONNECTING:
                self.end_messages(1012, "")
                self.refuse(503)
            elif self.state == WS_OPEN:
                self.say_close(1012, "")
                self.end_messages(1012, "")
            elif self.deadline is not None:
                self.arm(SHUTDOWN_TIMEOUT)
        except Exception:
            self.fail_hard("Exception while shutting down a WebSocket")

    def cancel_late(self):
        """Cancel an application that has not ended during the shutdown."""
        if self.task is not None:
            logger.warning(
                "Cancelling a WebSocket application that did not finish during shutdown.")
            self.cancel()

    def cancel(self):
        """Cancel the application and close the connection immediately."""
        self.cancelled = True
        self.begin_shutdown()
        if not self.lost:
            # Data that the kernel accepts now is still sent. Do not wait for the peer to read more.
            self.state = WS_CLOSED
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self.transport.abort()
        self.end_messages(1012, "")
        if self.task is not None:
            self.task.cancel()

    cdef int log_answer(self, int status, Py_ssize_t size) except -1:
        log = self.site.access_log
        if log is not None:
            try:
                log(self.scope, status, size, self.loop.time() - self.began)
            except Exception:
                logger.exception("Exception in the access log")
        return 0

    cdef int part(self) except -1:
        """Detach the session from the site if its task has ended and its transport is closed."""
        if self.task is None and self.last_call is not None:
            self.last_call.cancel()
            self.last_call = None
        if self.lost and self.task is None and self.attached:
            self.attached = False
            self.site.detach(self)
        return 0


# ------------------------------------------------------- what receive() and send() return ----


@cython.final
cdef class Receive(Call):
    """One call of receive(), to be awaited."""

    cdef str qualname(self):
        return "WebSocket.receive"

    cdef object run(self):
        cdef object message
        if self.future is not None:
            self.future.result()    # raises CancelledError if the future has been cancelled
            self.future = None
        message = self.session.take()
        if message is not None:
            return message
        self.wait_on(self.session.receivers, self.session.loop)
        return PENDING

    cdef int finish(self) except -1:
        """End the call, and wake the next one if this one was woken and takes no message."""
        self.state = CALL_CLOSED
        if self.future is not None and self.stop_waiting(self.session.receivers):
            self.session.receivers.wake_one()
        return 0


@cython.final
cdef class Send(Call):
    """One call of send(), to be awaited."""

    cdef str qualname(self):
        return "WebSocket.send"

    cdef object run(self):
        if self.future is not None:
            self.future.result()    # raises CancelledError if the future has been cancelled
            self.future = None
        if self.session.put(self.message):
            return None
        self.wait_on(self.session.senders, self.session.loop)
        return PENDING

    cdef int finish(self) except -1:
        self.state = CALL_CLOSED
        if self.future is not None:
            self.stop_waiting(self.session.senders)
        return 0
