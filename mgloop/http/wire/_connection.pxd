# SPDX-License-Identifier: GPL-2.0-only
"""Declare the class Connection and the state table of an HTTP/1 connection.

_connection.pyx explains how the connection works.
"""

from mgloop.http.wire._llhttp cimport llhttp_t
from mgloop.http.wire._request cimport Request
from mgloop.http.wire._response cimport BaseConnection


cdef extern from *:
    """
    /* The state of the reading side of a connection. The response holds the state of the writing
       side (_response.pxd). */
    enum {
        MGL_READS_HEAD,     /* between requests, or in the middle of a head */
        MGL_READS_BODY,     /* the application has the request; its body is still arriving */
        MGL_HAS_REQUEST,    /* the request is complete; later data waits for the response's end */
        MGL_DISCARDS,       /* the response was complete before the request: ignore its rest */
        MGL_LINGERS,        /* the last response has been sent; the client may still read it */
        MGL_GONE,           /* closed, or handed over to a WebSocket */
        MGL_CONNECTION_STATES
    };

    /* The events that change the state:
       HEAD: the parser has read a whole head.
       END: the parser has read a whole message.
       ANSWER: the response is complete, and the connection stays open.
       LAST_ANSWER: the response is complete and the connection ends, but the client may still send.
       LOSS: the connection is lost or closed. */
    enum {
        MGL_ON_HEAD, MGL_ON_END, MGL_ON_ANSWER, MGL_ON_LAST_ANSWER, MGL_ON_LOSS,
        MGL_CONNECTION_EVENTS
    };

    /* Return the state that follows `state` after `event`. */
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


cdef class Connection(BaseConnection):
    cdef llhttp_t parser
    cdef int state
    cdef Request request                # the one whose response is not complete, or None
    cdef Request unbegun                # a request whose head has just been read, or None
    cdef object ahead                   # pipelined data, not parsed yet (see gather()), or None
    cdef bint feeding                   # inside feed()
    cdef bint go_on_due                 # _go_on() is scheduled
    cdef bint paused_reading
    cdef bint over_tls
    cdef object failure                 # (status, reason) of an error in a callback, or None

    # The part of the head that has been read. `at` and `at_len` are the present token (the target,
    # or the name or the value of a header) inside the data that is being parsed. If the data ends
    # before the token does, the token is copied into `carry`.
    cdef const char *at
    cdef Py_ssize_t at_len
    cdef object carry                   # the beginning of the token (see gather()), or None
    cdef Py_ssize_t piece_len           # bytes of the token, in `carry` and at `at`
    cdef const char *origin             # the first byte of the data that is being parsed
    cdef Py_ssize_t offset              # bytes between the end of the method and `origin`
    cdef Py_ssize_t target_end          # bytes between the ends of the method and of the target
    cdef int blank                      # bytes read of the empty line that may precede a request
    cdef str method                     # None until it has been read
    cdef bytes name                     # the name of the header whose value is being read
    cdef bytes url
    cdef list headers
    cdef Py_ssize_t head_len
    cdef int hosts, types               # the number of Host and of Content-Type headers in the head
    cdef bint in_head                   # a head has begun, and has not ended
    cdef bint expects_continue
    cdef bytes coding                   # Transfer-Encoding, unless it is just "chunked", or None
    cdef bint wants_websocket
    cdef bint timed                     # the deadline is for a head, or for the framing of a body
    cdef Py_ssize_t unsent              # bytes that were unacknowledged at the last check
    cdef double progress_at             # mgl_coarse_time() of the last acknowledgement
    cdef Py_ssize_t extension_len       # bytes of extensions in the present chunk
    cdef bint at_chunk                  # the first line of a chunk comes next
    cdef bint last_chunk                # the present chunk is the last one (its size is 0)
    cdef object chunk_line              # beginning of a chunk's first line (see gather()), or None
    cdef Py_ssize_t discarded           # bytes of body received after the end of the response
    cdef Py_ssize_t payload             # bytes of body received
    cdef Py_ssize_t payload_timed       # `payload` when the deadline was last set; -1 at first
    cdef Py_ssize_t extensions_len      # bytes of extensions in all chunks of the message

    # About the peer, for the scopes.
    cdef public object handshake        # _site's Handshake while the TLS handshake runs, else None
    cdef public object ends             # (client, server) from a PROXY header, or None
    cdef public bint unnamed            # a PROXY header does not name the client
    cdef dict tls                       # ASGI's extension, or None
    cdef object client                  # the scope's value for "client"
    cdef dict common_scope              # a scope with all keys, copied for each request, or None
    cdef bint trusted                   # the peer is a proxy whose forwarding headers are believed
    cdef bint forwarded                 # the head has Forwarded or an X-Forwarded-* header

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

    # Called by the parser. Return -1 if the message is not acceptable, -2 with an exception set.
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
    cdef int check_peer(self) except -1

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
