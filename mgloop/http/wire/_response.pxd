# SPDX-License-Identifier: GPL-2.0-only
"""Declare a response, the table of its states, and the interface of its connection.

_response.pyx explains how a response works.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from mgloop._awaitable cimport Waiters
from mgloop.http.wire._headers cimport HeaderInfo
from mgloop.http.wire._site cimport Member, mgl_outgoing
from mgloop.transports._stream cimport Stream


cdef extern from "clock.h":
    int64_t mgl_clock_ns() noexcept


cdef extern from *:
    """
    /* The states of a response. It passes through them from left to right, and may skip some.

       HELD: the application has sent the head, and the head waits for the first part of the body.
       Only then is it known how the head announces the length, and both leave as one segment. */
    enum { MGL_UNSTARTED, MGL_HELD, MGL_SENDING, MGL_TRAILERS, MGL_COMPLETE, MGL_RESPONSE_STATES };

    /* The messages that the application may send. */
    enum { MGL_START, MGL_BODY_PART, MGL_FILE, MGL_TRAILER, MGL_HINT, MGL_UNKNOWN, MGL_MESSAGES };

    static inline int mgl_may_send(int state, int message)
    {
        static const unsigned char allowed[MGL_RESPONSE_STATES] = {
            [MGL_UNSTARTED] = 1 << MGL_START | 1 << MGL_HINT,
            [MGL_HELD]      = 1 << MGL_BODY_PART | 1 << MGL_FILE,
            [MGL_SENDING]   = 1 << MGL_BODY_PART | 1 << MGL_FILE,
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
        if (len == sizeof(body) - 1 && !memcmp(text, body, len)) return MGL_BODY_PART;
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
        MGL_BODY_PART
        MGL_FILE
        MGL_TRAILER
        MGL_HINT
        MGL_UNKNOWN
    bint mgl_may_send(int state, int message) noexcept
    int mgl_message_kind(PyObject *type) noexcept


# How the client recognises the end of the body. It is final in the states after HELD.
cdef enum:
    FRAMING_NONE        # HEAD, 204 or 304: a body of the application is not sent
    FRAMING_LENGTH      # by the Content-Length
    FRAMING_CHUNKED
    FRAMING_CLOSE       # by the end of the connection


# The interface of a connection to its responses, and the base class of connections that have any.
cdef class BaseConnection(Member):
    cdef readonly object transport
    cdef object write                   # the transport's write()
    cdef Stream stream                  # the transport, if it is mgloop's for sockets, else None
    cdef bint paused_writing            # the transport has paused writing: the peer does not read
    cdef bint lost                      # connection_lost() has been called
    cdef Waiters writable               # send() calls that wait until writing is resumed

    cdef int use_transport(self, object transport) except -1
    # Write through the transport, without the cost of a call of a method if it is mgloop's.
    cdef int write_bytes(self, bytes data) except -1
    # Send what the transport has deferred to the end of the iteration. Return False if that shows
    # that the connection is lost.
    cdef bint send_deferred(self) except -1
    # Called when the response is complete. `keep_alive`: the connection may serve another request.
    cdef int answered(self, Response response, bint keep_alive) except -1
    # Called when the application has received all of the body that had arrived.
    cdef int wants_more(self, Response response) except -1
    # End the connection in the middle of the response.
    cdef int cut_short(self, Response response) except -1
    # End the connection immediately.
    cdef int cut(self) except -1
    # Called when the transport's write() has raised, as it does if the loop is closed.
    cdef int write_failed(self, object exc) except -1


cdef class Response:
    cdef readonly dict scope
    cdef BaseConnection connection

    # The request, as far as the head of the response depends on it.
    cdef bint is_head
    cdef bint http_10
    cdef bint keep_alive                # the client asks for a persistent connection
    cdef bint expects_continue          # the client waits for 100 Continue, which has not been sent

    cdef int state
    cdef int framing
    cdef int status
    cdef bint close_after               # the connection ends after this response
    cdef bint has_date                  # the application has sent a Date header
    cdef bint has_server                # the application has sent a Server header
    cdef bint trailers                  # the application has announced trailers
    cdef bint in_file                   # a file is being sent
    cdef public object file_timeout     # the asyncio.Timeout of a file that is being sent, or None
    cdef long long length               # bytes of the Content-Length that are not sent yet, or -1
    cdef long long sent                 # bytes of body sent
    cdef unsigned int sends             # send() calls counted by must_yield()
    cdef int64_t began                  # mgl_clock_ns() at the start, for the access log
    cdef bint logged                    # the access log has been called
    cdef mgl_outgoing *out              # bytes that the transport does not have yet, or NULL
    cdef bint writing                   # the transport's write() is running
    cdef bint flush_due                 # _flush_due() is scheduled

    # The parts of the response. They raise before they write anything, or write everything.
    cdef int start(self, int status, object headers, bint trailers) except -1
    cdef int hold_head(self, int status, HeaderInfo *info) noexcept
    cdef int write_body(self, object data, bint more) except -1
    cdef int write_trailers(self, object headers, bint more) except -1
    cdef int write_hint(self, object links) except -1
    cdef int send_error(self, int status, bytes text) except -1
    cdef object wait_writable(self, bint more)

    cdef int check_state(self, int message, object kind) except -1
    cdef int refuse(self, object kind) except -1
    cdef int check_length(self, Py_ssize_t n, bint more) except -1
    cdef mgl_outgoing *reserve(self, size_t size) except NULL
    cdef bytes common_lines(self)
    cdef int end_head(self, bytes common, Py_ssize_t n, bint more) noexcept
    cdef int write_part(self, bytes data, bint more) except -1
    cdef int write_large(self, bytes data) except -1
    cdef int write_now(self, bytes data) except -1
    cdef bytes take_buffer(self)
    cdef int flush(self) except -1
    cdef int flush_soon(self) except -1
    cdef int complete(self) except -1
    cdef int drop_head(self) except -1
    cdef bint is_close_delimited(self) noexcept
    cdef int log_access(self) except -1
    cdef int log_incomplete(self) except -1

    # For subclasses; the methods of this class do nothing.
    # Called after a message that leaves bytes in the buffer.
    cdef int flush_later(self) except -1
    # Called when the response is complete.
    cdef int wake_receivers(self) except -1
    # Called when reading of the request may continue after a file.
    cdef int file_ended(self) except -1
