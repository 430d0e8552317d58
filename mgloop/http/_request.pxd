# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._request: the table of a response's states, a request, and what it needs
of its connection. _request.pyx says how it works.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop.http._ready cimport Waiters
from mgloop.http._site cimport Member, Site, mgl_outgoing


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept


cdef extern from *:
    """
    /* A response goes from left to right.

       HELD: the application has sent its head, which waits for the first piece of the body: then
       it is known how the length is told, and both leave together. */
    enum { MGL_UNSTARTED, MGL_HELD, MGL_SENDING, MGL_TRAILERS, MGL_COMPLETE, MGL_RESPONSE_STATES };

    /* What the application may send. */
    enum { MGL_START, MGL_BODY_PIECE, MGL_FILE, MGL_TRAILER, MGL_HINT, MGL_UNKNOWN, MGL_MESSAGES };

    static inline int mgl_may_send(int state, int message)
    {
        static const unsigned char allowed[MGL_RESPONSE_STATES] = {
            [MGL_UNSTARTED] = 1 << MGL_START | 1 << MGL_HINT,
            [MGL_HELD]      = 1 << MGL_BODY_PIECE | 1 << MGL_FILE,
            [MGL_SENDING]   = 1 << MGL_BODY_PIECE | 1 << MGL_FILE,
            [MGL_TRAILERS]  = 1 << MGL_TRAILER,
            [MGL_COMPLETE]  = 0,
        };
        return allowed[state] >> message & 1;
    }

    /* Those that each response has, by the letters: a name with dots is interned by no compiler. */
    static inline int mgl_message_kind(PyObject *type)
    {
        static const char start[] = "http.response.start", body[] = "http.response.body";
        const void *text;
        size_t len;
        if (type == NULL || !PyUnicode_CheckExact(type) || !PyUnicode_IS_COMPACT_ASCII(type))
            return MGL_UNKNOWN;
        text = PyUnicode_DATA(type);
        len = (size_t) PyUnicode_GET_LENGTH(type);
        if (len == sizeof(body) - 1 && !memcmp(text, body, len)) return MGL_BODY_PIECE;
        if (len == sizeof(start) - 1 && !memcmp(text, start, len)) return MGL_START;
        return MGL_UNKNOWN;
    }
    """
    enum:
        MGL_UNSTARTED
        MGL_HELD
        MGL_SENDING
        MGL_TRAILERS
        MGL_COMPLETE
    enum:
        MGL_START
        MGL_BODY_PIECE
        MGL_FILE
        MGL_TRAILER
        MGL_HINT
        MGL_UNKNOWN
    bint mgl_may_send(int state, int message) noexcept
    int mgl_message_kind(PyObject *type) noexcept


# What a request needs of the connection that it came by.
cdef class Channel(Member):
    cdef readonly object transport
    cdef object write                   # the transport's write()
    cdef bint paused_writing            # the peer does not take what is sent
    cdef bint lost
    cdef Waiters room                   # who waits until it does

    # The response is whole; whether the connection may be used again.
    cdef int answered(self, Request request, bint keep_alive) except -1
    # The application has taken what had been received of the body.
    cdef int wants_more(self, Request request) except -1
    # End the connection in the midst of the request's response.
    cdef int cut_short(self, Request request) except -1
    # End it at once.
    cdef int cut(self) except -1
    # The transport's write() has raised, which it does for a loop that is closed.
    cdef int write_failed(self, object exc) except -1


cdef class Request:
    cdef readonly dict scope
    cdef Channel channel
    cdef object coroutine               # the application's, None until begun
    cdef readonly object task
    cdef bint stepping                  # the application runs
    cdef bint ended                     # it has returned
    cdef bint flush_due                 # flush_soon() has been called
    cdef bint cancelled                 # by the server
    cdef readonly bint cut_off          # by end_stream()

    # The request.
    cdef bint is_head
    cdef bint http_10
    cdef bint keep_alive                # the client wants to
    cdef bint expects_continue
    cdef bint received                  # all of the body is here
    cdef bint told                      # ... and the application has it
    cdef readonly bint disconnected
    cdef int unheard                    # messages that send() has discarded since then
    cdef object body                    # what gather() has kept, or None
    cdef Py_ssize_t body_len            # of what is in it
    cdef Py_ssize_t body_total          # of what has come
    cdef Waiters reading

    # The response.
    cdef int state
    cdef int status
    cdef bint chunked
    cdef bint has_length
    cdef bint no_body                   # whatever the application sends: HEAD, 204, 304
    cdef bint close_after
    cdef bint has_date
    cdef bint has_server
    cdef bint trailers
    cdef bint in_file                   # of which the end has not been sent
    cdef public object patience         # the asyncio.Timeout of files, while one is sent
    cdef long long length               # as announced and not sent yet
    cdef long long sent                 # bytes of body
    cdef unsigned int pieces            # of the body that have others behind them
    cdef int64_t began                  # for the access log: mgl_clock_ns()
    cdef bint noted                     # it has been told
    cdef mgl_outgoing *out              # bytes of the response that are not sent yet, or NULL
    cdef bint writing                   # the transport's write() runs

    cdef int begin(self) except -1
    cdef int add_body(self, const char *data, Py_ssize_t n) except -1
    cdef int body_ended(self) except -1
    cdef int disconnect(self) except -1
    cdef int step_on(self) except -1
    cdef dict take(self)
    cdef int say_continue(self) except -1
    cdef object discard(self)
    cdef object send_start(self, int status, object headers, bint trailers)
    cdef object send_body(self, object data, bint more)
    cdef object send_file(self, dict message, bint by_path)
    cdef object send_trailers(self, dict message)
    cdef int send_hint(self, dict message) except -1
    cdef int check_state(self, int message, object kind) except -1
    cdef mgl_outgoing *reserve(self, size_t size) except NULL
    cdef bytes common_lines(self)
    cdef int check_length(self, Py_ssize_t n, bint more) except -1
    cdef int hand_over(self, bytes data) except -1
    cdef int give(self, bytes data) except -1
    cdef bytes empty(self)
    cdef int flush(self) except -1
    cdef int flush_soon(self) except -1
    cdef int refused(self, int status, Py_ssize_t n) except -1
    cdef int note_access(self) except -1
    cdef int note_cut(self) except -1
    cdef int suspended(self) except -1
    cdef int end_head(self, bytes common, Py_ssize_t n, bint more) noexcept
    cdef int write_piece(self, bytes data, bint more) except -1
    cdef int complete(self) except -1
    cdef object drained(self, bint more)
    cdef int app_returned(self, object value) except -1
    cdef int app_raised(self, object exc) except -1
    cdef int abandon(self) except -1
    cdef bint looks_whole(self) noexcept
    cdef int take_back(self) except -1
    cdef int own_answer(self, int status, bytes text) except -1
    cdef int over(self) except -1
