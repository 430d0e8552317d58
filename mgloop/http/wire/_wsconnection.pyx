# SPDX-License-Identifier: GPL-2.0-only
"""The connection below a WebSocket: its transport, pings, timeouts, and the closing handshake.

WebSocketConnection is the first of the three classes of a session (see _websocket). The module is
native because it runs per control frame, on the thread of the loop.
"""

from mgloop.http.wire._frames cimport WS_PING, WS_PONG, close_frame, control_frame
from mgloop.http.wire._response cimport BaseConnection, mgl_clock_ns

import logging

from . import _peer

logger = logging.getLogger("mgloop.http")

# Seconds within which the peer must send its close frame, and must close the connection after a
# violation of the protocol.
cdef double CLOSE_TIMEOUT = 10.0
cdef double LINGER_TIMEOUT = 2.0
SHUTDOWN_TIMEOUT = 1.0


cdef class WebSocketConnection(BaseConnection):
    """Own the transport of a WebSocket until it is closed."""

    cdef int end_messages(self, int code, str reason) except -1:
        raise NotImplementedError

    cdef int pump(self) except -1:
        raise NotImplementedError

    cdef int pump_safely(self) except -1:
        try:
            self.pump()
        except Exception:
            self.abort_after_error("Exception while handling WebSocket data")
        return 0

    cdef int write_frame(self, bytes frame) except -1:
        if not self.lost:
            self.transport.write(frame)
        return 0

    cdef int write_failed(self, object exc) except -1:
        # Abort first, because logging may fail, too.
        self.transport.abort()
        logger.debug("cannot write: %s", exc)
        return 0

    cdef int control_reading(self, bint pause) except -1:
        if pause == self.reading_paused or self.lost:
            return 0
        self.reading_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        return 0

    cdef int log_access(self, int status, Py_ssize_t size) except -1:
        log = self.site.access_log
        if log is not None:
            try:
                log(self.scope, status, size, (mgl_clock_ns() - self.began) * 1e-9)
            except Exception:
                logger.exception("Exception in the access log")
        return 0

    # ---------------------------------------------------------------- the closing handshake ----

    cdef int peer_closed(self) except -1:
        """Handle the peer's close frame: answer it, and close the connection."""
        cdef int code = self.reader.code
        cdef bint answered = self.state == WS_CLOSING
        self.stop_pings()
        self.state = WS_CLOSED
        if not answered:
            self.write_frame(close_frame(code, "" if code == 1005 else self.reader.reason))
        self.end_messages(code, self.reader.reason)
        return self.close_transport()

    cdef int start_closing(self, int code, str reason) except -1:
        """Start the closing handshake: send a close frame and wait for the peer's."""
        cdef bytes frame = close_frame(code, reason)
        self.stop_pings()
        self.state = WS_CLOSING
        self.write_frame(frame)
        if not self.lost:
            self.start_progress_timer(CLOSE_TIMEOUT)
        # The data that has been received but not parsed may contain the peer's close frame.
        return self.pump_safely()

    cdef int fail_connection(self, int code, str reason) except -1:
        """Send a close frame after a violation of the protocol, and discard all later data."""
        cdef bint closing = self.state == WS_CLOSING
        self.stop_pings()
        self.state = WS_LINGERING
        if not closing:
            self.write_frame(close_frame(code, reason))
        self.end_messages(code, reason)
        if self.lost:
            return 0
        if self.transport.can_write_eof():
            _peer.end_writing(self.transport)
            return self.start_progress_timer(LINGER_TIMEOUT)
        self.state = WS_CLOSED
        return self.close_transport()

    cdef int close_transport(self) except -1:
        """Close the transport after it has written all data, or abort it if that takes too long."""
        if self.lost:
            return 0
        self.transport.close()
        return self.start_progress_timer(CLOSE_TIMEOUT)

    cdef int abort_after_error(self, str what) except -1:
        """Log the present exception and abort the connection; call it in an except clause."""
        logger.exception(what)
        self.stop_pings()
        self.state = WS_CLOSED
        self.end_messages(1011, "")
        self.transport.abort()
        return 0

    cdef int start_progress_timer(self, double seconds) except -1:
        self.stop_progress_timer()
        if self.site.closing:
            seconds = min(seconds, SHUTDOWN_TIMEOUT)
        self.progress_seconds = seconds
        self.unsent = self.transport.get_write_buffer_size()
        self.progress_timer = self.loop.call_later(seconds, self.on_progress_timer)
        return 0

    cdef int stop_progress_timer(self) except -1:
        if self.progress_timer is not None:
            self.progress_timer.cancel()
            self.progress_timer = None
        return 0

    def on_progress_timer(self):
        """Abort if the peer has received nothing since the last check, or has not closed."""
        self.progress_timer = None
        if not self.site.closing and self.transport.get_write_buffer_size() < self.unsent:
            self.start_progress_timer(self.progress_seconds)
        else:
            self.transport.abort()

    # ------------------------------------------------------------------ pings ----

    cdef int send_pong(self) except -1:
        """Answer the ping that has been read, now or when the transport resumes writing."""
        if self.paused_writing:
            self.pong_payload = self.reader.payload
        elif self.state == WS_OPEN:
            self.write_frame(control_frame(WS_PONG, self.reader.payload))
        return 0

    cdef int send_late_pong(self) except -1:
        """Answer the last ping that arrived while the transport had paused writing."""
        if self.pong_payload is not None and self.state == WS_OPEN:
            self.write_frame(control_frame(WS_PONG, self.pong_payload))
        self.pong_payload = None
        return 0

    cdef int stop_pings(self) except -1:
        if self.ping_timer is not None:
            self.ping_timer.cancel()
            self.ping_timer = None
        self.ping_payload = None
        return 0

    cdef int schedule_ping(self) except -1:
        if self.ping_interval > 0:
            self.ping_timer = self.loop.call_later(self.ping_interval, self.on_ping_timer)
        return 0

    def on_ping_timer(self):
        if self.paused_writing:         # the write timeout decides
            self.schedule_ping()
            return
        self.pings += 1
        self.ping_payload = self.pings.to_bytes(4, "big")
        self.active = False
        self.write_frame(control_frame(WS_PING, self.ping_payload))
        if self.ping_timeout > 0:
            self.ping_timer = self.loop.call_later(self.ping_timeout, self.on_pong_timer)
        else:
            self.schedule_ping()

    def on_pong_timer(self):
        """End the session if no pong has arrived in time.

        A peer from which other data has arrived gets more time, and so does one whose data is not
        read at present, because it may be alive.
        """
        if self.active or self.reading_paused:
            self.active = False
            self.ping_timer = self.loop.call_later(self.ping_timeout, self.on_pong_timer)
            return
        self.stop_pings()
        self.state = WS_CLOSED
        self.write_frame(close_frame(1011, "keepalive ping timeout"))
        self.end_messages(1011, "keepalive ping timeout")
        # A peer that does not answer pings may not read either, so closing has a timeout.
        self.close_transport()

    cdef int pong_received(self) except -1:
        if self.ping_payload is not None and self.reader.payload == self.ping_payload:
            self.ping_payload = None
            if self.ping_timeout > 0:
                self.ping_timer.cancel()
                self.schedule_ping()
        return 0
