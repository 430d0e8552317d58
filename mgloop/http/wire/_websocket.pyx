# SPDX-License-Identifier: GPL-2.0-only
"""A WebSocket session between a transport and an ASGI application.

The HTTP connection hands the transport over after the upgrade request. From then on the session
owns the connection. WebSocket is the last of three classes, each in a module of its own:
WebSocketConnection has the transport, the pings and the closing handshake, WebSocketHandshake the
response to the upgrade request, and WebSocket the messages and the task of the application. The
modules are native because they run per message; _frames does the framing. WebSocket is an
asyncio.Protocol for any transport, and runs on the thread of its loop.

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
    WS_BINARY, WS_CLOSE, WS_NEED_DATA, WS_PING, WS_PONG, WS_TEXT, sendable,
)
from mgloop.http.wire._gather cimport gather
from mgloop.http.wire._ready cimport must_yield
from mgloop.http.wire._response cimport mgl_clock_ns
from mgloop.http.wire._site cimport new_task
from mgloop.http.wire._wsconnection cimport (
    SHUTDOWN_TIMEOUT, WS_CLOSED, WS_CLOSING, WS_CONNECTING, WS_DENYING, WS_OPEN,
)
from mgloop.http.wire._wshandshake cimport WebSocketHandshake

import contextvars
import logging
import sys
from types import CoroutineType

from ... import _stdlib
from ._coroutines import run_application
from ..errors import ClientDisconnected, because_client_left

logger = logging.getLogger("mgloop.http")

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
cdef class WebSocket(WebSocketHandshake):
    """Serve one WebSocket session, as an asyncio.Protocol."""

    def __cinit__(self):
        self.receivers = Waiters.__new__(Waiters)

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
        cdef object context
        cdef object running = None
        self.began = mgl_clock_ns()
        self.site.attach(self)
        self.attached = True
        if leftover:
            self.data_received(leftover)
        # The session has its own context. The call that creates the coroutine runs in it, and the
        # task in a copy of it.
        context = contextvars.copy_context()
        try:
            running = context.run(self.site.app, self.scope, self.receive, self.send)
            self.task = new_task(self.loop, run_application(running), context, None)
        except BaseException as exc:
            if isinstance(running, CoroutineType):
                running.close()     # see new_task()
            self.app_ended(exc)
            if not isinstance(exc, Exception):
                raise
        else:
            self.task.add_done_callback(self.on_task_done)

    # ------------------------------------------------------------------- the application ----

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
            self.app_ended(None if self.cancelled else RuntimeError(
                "The task of the WebSocket application was cancelled."))
            return
        exc = task.exception()
        if exc is None and task.result() is not None:
            logger.error("ASGI callable should return None, but returned '%s'.", task.result())
        self.app_ended(exc)

    cdef int app_ended(self, object exc) except -1:
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
            elif self.state <= WS_DENYING:
                self.end_handshake()
            elif self.state == WS_OPEN:
                self.start_closing(1000 if exc is None else 1011, "")
                self.end_messages(1006, "")
        except Exception:
            self.abort_after_error("Exception while closing a WebSocket")
        return self.detach_if_ended()

    # ------------------------------------------------------------------- the transport ----

    def data_received(self, data):
        self.active = True
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
                self.abort_after_error("Exception while handling WebSocket data")

    def eof_received(self):
        """Let the transport close: a peer that ends its side has nothing more to say or to read."""

    def connection_lost(self, exc):
        self.lost = True
        self.stop_pings()
        self.stop_progress_timer()
        self.pong_payload = None
        self.forget_denial()
        # The application still receives the messages that have arrived, and then the disconnect.
        if self.state == WS_OPEN and self.reader.has_data():
            self.pump_safely()
        else:
            self.state = WS_CLOSED
            self.end_messages(1006, "")
        self.writable.wake_all()
        self.detach_if_ended()

    def pause_writing(self):
        self.paused_writing = True
        if self.progress_timer is None and self.write_timeout > 0:
            self.start_progress_timer(self.write_timeout)

    def resume_writing(self):
        self.paused_writing = False
        if self.state <= WS_OPEN:
            self.stop_progress_timer()
        self.send_late_pong()
        self.writable.wake_all()

    # ------------------------------------------------------------------- receiving ----

    cdef object next_message(self):
        """Return the next message for the application, or None if it has to wait for one."""
        cdef object payload
        if not self.connect_delivered:
            self.connect_delivered = True
            return {"type": "websocket.connect"}
        if self.head < len(self.queue):
            payload = self.queue[self.head]
            self.queue[self.head] = None
            self.head += 1
            self.queued_bytes -= len(payload)
            self.compact_queue()
            if self.reading_paused:
                self.read_on()
            if type(payload) is str:
                return {"type": "websocket.receive", "text": payload}
            return {"type": "websocket.receive", "bytes": payload}
        if self.ended:
            return {"type": "websocket.disconnect", "code": self.end_code,
                    "reason": self.end_reason}
        return None

    cdef int compact_queue(self) except -1:
        """Remove the messages that the application has received from the queue."""
        if self.head == len(self.queue):
            self.queue.clear()
            self.head = 0
        elif self.head >= min(self.max_queue, 1024):
            del self.queue[:self.head]
            self.head = 0
        return 0

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
                    self.send_pong()
                elif kind == WS_PONG:
                    self.pong_received()
                elif kind == WS_CLOSE:
                    self.peer_closed()
                else:
                    self.fail_connection(self.reader.code, self.reader.reason)
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
            self.writable.wake_all()
        return 0

    # --------------------------------------------------------------------- sending ----

    cdef bint process(self, object message) except -1:
        """Process a message of the application; return False if it has to wait."""
        cdef object kind = message["type"]
        cdef int number = KINDS.get(kind, MSG_UNKNOWN)
        if not self.lost and (self.state == WS_OPEN or self.state == WS_DENYING) and (
                self.paused_writing or must_yield(self.transport, &self.sends)):
            return False
        if self.app_closed or self.lost:
            self.late_message(number, kind)
        else:
            self.react(number, kind, message)
        return True

    cdef int react(self, int number, object kind, object message) except -1:
        """React to a message as the table of the states requires."""
        cdef int todo = reaction(number, self.state)
        if todo == DO_SEND:
            self.send_payload(message)
        elif todo == DO_ACCEPT:
            self.accept(message)
        elif todo == DO_CLOSE:
            self.close_by_app(message)
        elif todo == DO_REJECT:
            self.app_closed = True
            self.reject(403)
        elif todo == DO_START:
            self.start_denial(message)
        elif todo == DO_BODY:
            self.continue_denial(message)
        elif todo == DO_LATE:
            self.late_message(number, kind)
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
        return 0

    cdef int late_message(self, int message, object kind) except -1:
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
        self.start_closing(code, reason)
        self.end_messages(code, reason)
        return 0

    # ------------------------------------------------------------------ the site ----

    def begin_shutdown(self):
        """Notify the peer and the application that the server is shutting down."""
        if self.stream_timeout > 0 and self.task is not None and self.cancel_timer is None:
            self.cancel_timer = self.loop.call_later(
                self.stream_timeout + CANCEL_AFTER, self.cancel_late)
        try:
            if self.state == WS_CONNECTING:
                self.end_messages(1012, "")
                self.reject(503)
            elif self.state == WS_OPEN:
                self.start_closing(1012, "")
                self.end_messages(1012, "")
            elif self.progress_timer is not None:
                self.start_progress_timer(SHUTDOWN_TIMEOUT)
        except Exception:
            self.abort_after_error("Exception while shutting down a WebSocket")

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

    cdef int detach_if_ended(self) except -1:
        """Detach the session from the site if its task has ended and its transport is closed."""
        if self.task is None and self.cancel_timer is not None:
            self.cancel_timer.cancel()
            self.cancel_timer = None
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
        self.resume()
        message = self.session.next_message()
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
        self.resume()
        if self.session.process(self.message):
            return None
        self.wait_on(self.session.writable, self.session.loop)
        return PENDING

    cdef int finish(self) except -1:
        self.state = CALL_CLOSED
        if self.future is not None:
            self.stop_waiting(self.session.writable)
        return 0
