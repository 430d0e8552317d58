# SPDX-License-Identifier: GPL-2.0-only
"""Declare a WebSocket session, and the table of its reactions to messages.

The table says for each state what each message of the application leads to. _websocket.pyx explains
how a session works.
"""

from mgloop._awaitable cimport Call, Waiters
from mgloop.http.wire._wshandshake cimport WebSocketHandshake


cdef extern from *:
    """
    /* The messages that the application may send. */
    enum {
        MSG_ACCEPT, MSG_SEND, MSG_CLOSE, MSG_START, MSG_BODY, MSG_UNKNOWN, MGL_WS_MESSAGES
    };

    /* The reactions to a message. DO_LATE: see WebSocket.late_message(). */
    enum {
        DO_EXPECT_ACCEPT, DO_EXPECT_BODY, DO_EXPECT_SEND,       /* raise RuntimeError */
        DO_ACCEPT, DO_REJECT, DO_START, DO_BODY, DO_SEND, DO_CLOSE, DO_LATE
    };

    /* The states are in _wsconnection.pxd. */
    static inline int mgl_ws_reaction(int message, int state)
    {
        static const unsigned char others[MGL_WS_STATES] = {
            DO_EXPECT_ACCEPT, DO_EXPECT_BODY, DO_EXPECT_SEND, DO_LATE, DO_LATE, DO_LATE,
        };
        if (state == WS_CONNECTING)
            switch (message) {
                case MSG_ACCEPT: return DO_ACCEPT;
                case MSG_CLOSE:  return DO_REJECT;
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
        DO_REJECT
        DO_START
        DO_BODY
        DO_SEND
        DO_CLOSE
        DO_LATE
    int reaction "mgl_ws_reaction"(int message, int state) noexcept


cdef class WebSocket(WebSocketHandshake):
    cdef object __weakref__
    cdef object task                # None before start() and after the application has ended
    cdef bint attached              # the site holds this session
    cdef bint cancelled             # cancel() was called
    cdef double stream_timeout      # 0 = no limit
    cdef object cancel_timer        # cancels the application during a shutdown

    # Messages for the application. Sizes are in bytes.
    cdef bint connect_delivered     # the application has received websocket.connect
    cdef list queue                 # payloads; the application has received those before `head`
    cdef Py_ssize_t head
    cdef Py_ssize_t queued_bytes
    cdef Py_ssize_t max_queue       # most messages in the queue
    cdef bint ended                 # websocket.disconnect follows the messages in the queue, with
    cdef int end_code               # ... this code
    cdef str end_reason             # ... and this reason
    cdef Waiters receivers          # receive() calls that wait
    cdef bint pumping               # pump() is running
    cdef Py_ssize_t early_bytes     # bytes in `early`

    # Messages of the application.
    cdef unsigned int sends         # send() calls counted by must_yield()

    cdef int app_ended(self, object exc) except -1
    cdef object next_message(self)
    cdef int compact_queue(self) except -1
    cdef bint process(self, object message) except -1
    cdef int react(self, int number, object kind, object message) except -1
    cdef int send_payload(self, object message) except -1
    cdef int close_by_app(self, object message) except -1
    cdef int late_message(self, int message, object kind) except -1
    cdef bint full(self) noexcept
    cdef int read_on(self) except -1
    cdef int deliver(self, object payload) except -1
    cdef int detach_if_ended(self) except -1


# The awaitables that receive() and send() return.
cdef class Receive(Call):
    cdef WebSocket session


cdef class Send(Call):
    cdef WebSocket session
    cdef object message
