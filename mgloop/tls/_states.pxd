# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.tls._states: the table of states and events, and what all halves of a
connection share. Read the table first; the modules beside this one only carry it out.
"""

from mgloop._loop cimport LoopCore
from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._engine cimport Engine


cdef extern from *:
    """
    /* The states are those of asyncio.sslproto, and so is their order. */
    enum { UNWRAPPED, DO_HANDSHAKE, WRAPPED, FLUSHING, SHUTDOWN, MGL_TLS_STATES };

    /* What happens to a connection. Not in the table, for it is the same in every state:
       connection_lost() and abort() lead to UNWRAPPED; pausing only sets a flag. */
    enum {
        ON_PROGRESS,            /* ciphertext came, the application reads again, or the loop was
                                   left in a callback and runs again */
        ON_MORE,                /* a buffer was too small, or a turn over: the rest of the data */
        ON_EOF,                 /* the peer has stopped sending */
        ON_CLOSE,               /* close(), or the closing alert of the peer */
        ON_HANDSHAKE_TIMEOUT,
        ON_SHUTDOWN_TIMEOUT,
        ON_WRITE,               /* the application writes */
        ON_ROOM,                /* the transport below has room; the end of a callback */
        MGL_TLS_EVENTS
    };

    /* What is done about it. */
    enum {
        IGNORE,
        SHAKE_HANDS, FAIL_HANDSHAKE,
        READ,                   /* decrypt and deliver */
        FLUSH,                  /* ... all that is left, send all that waits; then SHUTDOWN */
        START_FLUSH,            /* FLUSHING, then FLUSH; waits for a reader that is paused */
        START_CLOSE,            /* FLUSHING with the time-out of the shutdown, then FLUSH */
        ANSWER,                 /* take in the closing alert of the peer, or send ours */
        ABORT, GIVE_UP,         /* close the transport below at once; because of a time-out */
        REFUSE, QUEUE, ENCRYPT, /* a write */
        SEND,                   /* what OpenSSL has ready */
        SEND_BACKLOG            /* what waits as plaintext too */
    };

    static inline int mgl_tls_reaction(int event, int state)
    {
        static const unsigned char table[MGL_TLS_EVENTS][MGL_TLS_STATES] = {
    /*                        UNWRAPPED  DO_HANDSHAKE       WRAPPED       FLUSHING      SHUTDOWN */
    [ON_PROGRESS]          = {IGNORE,    SHAKE_HANDS,       READ,         FLUSH,        ANSWER},
    [ON_MORE]              = {IGNORE,    IGNORE,            READ,         READ,         IGNORE},
    [ON_EOF]               = {IGNORE,    FAIL_HANDSHAKE,    START_FLUSH,  FLUSH,        ANSWER},
    [ON_CLOSE]             = {IGNORE,    ABORT,             START_CLOSE,  IGNORE,       IGNORE},
    [ON_HANDSHAKE_TIMEOUT] = {IGNORE,    GIVE_UP,           IGNORE,       IGNORE,       IGNORE},
    [ON_SHUTDOWN_TIMEOUT]  = {IGNORE,    IGNORE,            IGNORE,       GIVE_UP,      GIVE_UP},
    [ON_WRITE]             = {REFUSE,    QUEUE,             ENCRYPT,      REFUSE,       REFUSE},
    [ON_ROOM]              = {IGNORE,    SEND,              SEND_BACKLOG, SEND_BACKLOG, SEND},
        };
        return table[event][state];
    }

    /* Each state is followed by the next, and by UNWRAPPED whenever it fails. */
    static inline int mgl_tls_may_follow(int state, int next)
    {
        static const unsigned char followers[MGL_TLS_STATES] = {
            [UNWRAPPED]    = 1 << UNWRAPPED | 1 << DO_HANDSHAKE,
            [DO_HANDSHAKE] = 1 << UNWRAPPED | 1 << WRAPPED,
            [WRAPPED]      = 1 << UNWRAPPED | 1 << FLUSHING,
            [FLUSHING]     = 1 << UNWRAPPED | 1 << SHUTDOWN,
            [SHUTDOWN]     = 1 << UNWRAPPED,
        };
        return followers[state] >> next & 1;
    }
    """
    enum:
        UNWRAPPED
        DO_HANDSHAKE
        WRAPPED
        FLUSHING
        SHUTDOWN
    enum:
        ON_PROGRESS
        ON_MORE
        ON_EOF
        ON_CLOSE
        ON_HANDSHAKE_TIMEOUT
        ON_SHUTDOWN_TIMEOUT
        ON_WRITE
        ON_ROOM
    enum:
        IGNORE
        SHAKE_HANDS
        FAIL_HANDSHAKE
        READ
        FLUSH
        START_FLUSH
        START_CLOSE
        ANSWER
        ABORT
        GIVE_UP
        REFUSE
        QUEUE
        ENCRYPT
        SEND
        SEND_BACKLOG
    int reaction "mgl_tls_reaction"(int event, int state) noexcept
    bint may_follow "mgl_tls_may_follow"(int state, int next) noexcept


cdef enum:
    # Of the application: connection_made, eof_received and connection_lost reach it in this order,
    # each at most once.
    APP_INIT
    APP_CON_MADE
    APP_EOF
    APP_CON_LOST

cdef enum:
    # Who still wants the connection's OpenSSL objects. When both are gone they are forgotten.
    HELD
    UNWANTED                        # the application has closed its transport twice
    LOST                            # connection_lost() was called
    FORGOTTEN


# The transport below sends data[:size], which it does not keep.
ctypedef int (*write_function)(void *below, const char *data, Py_ssize_t size) except -1


cdef class Connection:
    # Read by asyncio, by CPython's tests and by people who debug; Python names on purpose.
    cdef readonly object _loop
    cdef readonly object _app_protocol
    cdef readonly object _app_transport
    cdef readonly object _transport
    cdef readonly object _waiter
    cdef readonly object _sslcontext
    cdef readonly dict _extra
    cdef readonly bint _server_side
    cdef readonly object _server_hostname
    cdef readonly Py_ssize_t _conn_lost
    cdef readonly bint _eof_received
    cdef object __weakref__

    cdef int state
    cdef int app_state
    cdef int ending
    cdef Engine tls
    cdef LoopBuffers buffers
    cdef LoopCore core              # the loop, if it is mgloop's, else None
    cdef void *below                # `_transport`, if that can be written to by `write_below`
    cdef write_function write_below
    cdef object context             # what the transport below runs us in, if it tells
    cdef bint counted               # among its open connections
    cdef bint handshaking           # and that has not been counted

    cdef int set_state(self, int new_state) except -1
    cdef int hold_no_more(self, int reason) except -1
    cdef int fatal_error(self, object exc, object message) except -1
    cdef int wakeup_waiter(self, object exc) except -1
    cdef int put_off(self, object callback) except -1

    # What a half asks of the whole; SSLProtocol has it.
    cdef int close(self) except -1
    cdef int abort(self, object exc) except -1
    cdef int start_shutdown(self) except -1
    cdef int again(self) except -1
