# SPDX-License-Identifier: GPL-2.0-only
"""Declare the connection of a WebSocket, and its states; _wsconnection.pyx explains it."""

from libc.stdint cimport int64_t

from mgloop.http.wire._frames cimport FrameReader, FrameWriter
from mgloop.http.wire._response cimport BaseConnection


cdef extern from *:
    """
    enum {
        WS_CONNECTING,      /* the application has not accepted or rejected the handshake */
        WS_DENYING,         /* the application has begun an HTTP response that rejects it */
        WS_OPEN,
        WS_CLOSING,         /* waits for the peer's close frame, having sent one; drops messages */
        WS_LINGERING,       /* the peer violated the protocol: discard its further data */
        WS_CLOSED,          /* nothing more is read or written */
        MGL_WS_STATES
    };
    """
    enum:
        WS_CONNECTING
        WS_DENYING
        WS_OPEN
        WS_CLOSING
        WS_LINGERING
        WS_CLOSED


# Seconds during a shutdown within which the peer must close, or read pending data.
cdef double SHUTDOWN_TIMEOUT


cdef class WebSocketConnection(BaseConnection):
    cdef object loop
    cdef dict scope
    cdef FrameReader reader
    cdef FrameWriter writer
    cdef int state
    cdef int64_t began              # mgl_clock_ns() at the start, for the access log

    # Closing. Times are in seconds.
    cdef bint reading_paused
    cdef bytes pong_payload         # payload of the last ping, if its pong has to wait
    cdef object progress_timer      # aborts the transport if the peer has made no progress
    cdef double progress_seconds
    cdef Py_ssize_t unsent          # size of the transport's write buffer when the timer was set
    cdef double write_timeout       # 0 = no limit

    # Pings.
    cdef object ping_timer          # timer of the next ping, or of the pong to the last one
    cdef double ping_interval       # 0 = no pings
    cdef double ping_timeout        # 0 = no limit
    cdef unsigned int pings
    cdef bytes ping_payload         # payload of the ping whose pong has not arrived, or None
    cdef bint active                # data has arrived after that ping

    # For the subclass.
    # Let websocket.disconnect, with the code and the reason, follow the messages in the queue. Wake
    # all receive() and send() calls that wait. Do nothing if the end is set already.
    cdef int end_messages(self, int code, str reason) except -1
    # Parse the data that has been received. pump_safely() handles exceptions: for callers unrelated
    # to the data of the peer.
    cdef int pump(self) except -1
    cdef int pump_safely(self) except -1

    cdef int write_frame(self, bytes frame) except -1
    cdef int control_reading(self, bint pause) except -1

    cdef int send_pong(self) except -1
    cdef int send_late_pong(self) except -1
    cdef int peer_closed(self) except -1
    cdef int start_closing(self, int code, str reason) except -1
    cdef int fail_connection(self, int code, str reason) except -1
    cdef int close_transport(self) except -1
    cdef int abort_after_error(self, str what) except -1
    cdef int start_progress_timer(self, double seconds) except -1
    cdef int stop_progress_timer(self) except -1

    cdef int stop_pings(self) except -1
    cdef int schedule_ping(self) except -1
    cdef int pong_received(self) except -1
    cdef int log_access(self, int status, Py_ssize_t size) except -1
