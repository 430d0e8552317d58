# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._websocket: its states, and what each message of the application leads to
in each of them.
"""

from mgloop._awaitable cimport Awaitable
from mgloop.http._frames cimport FrameReader, FrameWriter


cdef extern from *:
    """
    enum {
        WS_CONNECTING,      /* the application has not answered the handshake */
        WS_DENYING,         /* ... has begun an HTTP response in place of it */
        WS_OPEN,
        WS_CLOSING,         /* our close frame is out, the peer's is awaited; drops messages */
        WS_LINGERING,       /* the peer broke the rules: what it still sends is dropped */
        WS_CLOSED,          /* nothing more is read or written */
        MGL_WS_STATES
    };

    /* What the application may send. */
    enum {
        MSG_ACCEPT, MSG_SEND, MSG_CLOSE, MSG_START, MSG_BODY, MSG_UNKNOWN, MGL_WS_MESSAGES
    };

    /* What is done about it. GONE: see WebSocket.gone(). */
    enum {
        DO_EXPECT_ACCEPT, DO_EXPECT_BODY, DO_EXPECT_SEND,       /* a RuntimeError */
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
    cdef object task                # None before start() and when it is over
    cdef FrameReader reader
    cdef FrameWriter writer
    cdef int state
    cdef bint lost                  # connection_lost() was called
    cdef bint attached              # to the site
    cdef bint app_closed            # the application has sent its last message
    cdef bint cancelled             # by cancel()
    cdef double began

    # Towards the application.
    cdef bint announced             # websocket.connect was received
    cdef list queue                 # of payloads; those before `head` were taken
    cdef Py_ssize_t head
    cdef Py_ssize_t queued_bytes
    cdef Py_ssize_t max_queue
    cdef bint ended                 # no payload follows those in the queue, but this:
    cdef int end_code
    cdef str end_reason
    cdef list receivers             # futures
    cdef bint reading_paused
    cdef bint pumping
    cdef object early               # kept by gather(): data received before accept, or None
    cdef Py_ssize_t early_bytes

    # Towards the peer.
    cdef bint writing_paused
    cdef unsigned int sends         # of the application's
    cdef list senders               # futures
    cdef bytes owed                 # the last ping's payload, to be answered when there is room
    cdef object ping_timer          # of the next ping, or of the answer to the last one
    cdef object deadline            # when the transport is aborted, if it has sent nothing since
    cdef double deadline_seconds
    cdef object last_call           # cancels the application while the server shuts down
    cdef Py_ssize_t unsent          # by the transport, when that was set
    cdef double ping_interval
    cdef double ping_timeout
    cdef double write_timeout
    cdef double stream_timeout
    cdef unsigned int pings
    cdef bytes pinged               # the payload of the ping that is not answered
    cdef bint heard                 # anything, since then

    # A response in place of the handshake.
    cdef bytes response_head        # not written yet
    cdef long long response_left    # of the length that it announces, or -1
    cdef bint response_empty        # whatever the application sends: 204, 304
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


cdef class Call(Awaitable):
    cdef WebSocket session
    cdef object message             # that is sent
    cdef bint receives              # ... unless this is a receive()
    cdef bint finished
    cdef object future              # what the task waits for

    cdef list waiters(self)
