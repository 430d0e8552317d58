# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._connection: the table of a connection's states. _connection.pyx says
how it works.
"""

from mgloop.http._llhttp cimport llhttp_t
from mgloop.http._request cimport Channel, Request


cdef extern from *:
    """
    /* Where the reading side of a connection is; the writing side is the response's (_request). */
    enum {
        MGL_READS_HEAD,     /* between requests, or in the middle of a head */
        MGL_READS_BODY,     /* the request is with the application, its body still comes */
        MGL_HAS_REQUEST,    /* all of it is here; what comes waits for the end of the response */
        MGL_DISCARDS,       /* the response was complete before the request: the rest is ignored */
        MGL_LINGERS,        /* the last response has been sent, and the client may still read it */
        MGL_GONE,           /* closed, or a WebSocket's now */
        MGL_CONNECTION_STATES
    };

    /* What happens: a head has been read; its message has; the response is complete, and the
       connection is kept, or is not though the client may still send; it is lost, or closed. */
    enum {
        MGL_ON_HEAD, MGL_ON_END, MGL_ON_ANSWER, MGL_ON_LAST_ANSWER, MGL_ON_LOSS,
        MGL_CONNECTION_EVENTS
    };

    /* The state that follows. */
    static inline int mgl_next_state(int state, int event)
    {
        enum { HEAD = MGL_READS_HEAD, BODY = MGL_READS_BODY, HAS = MGL_HAS_REQUEST,
               DISC = MGL_DISCARDS, LING = MGL_LINGERS, GONE = MGL_GONE };
        static const unsigned char table[MGL_CONNECTION_EVENTS][MGL_CONNECTION_STATES] = {
    /*                         HEAD  BODY  HAS   DISC  LING  GONE */
    [MGL_ON_HEAD]          = { BODY, BODY, HAS,  DISC, LING, GONE },
    [MGL_ON_END]           = { HEAD, HAS,  HAS,  HEAD, LING, GONE },
    [MGL_ON_ANSWER]        = { HEAD, DISC, HEAD, DISC, LING, GONE },
    [MGL_ON_LAST_ANSWER]   = { LING, LING, LING, LING, LING, GONE },
    [MGL_ON_LOSS]          = { GONE, GONE, GONE, GONE, GONE, GONE },
        };
        return table[event][state];
    }
    """
    enum:
        MGL_READS_HEAD
        MGL_READS_BODY
        MGL_HAS_REQUEST
        MGL_DISCARDS
        MGL_LINGERS
        MGL_GONE
    enum:
        MGL_ON_HEAD
        MGL_ON_END
        MGL_ON_ANSWER
        MGL_ON_LAST_ANSWER
        MGL_ON_LOSS
    int mgl_next_state(int state, int event) noexcept


cdef class Connection(Channel):
    cdef llhttp_t parser
    cdef int state
    cdef Request request                # whose response is not complete
    cdef Request unbegun                # whose head has just been read
    cdef object ahead                   # kept by gather(): requests sent ahead, or None
    cdef bint feeding                   # inside feed()
    cdef bint go_on_due                 # _go_on() is scheduled
    cdef bint paused_reading
    cdef bint over_tls
    cdef object failure                 # (status, reason) found in the midst of parsing, or None

    # The head as far as it has been read. A piece of it in `at` lies in what is being parsed, and
    # is kept in `carry` when that ends before the piece does.
    cdef const char *at
    cdef Py_ssize_t at_len
    cdef object carry                   # kept by gather(), or None
    cdef Py_ssize_t piece_len
    cdef const char *origin             # of what is being parsed
    cdef Py_ssize_t offset              # bytes before it since the method
    cdef Py_ssize_t target_end          # where the target ends, counted so
    cdef int blank                      # bytes of the empty line that may stand before
    cdef str method                     # None until it has been read
    cdef bytes name                     # of the header whose value is read
    cdef bytes url
    cdef list headers
    cdef Py_ssize_t head_len
    cdef int hosts, types               # how often Host and Content-Type are among them
    cdef bint in_head                   # a head has begun, and has not ended
    cdef bint expects_continue
    cdef bytes coding                   # Transfer-Encoding, if it is not chunked alone
    cdef bint wants_websocket
    cdef bint timed                     # the deadline is of a head, or of what frames the body
    cdef Py_ssize_t unsent              # what the client had not taken when it was asked last
    cdef double progress_at             # when it took some of that last: mgl_coarse_time()
    cdef Py_ssize_t extension_len       # of the present chunk
    cdef bint at_chunk                  # a chunk's first line comes next
    cdef bint last_chunk                # ... has said that no other follows
    cdef object chunk_line              # kept by gather(): its beginning, or None
    cdef Py_ssize_t discarded
    cdef Py_ssize_t payload             # bytes of the body that have come
    cdef Py_ssize_t payload_timed       # ... when they were last given time; -1 at the beginning
    cdef Py_ssize_t extensions_len      # of all chunks

    # Of the peer, for the scopes.
    cdef public object handshake        # _site's Handshake until it is over, or None
    cdef public object ends             # (client, server) as a proxy has told, or None
    cdef public bint unnamed            # a PROXY header does not name the client
    cdef dict tls                       # ASGI's extension, or None
    cdef object client                  # as scopes have it
    cdef dict common_scope              # what else each has, all keys in it, or None: the site's
    cdef bint trusted                   # a proxy that may say who the client is
    cdef bint forwarded                 # the head has a word on that

    cdef int feed(self, const char *data, Py_ssize_t n) except -1
    cdef int one_message(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1
    cdef int parse(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1
    cdef int take_chunk_line(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except? -1
    cdef int take_method(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1
    cdef int begin_message(self, str method) except -1
    cdef int keep(self, bytes data) except -1
    cdef int schedule_go_on(self) except -1
    cdef int set_time(self) except -1
    cdef int time_body(self) except -1
    cdef int pause_reading(self) except -1
    cdef int resume_reading(self) except -1

    # Called by the parser: -1 = the message is not acceptable, -2 = an exception.
    cdef int fail(self, int status, str reason) except -2
    cdef int take_piece(self, const char *at, size_t length) except -2
    cdef int header_ended(self) except -2
    cdef int head_ended(self) except -2
    cdef bint known_coding(self) except -1
    cdef int body_came(self, const char *at, size_t length) except -2
    cdef int message_ended(self) except -1
    cdef int keep_piece(self) except -1
    cdef bytes piece(self)
    cdef bytes lowered(self)
    cdef int forget_head(self) except -1

    cdef dict make_scope(self)
    cdef bint split_target(self, dict scope) except -1
    cdef int replace_host(self, bytes host) except -1
    cdef const char *path_of_absolute(
        self, const char *start, const char *end, const char **host) noexcept
    cdef int look_at_peer(self) except -1

    cdef int begin_request(self) except -1
    cdef bint is_websocket(self) except -1
    cdef int upgrade(self, const char *data, Py_ssize_t n) except -1
    cdef int enter(self, int event) except -1
    cdef int finish(self, bint more_comes) except -1
    cdef int close_transport(self) except -1
    cdef int watch_writing(self) except -1
    cdef int watch_rest(self, int kind) except -1
    cdef int watch_end(self) except -1
    cdef int idle_for_long(self) except -1
    cdef bint still_taken(self, int kind) except -1
    cdef int refuse(self, int status, str reason) except -1
