# SPDX-License-Identifier: GPL-2.0-only
"""Declare the class Connection and the state table of an HTTP/1 connection.

_connection.pyx explains how the connection works.
"""

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._parser cimport HeadParser
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
    cdef HeadParser parser
    cdef RequestFactory requests        # None before the first data
    cdef int state
    cdef RequestBody request            # the one whose response is not complete, or None
    cdef RequestBody unstarted          # a request whose application may not start yet, or None
    cdef object pipelined               # data not parsed yet (see gather()), or None
    cdef bint feeding                   # inside feed()
    cdef bint parsing_due              # _parse_pipelined() is scheduled
    cdef bint paused_reading
    cdef bint over_tls

    cdef bint timed                     # the deadline is for a head, or for the framing of a body
    cdef Py_ssize_t timed_total         # bytes of body when the deadline was last set; -1 at first
    cdef Py_ssize_t discarded           # bytes of body received after the end of the response
    cdef Py_ssize_t unsent              # bytes that were unacknowledged at the last check
    cdef double progress_at             # mgl_coarse_time() of the last acknowledgement

    # About the peer, for the scopes.
    cdef public object handshake        # _site's Handshake while the TLS handshake runs, else None
    cdef public object ends             # (client, server) from a PROXY header, or None
    cdef public bint unnamed            # a PROXY header does not name the client

    cdef int feed(self, const char *data, Py_ssize_t n) except -1
    cdef int parse_message(self, const char *data, Py_ssize_t n, Py_ssize_t *used) except -1
    cdef bint head_read(self) except -1
    cdef RequestFactory request_factory(self)
    cdef bint body_part_read(self) except -1
    cdef int message_ended(self) except -1
    cdef int data_parsed(self) except -1
    cdef int buffer_pipelined(self, bytes data) except -1
    cdef int schedule_parsing(self) except -1
    cdef int set_read_deadline(self) except -1
    cdef int set_body_deadline(self) except -1
    cdef int pause_reading(self) except -1
    cdef int resume_reading(self) except -1

    cdef int begin_request(self) except -1
    cdef int upgrade(self, const char *data, Py_ssize_t n) except -1
    cdef int enter(self, int event) except -1
    cdef int finish(self, bint more_comes) except -1
    cdef int close_transport(self) except -1
    cdef int watch_write_progress(self) except -1
    cdef int watch_unsent(self, int kind) except -1
    cdef int watch_shutdown(self) except -1
    cdef int keep_alive_expired(self) except -1
    cdef bint makes_progress(self, int kind) except -1
    cdef int refuse(self, int status, str reason) except -1
