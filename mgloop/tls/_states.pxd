# SPDX-License-Identifier: GPL-2.0-only
"""Declare the states and events of a TLS connection, their table, and the base class Connection.

Read the table first. The other modules of this package carry it out.
"""

from mgloop._loop cimport LoopCore
from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._engine cimport Engine


cdef extern from *:
    """
    /* The states and their order are those of asyncio.sslproto. */
    enum {
        UNWRAPPED,              /* not connected yet, or closed */
        DO_HANDSHAKE,           /* the peers agree on the keys; no data can be encrypted */
        WRAPPED,                /* the connection is established; data goes both ways */
        FLUSHING,               /* this side is closing, and delivers and sends the data left */
        SHUTDOWN,               /* this side has no more data, and exchanges close_notify alerts,
                                   with which each peer announces the end of its data */
        MGL_TLS_STATES
    };

    /* The events of a connection. Those that have the same effect in every state are not in the
       table: connection_lost() and abort() lead to UNWRAPPED, and pausing only sets a flag. */
    enum {
        ON_PROGRESS,            /* ciphertext has arrived, the application reads again, or the loop
                                   runs again after an exception of a callback had stopped it */
        ON_MORE,                /* data is left: the application's buffer was too small, or the
                                   rest was deferred to the next iteration */
        ON_EOF,                 /* the peer has stopped sending */
        ON_CLOSE,               /* close(), or a close_notify alert of the peer */
        ON_HANDSHAKE_TIMEOUT,
        ON_SHUTDOWN_TIMEOUT,
        ON_WRITE,               /* the application writes */
        ON_WRITABLE,            /* the transport below is writable again, or a callback has ended */
        MGL_TLS_EVENTS
    };

    /* The reactions to events. */
    enum {
        IGNORE,
        HANDSHAKE, FAIL_HANDSHAKE,
        READ,                   /* decrypt and deliver data */
        FLUSH,                  /* deliver and send all data, then enter SHUTDOWN */
        START_FLUSH,            /* enter FLUSHING, then FLUSH unless reading is paused */
        START_CLOSE,            /* enter FLUSHING, start the shutdown timeout, then FLUSH */
        ANSWER,                 /* send close_notify, or process that of the peer */
        ABORT, TIME_OUT,        /* close the transport below immediately, or after a timeout */
        REFUSE, QUEUE, ENCRYPT, /* reactions to a write */
        SEND,                   /* send the ciphertext that OpenSSL has ready */
        SEND_BACKLOG            /* encrypt and send the plaintext in the backlog, too */
    };

    static inline int mgl_tls_reaction(int event, int state)
    {
        static const unsigned char table[MGL_TLS_EVENTS][MGL_TLS_STATES] = {
    /*                        UNWRAPPED  DO_HANDSHAKE       WRAPPED       FLUSHING      SHUTDOWN */
    [ON_PROGRESS]          = {IGNORE,    HANDSHAKE,         READ,         FLUSH,        ANSWER},
    [ON_MORE]              = {IGNORE,    IGNORE,            READ,         READ,         IGNORE},
    [ON_EOF]               = {IGNORE,    FAIL_HANDSHAKE,    START_FLUSH,  FLUSH,        ANSWER},
    [ON_CLOSE]             = {IGNORE,    ABORT,             START_CLOSE,  IGNORE,       IGNORE},
    [ON_HANDSHAKE_TIMEOUT] = {IGNORE,    TIME_OUT,          IGNORE,       IGNORE,       IGNORE},
    [ON_SHUTDOWN_TIMEOUT]  = {IGNORE,    IGNORE,            IGNORE,       TIME_OUT,     TIME_OUT},
    [ON_WRITE]             = {REFUSE,    QUEUE,             ENCRYPT,      REFUSE,       REFUSE},
    [ON_WRITABLE]          = {IGNORE,    SEND,              SEND_BACKLOG, SEND_BACKLOG, SEND},
        };
        return table[event][state];
    }

    /* Return whether `next` may follow `state`. Each state is followed by the next one, or by
       UNWRAPPED after a failure. */
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
        ON_WRITABLE
    enum:
        IGNORE
        HANDSHAKE
        FAIL_HANDSHAKE
        READ
        FLUSH
        START_FLUSH
        START_CLOSE
        ANSWER
        ABORT
        TIME_OUT
        REFUSE
        QUEUE
        ENCRYPT
        SEND
        SEND_BACKLOG
    int reaction "mgl_tls_reaction"(int event, int state) noexcept
    bint may_follow "mgl_tls_may_follow"(int state, int next) noexcept


cdef enum:
    # The last of connection_made, eof_received and connection_lost that the application's protocol
    # has received. It receives them in this order, and each at most once.
    APP_INIT
    APP_CON_MADE
    APP_EOF
    APP_CON_LOST

cdef enum:
    # Whether the connection still needs OpenSSL's objects. After both CLOSED_TWICE and LOST it has
    # released them.
    IN_USE                          # it needs them
    CLOSED_TWICE                    # the application has closed its transport twice
    LOST                            # connection_lost() was called
    RELEASED                        # it has released them


# Send data[:size] through the transport below. The memory is used during the call only.
ctypedef int (*write_function)(void *below, const char *data, Py_ssize_t size) except -1


cdef class Connection:
    # asyncio, CPython's tests and debugging tools read these attributes under asyncio's names.
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
    cdef int engine_use
    # Another engine may replace this one during a call of its methods, because OpenSSL and the ssl
    # module can run Python code. So a caller holds it in a local variable.
    cdef Engine tls
    cdef LoopBuffers buffers
    cdef LoopCore core              # the loop, if it is mgloop's, else None
    cdef void *below                # `_transport` if `write_below` can write to it, else NULL
    cdef write_function write_below
    # The contextvars.Context in which a native transport below runs its callbacks, or None.
    cdef object context
    cdef bint counted               # the loop's statistics count it as an open connection
    cdef bint handshaking           # the loop's statistics do not have the result of the handshake

    cdef int set_state(self, int new_state) except -1
    cdef int release_engine(self, int reason) except -1
    cdef int fatal_error(self, object exc, object message) except -1
    cdef int wakeup_waiter(self, object exc) except -1
    cdef int defer(self, object callback) except -1

    # Methods of SSLProtocol that its base classes call.
    cdef int close(self) except -1
    cdef int abort(self, object exc) except -1
    cdef int start_shutdown(self) except -1
    cdef int resume_later(self) except -1
