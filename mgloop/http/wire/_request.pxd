# SPDX-License-Identifier: GPL-2.0-only
"""Declare a request, the state table of its response, and the interface of its connection.

_request.pyx explains how a request works.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._awaitable cimport Waiters
from mgloop.http.wire._site cimport Member, Site, mgl_outgoing


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept


cdef extern from *:
    """
    /* The states of a response. It passes through them from left to right, and may skip some.

       HELD: the application has sent the head, and the head waits for the first part of the body.
       Only then is it known how the head announces the length, and both leave as one segment. */
    enum { MGL_UNSTARTED, MGL_HELD, MGL_SENDING, MGL_TRAILERS, MGL_COMPLETE, MGL_RESPONSE_STATES };

    /* The messages that the application may send. */
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

    /* Return the kind of a message by its type, for the two types that every response has. They are
       compared by their text, because the compiler of CPython does not intern strings with dots, so
       each module of the application has a string object of its own. */
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


# The interface of a connection to its requests.
cdef class Channel(Member):
    cdef readonly object transport
    cdef object write                   # the transport's write()
    cdef bint paused_writing            # the transport has paused writing: the peer does not read
    cdef bint lost                      # connection_lost() has been called
    cdef Waiters room                   # send() calls that wait until writing is resumed

    # Called when the response is complete. `keep_alive`: the connection may serve another request.
    cdef int answered(self, Request request, bint keep_alive) except -1
    # Called when the application has received all of the body that had arrived.
    cdef int wants_more(self, Request request) except -1
    # End the connection in the middle of the request's response.
    cdef int cut_short(self, Request request) except -1
    # End the connection immediately.
    cdef int cut(self) except -1
    # Called when the transport's write() has raised, as it does if the loop is closed.
    cdef int write_failed(self, object exc) except -1


cdef class Request:
    cdef readonly dict scope
    cdef Channel channel
    cdef object coroutine               # the application's coroutine, or None before the first step
    cdef readonly object task
    cdef bint stepping                  # the application runs at present
    cdef bint ended                     # the application has returned or raised
    cdef bint flush_due                 # _flush_due() is scheduled
    cdef bint cancelled                 # the server has cancelled the task
    cdef readonly bint cut_off          # end_stream() has cut off the response

    # The request.
    cdef bint is_head
    cdef bint http_10
    cdef bint keep_alive                # the client asks for a persistent connection
    cdef bint expects_continue          # the client waits for 100 Continue, which has not been sent
    cdef bint received                  # the whole body has arrived
    cdef bint told                      # the application has received the end of the body
    cdef readonly bint disconnected     # the client is gone, as far as the application is concerned
    cdef int unheard                    # messages that send() has discarded after the disconnect
    cdef object body                    # body not yet returned by receive() (see gather()), or None
    cdef Py_ssize_t body_len            # bytes in `body`
    cdef Py_ssize_t body_total          # bytes of body received
    cdef Waiters reading                # receive() calls that wait, or None

    # The response.
    cdef int state
    cdef int status
    cdef bint chunked
    cdef bint has_length
    cdef bint no_body                   # HEAD, 204 or 304: a body of the application is not sent
    cdef bint close_after               # the connection ends after this response
    cdef bint has_date                  # the application has sent a Date header
    cdef bint has_server                # the application has sent a Server header
    cdef bint trailers                  # the application has announced trailers
    cdef bint in_file                   # a file is being sent
    cdef public object patience         # the asyncio.Timeout of a file that is being sent, or None
    cdef long long length               # bytes of the Content-Length that are not sent yet
    cdef long long sent                 # bytes of body sent
    cdef unsigned int pieces            # send() calls counted by is_leaving()
    cdef int64_t began                  # mgl_clock_ns() at the start, for the access log
    cdef bint noted                     # the access log has been called
    cdef mgl_outgoing *out              # bytes that the transport does not have yet, or NULL
    cdef bint writing                   # the transport's write() is running

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
