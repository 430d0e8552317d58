# SPDX-License-Identifier: GPL-2.0-only
"""Declare a WebSocket session, its states, and the table of its reactions to messages.

The table says for each state what each message of the application leads to. _websocket.pyx explains
how a session works.
"""

from mgloop._awaitable cimport Call, Waiters
from mgloop.http.wire._frames cimport FrameReader, FrameWriter


cdef extern from *:
    """
    enum {
        WS_CONNECTING,      /* the application has not accepted or rejected the handshake */
        WS_DENYING,         /* the application has begun an HTTP response that rejects it */
        WS_OPEN,
        WS_CLOSING,         /* waits for the peer's close frame, having sent one; drops messages */
        WS_LINGERING,       /* the peer violated the protocol: discard what it still sends */
        WS_CLOSED,          /* nothing more is read or written */
        MGL_WS_STATES
    };

    /* The messages that the application may send. */
    enum {
        MSG_ACCEPT, MSG_SEND, MSG_CLOSE, MSG_START, MSG_BODY, MSG_UNKNOWN, MGL_WS_MESSAGES
    };

    /* The reactions to a message. DO_GONE: see WebSocket.gone(). */
    enum {
        DO_EXPECT_ACCEPT, DO_EXPECT_BODY, DO_EXPECT_SEND,       /* raise RuntimeError */
        DO_ACCEPT, DO_REFUSE, DO_START, DO_BODY, DO_SEND, DO_CLOSE, DO_GONE
    };

    static inline int mgl_ws_reaction(int message, int state)
    {
        static const unsigned char others[MGL_WS_STATES] = {
            DO_EXPECT_ACCEPT, DO_EXPECT_BODY, DO_EXPECT_SEND, DO_GONE, DO_GONE, DO_GONE,
        };
        if (state == WS_CONNECTING)
            switch (message) {
                case MSG_ACCEPT: return DO_ACCEPT;
                case MSG_CLOSE:  return DO_REFUSE;
                case MSG_START:  return DO_START;
            }
        if (state == WS_DENYING && message == MSG_BODY)
            return DO_BODY;
        if (state == WS_OPEN)
            switch (message) {
                case MSG_SEND:   return DO_SEND;
                case MSG_CLOSE:  return DO_CLOSE;
            }
        return others[state];
    }
    """
    enum:
        WS_CONNECTING
        WS_DENYING
        WS_OPEN
        WS_CLOSING
        WS_LINGERING
        WS_CLOSED
    enum:
        MSG_ACCEPT
        MSG_SEND
        MSG_CLOSE
        MSG_START
        MSG_BODY
        MSG_UNKNOWN
    enum:
        DO_EXPECT_ACCEPT
        DO_EXPECT_BODY
        DO_EXPECT_SEND
        DO_ACCEPT
        DO_REFUSE
        DO_START
        DO_BODY
        DO_SEND
        DO_CLOSE
        DO_GONE
    int reaction "mgl_ws_reaction"(int message, int state) noexcept


cdef class WebSocket:
    cdef object __weakref__
    cdef object site
    cdef object loop
    cdef object transport
    cdef dict scope
    cdef bytes key
    cdef list extensions
    cdef object task                # None before start() and after the application has ended
    cdef FrameReader reader
    cdef FrameWriter writer
    cdef int state
    cdef bint lost                  # connection_lost() was called
    cdef bint attached              # the site holds this session
    cdef bint app_closed            # the application has sent its last message
    cdef bint cancelled             # cancel() was called
    cdef double began               # loop.time() at the start, for the access log

    # Messages for the application. Times are in seconds, sizes in bytes.
    cdef bint announced             # the application has received websocket.connect
    cdef list queue                 # payloads; the application has received those before `head`
    cdef Py_ssize_t head
    cdef Py_ssize_t queued_bytes
    cdef Py_ssize_t max_queue       # most messages in the queue
    cdef bint ended                 # websocket.disconnect follows the messages in the queue, with
    cdef int end_code               # ... this code
    cdef str end_reason             # ... and this reason
    cdef Waiters receivers          # receive() calls that wait
    cdef bint reading_paused
    cdef bint pumping               # pump() is running
    cdef object early               # data received before accept (see gather()), or None
    cdef Py_ssize_t early_bytes

    # Data for the peer.
    cdef bint writing_paused
    cdef unsigned int sends         # send() calls counted by is_leaving()
    cdef Waiters senders            # send() calls that wait
    cdef bytes owed                 # payload of the last ping, if its pong has to wait
    cdef object ping_timer          # timer of the next ping, or of the pong to the last one
    cdef object deadline            # timer that aborts the transport if it has made no progress
    cdef double deadline_seconds
    cdef object last_call           # timer that cancels the application during a shutdown
    cdef Py_ssize_t unsent          # size of the transport's write buffer when `deadline` was set
    cdef double ping_interval       # 0 = no pings
    cdef double ping_timeout        # 0 = no limit
    cdef double write_timeout       # 0 = no limit
    cdef double stream_timeout      # 0 = no limit
    cdef unsigned int pings
    cdef bytes pinged               # payload of the ping whose pong has not arrived, or None
    cdef bint heard                 # data has arrived after that ping

    # The HTTP response that rejects the handshake.
    cdef bytes response_head        # None after it has been written
    cdef long long response_left    # bytes of the Content-Length that are not sent yet, or -1
    cdef bint response_empty        # 204 or 304: no body is sent, even if the application sends one
    cdef int response_status

    cdef int over(self, object exc) except -1
    cdef int fail_hard(self, str what) except -1
    cdef object take(self)
    cdef bint put(self, object message) except -1
    cdef int accept(self, object message) except -1
    cdef int send_payload(self, object message) except -1
    cdef int close_by_app(self, object message) except -1
    cdef tuple head_lines(self, object given, tuple left_out)
    cdef int start_response(self, object message) except -1
    cdef int continue_response(self, object message) except -1
    cdef int refuse(self, int status) except -1
    cdef int gone(self, int message, object kind) except -1
    cdef bint full(self) noexcept
    cdef int pump(self) except -1
    cdef int read_on(self) except -1
    cdef int pump_safely(self) except -1
    cdef int deliver(self, object payload) except -1
    cdef int end_messages(self, int code, str reason) except -1
    cdef int peer_closed(self) except -1
    cdef int break_off(self, int code, str reason) except -1
    cdef int say_close(self, int code, str reason) except -1
    cdef int control_reading(self, bint pause) except -1
    cdef int write(self, bytes data) except -1
    cdef int finish_transport(self) except -1
    cdef int arm(self, double seconds) except -1
    cdef int disarm(self) except -1
    cdef int stop_pings(self) except -1
    cdef int schedule_ping(self) except -1
    cdef int on_pong(self) except -1
    cdef int log_answer(self, int status, Py_ssize_t size) except -1
    cdef int part(self) except -1


# The awaitables that receive() and send() return.
cdef class Receive(Call):
    cdef WebSocket session


cdef class Send(Call):
    cdef WebSocket session
    cdef object message
