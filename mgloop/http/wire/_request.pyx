# SPDX-License-Identifier: GPL-2.0-only
"""One HTTP request and its response: ASGI's receive() and send().

The module is native because it runs per request and per message, on the thread of the loop.  A
Request is itself the coroutine of its task.  It therefore notices each time that the application
waits, returns or raises, without a Python frame in between and without a done callback.

The messages that the application sends are collected in a buffer of the request (outgoing.h).  The
buffer is written to the transport when the application waits, when the response is complete, or
when it holds FLUSH_AT bytes.  So a head and a body that are sent one after the other leave as one
segment, and so do ten small chunks.

Python code may run while a message is processed: the garbage collector, a finalizer, or methods of
the application's objects.  That code may send other messages, even for the same response.  So each
message is first read, checked and measured.  Then the state of the response is checked, and then C
functions that cannot fail copy the whole message.

Lifetime: the task holds a reference until the application has returned, and the connection holds
one until the response is complete.  A late send() finds its own, complete response and never that
of another request.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from mgloop._awaitable cimport Awaitable, Waiters, Waiting, thrown
from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._ready cimport is_leaving
from mgloop.http.wire._site cimport (
    MGL_BODY, MGL_CHUNK_LINE, MGL_CONNECTION, MGL_CONTENT_LENGTH, MGL_DATE, MGL_DECIMAL_DIGITS,
    MGL_OTHER_HEADER, MGL_SERVER, MGL_TRANSFER_ENCODING, Member, STATUS_LINES, Site,
    check_header, check_piece, content_length, mgl_header_kind, mgl_out_free,
    mgl_out_reserve, mgl_outgoing, mgl_pool_give, mgl_pool_take, mgl_put, mgl_put_chunk_line,
    mgl_put_decimal, mgl_put_field, without,
)

import logging
import sys
from asyncio import CancelledError
from collections.abc import Coroutine

from ..errors import ClientDisconnected, because_client_left


cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef struct PyAsyncMethods:
        PySendResult (*am_send)(PyObject *self, PyObject *value,
                                PyObject **result) except PYGEN_ERROR
    ctypedef struct PyTypeObject:
        PyAsyncMethods *tp_as_async
    PySendResult PyIter_Send(PyObject *iterator, PyObject *value,
                             PyObject **result) except PYGEN_ERROR
    bint PyCoro_CheckExact(object o)
    bint PyDict_Next(PyObject *d, Py_ssize_t *position, PyObject **key, PyObject **value) noexcept
    bint PyDict_CheckExact(object o)
    bint PyBytes_CheckExact(object o)
    bint PyList_CheckExact(object o)
    bint PyTuple_CheckExact(object o)
    Py_ssize_t PyTuple_GET_SIZE(object t)
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)


cdef enum:
    FLUSH_AT = 32 << 10     # bytes in the buffer at which it is written to the transport
    COPY_BELOW = 64 << 10   # smaller parts of a body (in bytes) are copied into the buffer
    # The most bytes that end_head() adds to the site's header lines, and write_piece() to a part of
    # the body.
    HEAD_END = 96 + MGL_DECIMAL_DIGITS
    CHUNK_ENDS = MGL_CHUNK_LINE + 7
    UNHEARD = 100           # messages that send() discards after the client has disconnected

cdef object log = logging.getLogger("mgloop.http")

cdef str TYPE = sys.intern("type")
cdef str STATUS = sys.intern("status")
cdef str HEADERS = sys.intern("headers")
cdef str TRAILERS = sys.intern("trailers")
cdef str BODY = sys.intern("body")
cdef str MORE_BODY = sys.intern("more_body")
cdef str HTTP_REQUEST = sys.intern("http.request")
#: The keys of Fields. Each maps to the string object that read_fields() compares by identity.
cdef dict KNOWN = {key: key for key in (TYPE, STATUS, HEADERS, TRAILERS, BODY, MORE_BODY)}
cdef dict MESSAGES = {
    "http.response.start": MGL_START,
    "http.response.body": MGL_BODY_PIECE,
    "http.response.pathsend": MGL_FILE,
    "http.response.zerocopysend": MGL_FILE,
    "http.response.trailers": MGL_TRAILER,
    "http.response.early_hint": MGL_HINT,
}
#: For each state of a response, the message that the application may send: for error messages.
cdef tuple EXPECTED = (
    "http.response.start", "http.response.body", "http.response.body", "http.response.trailers",
)


# --- messages ------------------------------------------------------------------------------------

cdef struct Fields:
    # The values of a message, as references borrowed from its dict; NULL for a missing key.
    PyObject *type
    PyObject *status
    PyObject *headers
    PyObject *trailers
    PyObject *body
    PyObject *more_body


cdef bint read_fields(dict message, Fields *fields) noexcept:
    """Read the fields of a message in one pass over its keys.

    That is faster than a lookup for each field.

    Return False if a key is not one of the known string objects: it is unknown, or it is an equal
    string in another object.
    """
    cdef Py_ssize_t position = 0
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    fields[0] = Fields(NULL, NULL, NULL, NULL, NULL, NULL)
    while PyDict_Next(<PyObject *>message, &position, &key, &value):
        if key is <PyObject *>TYPE:
            fields.type = value
        elif key is <PyObject *>BODY:
            fields.body = value
        elif key is <PyObject *>MORE_BODY:
            fields.more_body = value
        elif key is <PyObject *>STATUS:
            fields.status = value
        elif key is <PyObject *>HEADERS:
            fields.headers = value
        elif key is <PyObject *>TRAILERS:
            fields.trailers = value
        else:
            return False
    return True


cdef dict known_of(dict message):
    """Return a copy of a message that read_fields() has rejected, with the known keys only."""
    return {KNOWN[key]: value for key, value in message.items() if key in KNOWN}


# --- the coroutine -------------------------------------------------------------------------------

cdef inline int check_idle(Request request) except -1:
    """Raise ValueError if the application's coroutine is running already; call it before each step.

    The coroutine itself would raise the same error. But here that exception would count as the end
    of the application, and the coroutine would be freed while it runs.
    """
    if request.stepping:
        raise ValueError("coroutine already executing")
    return 0


cdef PySendResult request_step(PyObject *self, PyObject *value,
                               PyObject **result) except PYGEN_ERROR:
    """Run the application up to its next suspension, as am_send of a coroutine.

    Store the object that the application waits for in `result`, or None at its end.
    """
    cdef Request request = <Request>self
    cdef PySendResult outcome
    result[0] = NULL
    if request.ended:
        raise RuntimeError("cannot reuse a request that has ended")
    check_idle(request)
    request.stepping = True
    try:
        if request.coroutine is None:
            request.begin()
        outcome = PyIter_Send(<PyObject *>request.coroutine, value, result)
    except BaseException as exc:
        request.stepping = False
        request.app_raised(exc)     # re-raises CancelledError, KeyboardInterrupt and GeneratorExit
        outcome = PYGEN_RETURN
    else:
        request.stepping = False
        if outcome == PYGEN_NEXT:
            request.suspended()
            return outcome
        value = result[0]
        result[0] = NULL
        try:
            request.app_returned(<object>value)
        finally:
            Py_DECREF(<object>value)
    result[0] = <PyObject *>None
    Py_INCREF(None)
    return outcome


cdef class Channel(Member):
    """The base class of a connection that carries requests (Connection in _connection)."""

    def __cinit__(self, *args, **kwargs):
        self.room = Waiters.__new__(Waiters)

    cdef int answered(self, Request request, bint keep_alive) except -1:
        raise NotImplementedError

    cdef int wants_more(self, Request request) except -1:
        raise NotImplementedError

    cdef int cut_short(self, Request request) except -1:
        raise NotImplementedError

    cdef int cut(self) except -1:
        raise NotImplementedError

    cdef int write_failed(self, object exc) except -1:
        raise NotImplementedError


cdef class Request:
    """Hold one request and its response, and serve as the coroutine of its task."""

    def __cinit__(self):
        self.channel = NOBODY

    def __dealloc__(self):
        mgl_out_free(self.out)

    # -------------------------------------------------------------- as a coroutine ----

    def __await__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Run one step, as coroutine.send(): for tasks that do not use am_send."""
        cdef PyObject *result
        cdef PySendResult outcome = request_step(<PyObject *>self, <PyObject *>value, &result)
        value = <object>result
        Py_DECREF(value)
        if outcome == PYGEN_RETURN:
            raise StopIteration
        return value

    def throw(self, kind, value=None, traceback=None):
        """Raise the exception at the point where the application waits, as coroutine.throw()."""
        check_idle(self)
        value = thrown(kind, value, traceback)
        if self.ended:
            raise value
        if self.coroutine is None:      # the task was cancelled before its first step
            self.app_raised(value)
            raise StopIteration
        self.stepping = True
        try:
            yielded = self.coroutine.throw(value)
        except StopIteration as stop:
            self.stepping = False
            self.app_returned(stop.value)
        except BaseException as exc:
            self.stepping = False
            self.app_raised(exc)
        else:
            self.stepping = False
            self.suspended()
            return yielded
        raise StopIteration

    def close(self):
        """Close the application's coroutine, as coroutine.close()."""
        check_idle(self)
        if self.coroutine is not None and not self.ended:
            self.stepping = True
            try:
                self.coroutine.close()
            finally:
                self.stepping = False
                self.flush()
                self.over()

    @property
    def cr_frame(self):
        """The frame of the application's coroutine, for tools that print the stacks of tasks."""
        return getattr(self.coroutine, "cr_frame", None)

    @property
    def cr_await(self):
        """The object that the application's coroutine awaits, or None."""
        return getattr(self.coroutine, "cr_await", None)

    @property
    def cr_code(self):
        """The code object of the application's coroutine, or None."""
        return getattr(self.coroutine, "cr_code", None)

    @property
    def cr_running(self):
        """Whether the application's coroutine is running now."""
        return self.stepping

    def cancel(self):
        """Cancel the task; the connection closes after the task has ended."""
        self.close_after = self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def end_stream(self):
        """Cut off the request if it may never end, and return whether it was cut off.

        A response without a known length may never end, and neither may a request whose body is
        incomplete.
        """
        if self.ended or self.state == MGL_COMPLETE or (
                self.received and (self.state == MGL_UNSTARTED or self.has_length)):
            return False
        self.cut_off = True
        if not self.channel.lost:
            self.flush()
            self.channel.cut_short(self)
        self.disconnect()
        return True

    cdef int begin(self) except -1:
        coroutine = self.channel.site.app(self.scope, self.receive, self.send_message)
        if not PyCoro_CheckExact(coroutine):
            coroutine = coroutine.__await__()
        self.coroutine = coroutine
        return 0

    cdef int step_on(self) except -1:
        try:
            self.task = self.channel.site.start(self)
        except Exception as exc:    # the task factory has raised
            if not self.ended:
                self.app_raised(exc)
        if self.ended:
            self.task = None
        return 0

    # ------------------------------------------------------------------- receive() ----

    def receive(self):
        """Return an awaitable for the next http.request or http.disconnect, as ASGI's receive()."""
        cdef Receiving result
        if self.expects_continue:
            self.say_continue()
        result = Receiving.__new__(Receiving)
        result.request = self
        return result

    cdef dict take(self):
        """Return the next message for receive(), or None if the application has to wait for it."""
        cdef object data
        if self.disconnected or self.state == MGL_COMPLETE:
            return {TYPE: "http.disconnect"}
        if self.body_len == 0 and not (self.received and not self.told):
            return None
        data = b"" if self.body is None else gathered(self.body)
        self.body = None
        self.body_len = 0
        if self.received:
            self.told = True
        else:
            self.channel.wants_more(self)
        return {TYPE: HTTP_REQUEST, BODY: data, MORE_BODY: not self.received}

    cdef int add_body(self, const char *data, Py_ssize_t n) except -1:
        self.body = gather(self.body, data, n)
        self.body_len += n
        self.body_total += n
        return 0

    cdef int body_ended(self) except -1:
        self.received = True
        self.expects_continue = False
        return 0

    cdef int disconnect(self) except -1:
        self.disconnected = True
        if self.reading is not None:
            self.reading.wake_all()
        # Not when the application ends: one that does not call receive() may run on for hours.
        self.note_cut()
        return 0

    cdef int say_continue(self) except -1:
        """Send 100 Continue, unless the head of the response has been sent already.

        The client's deadline for the body begins now, whether it was sent or not.
        """
        cdef bint failed = False
        self.expects_continue = False
        if self.received or self.state == MGL_COMPLETE or self.disconnected:
            return 0
        if self.state <= MGL_HELD:
            try:
                # Not through the buffer, because that may hold the head of the final response.
                self.channel.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            except Exception as exc:
                self.channel.write_failed(exc)
                failed = True
        return 0 if failed else self.channel.set_deadline(MGL_BODY)

    # ---------------------------------------------------------------------- send() ----

    def send_message(self, message):
        """Process one message of the application and return an awaitable, as ASGI's send().

        Raise RuntimeError for a message that is invalid or not allowed in the present state, and
        ClientDisconnected (an OSError) if the response has been cut off.
        """
        cdef Fields fields
        cdef dict known
        cdef object kind, first, second, third
        cdef int what
        if not PyDict_CheckExact(message):
            message = dict(message)
        what = MGL_UNKNOWN
        if read_fields(message, &fields):
            what = mgl_message_kind(fields.type)
        if what == MGL_UNKNOWN:
            # Copy the message: hashing and comparing its keys may run Python code, which may change
            # the application's dict while its values are only borrowed.
            known = known_of(message)
            read_fields(known, &fields)
            if fields.type is NULL:
                raise KeyError(TYPE)
            what = MESSAGES.get(<object>fields.type, MGL_UNKNOWN)
        kind = <object>fields.type
        if self.cut_off and self.state != MGL_COMPLETE:
            raise ClientDisconnected("server is shutting down")
        if self.disconnected and self.state != MGL_COMPLETE:
            return self.discard()
        self.check_state(what, kind)
        # The code below may run Python code of the application, which may change the message. So
        # turn the borrowed references into owned ones first.
        if what == MGL_BODY_PIECE:
            first = None if fields.body is NULL else <object>fields.body
            second = False if fields.more_body is NULL else <object>fields.more_body
            return self.send_body(first, second)
        if what == MGL_START:
            if fields.status is NULL:
                raise KeyError(STATUS)
            first = <object>fields.status
            second = () if fields.headers is NULL else <object>fields.headers
            third = False if fields.trailers is NULL else <object>fields.trailers
            return self.send_start(first, second, third)
        if what == MGL_FILE:
            return self.send_file(message, kind == "http.response.pathsend")
        if what == MGL_TRAILER:
            return self.send_trailers(message)
        self.send_hint(message)
        return self.channel.site.ready

    cdef object discard(self):
        """Discard a message after the client has disconnected; return the awaitable for send().

        The message is discarded without an error, as in uvicorn, so that the application can run
        the code that follows its response.  Each send() waits for one iteration of the loop: code
        that waits for http.disconnect runs then, and can cancel the task that sends.  After UNHEARD
        messages send() raises ClientDisconnected, because an application that never stops sending
        would occupy the loop forever.
        """
        if self.unheard >= UNHEARD:
            log.debug(
                "Application sent %d messages after the client disconnected; send() raises now.",
                UNHEARD)
            raise ClientDisconnected("the client has disconnected")
        self.unheard += 1
        return Turn.__new__(Turn)

    def refuse(self, kind):
        """Raise RuntimeError for a message that is not allowed in the present state."""
        if self.in_file:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, while a file is being sent.")
        if self.writing:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, while another one is being written.")
        if self.state == MGL_COMPLETE:
            raise RuntimeError(
                f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        raise RuntimeError(f"Expected ASGI message '{EXPECTED[self.state]}', but got '{kind}'.")

    cdef object send_start(self, int status, object headers, bint trailers):
        cdef mgl_outgoing *out
        cdef Lines lines
        cdef tuple plain
        cdef bytes first
        if status < 200 or status > 599:
            raise ValueError(f"Invalid HTTP status code {status} in response: expected 200 to 599.")
        plain = plain_headers(headers)
        measure(plain, False, &lines)
        self.check_state(MGL_START, "http.response.start")
        first = <bytes>STATUS_LINES[status]
        out = self.reserve(PyBytes_GET_SIZE(first) + lines.size)
        mgl_put(out, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
        put_headers(out, plain, &lines)
        self.status = status
        self.no_body = self.is_head or status == 204 or status == 304
        self.trailers = trailers
        self.has_length = lines.length >= 0
        self.length = lines.length
        self.chunked = lines.chunked
        self.has_date = lines.date
        self.has_server = lines.server
        if lines.closes:
            self.close_after = True
        self.state = MGL_HELD
        if not self.stepping:
            self.flush_soon()
        return self.channel.site.ready

    cdef int check_state(self, int message, object kind) except -1:
        """Raise RuntimeError unless the message is allowed in the present state.

        Call it when no more Python code can run before the message has been written.
        """
        if self.in_file or self.writing or not mgl_may_send(self.state, message):
            self.refuse(kind)
        return 0

    cdef mgl_outgoing *reserve(self, size_t size) except NULL:
        """Return the buffer, after making room for `size` more bytes in it."""
        if self.out is NULL:
            self.out = mgl_pool_take(&self.channel.site.pool)
        mgl_out_reserve(self.out, size)
        return self.out

    cdef bytes common_lines(self):
        """Return the header lines that all responses of the site have.

        Date and Server are left out if the application has sent its own. Return None if the head
        has ended. May run Python code.
        """
        cdef bytes common
        if self.state != MGL_HELD:
            return None
        common = self.channel.site.headers_now()
        if self.has_date or self.has_server:
            common = without(common, self.has_date, self.has_server)
        return common

    cdef int end_head(self, bytes common, Py_ssize_t n, bint more) noexcept:
        """Write the end of a held head into the buffer; do nothing in other states.

        `n` bytes of body follow the head, and `more` says whether others come after these. The
        caller has reserved head_end_size(common) bytes.
        """
        cdef mgl_outgoing *out = self.out
        if self.state != MGL_HELD:
            return 0
        if self.no_body or self.has_length:
            self.chunked = False
        elif not more and not self.chunked and not self.trailers:
            mgl_put(out, b"content-length: ", 16)
            mgl_put_decimal(out, n)
            mgl_put(out, b"\r\n", 2)
            self.has_length = True
            self.length = n
        else:
            self.chunked = not self.http_10
            if self.chunked:
                mgl_put(out, b"transfer-encoding: chunked\r\n", 28)
            else:
                self.close_after = True
        if not self.keep_alive or self.channel.site.draining or self.expects_continue:
            self.close_after = True
        if self.close_after:
            mgl_put(out, b"connection: close\r\n", 19)
        elif self.http_10:
            mgl_put(out, b"connection: keep-alive\r\n", 24)
        mgl_put(out, PyBytes_AS_STRING(common), PyBytes_GET_SIZE(common))
        mgl_put(out, b"\r\n", 2)
        self.state = MGL_SENDING
        return 0

    cdef object send_body(self, object data, bint more):
        self.write_piece(b"" if data is None else as_bytes(data), more)
        return self.drained(more)

    cdef int check_length(self, Py_ssize_t n, bint more) except -1:
        if self.has_length and not self.no_body:
            check_piece(n, self.length, more)
        return 0

    cdef int write_piece(self, bytes data, bint more) except -1:
        """Write a part of the body with its framing; complete the response unless `more`."""
        cdef mgl_outgoing *out
        cdef bytes common = self.common_lines()
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        cdef bint large = n >= COPY_BELOW
        self.check_state(MGL_BODY_PIECE, "http.response.body")
        self.check_length(n, more)
        out = self.reserve(head_end_size(common) + CHUNK_ENDS + (0 if large else n))
        self.end_head(common, n, more)
        if self.no_body:
            n = 0
        if self.has_length:
            self.length -= n
        if n > 0:
            self.sent += n
            if self.chunked:
                mgl_put_chunk_line(out, n)
            if large:
                self.hand_over(data)
            else:
                mgl_put(out, PyBytes_AS_STRING(data), n)
            if self.chunked:
                mgl_put(out, b"\r\n", 2)
        if not more:
            if self.chunked:
                mgl_put(out, b"0\r\n", 3)
            if not self.trailers:
                if self.chunked:
                    mgl_put(out, b"\r\n", 2)
                return self.complete()
            self.state = MGL_TRAILERS   # trailers are accepted even if they cannot be sent
        if out.len >= FLUSH_AT:
            self.flush()
        elif not self.stepping:
            self.flush_soon()
        return 0

    cdef object send_trailers(self, dict message):
        cdef mgl_outgoing *out
        cdef Lines lines
        cdef tuple plain = plain_headers(message.get("headers", ()))
        cdef bint more = message.get("more_trailers", False)
        measure(plain, True, &lines)
        self.check_state(MGL_TRAILER, "http.response.trailers")
        if self.chunked:
            out = self.reserve(lines.size + 2)
            put_headers(out, plain, &lines)
            if not more:
                mgl_put(out, b"\r\n", 2)
        if not more:
            self.complete()
        return self.drained(False)

    cdef int send_hint(self, dict message) except -1:
        """Send a 103 Early Hints response; do nothing in HTTP/1.0, which does not define it."""
        cdef mgl_outgoing *out
        cdef Lines lines
        cdef tuple plain
        if self.http_10:
            return 0
        plain = plain_headers([(b"link", link) for link in message.get("links", ())])
        measure(plain, True, &lines)
        self.check_state(MGL_HINT, "http.response.early_hint")
        out = self.reserve(lines.size + 28)
        mgl_put(out, b"HTTP/1.1 103 Early Hints\r\n", 26)
        put_headers(out, plain, &lines)
        mgl_put(out, b"\r\n", 2)
        return self.flush()

    cdef object send_file(self, dict message, bint by_path):
        """Send a file by the transport's sendfile(), for ASGI's pathsend and zerocopysend."""
        from . import files

        if by_path:
            file, offset, count, more = files.whole(message)
        else:
            file, offset, count, more = files.part(message)
        return files.send(self, message["type"], file, offset, count, more, by_path)

    def begin_file(self, kind, Py_ssize_t count, bint more):
        """Write everything that precedes a file in the response: for files.send().

        Return whether the file itself has to be sent: not if it is empty, and not for HEAD, 204 and
        304.
        """
        cdef mgl_outgoing *out
        cdef bytes common = self.common_lines()
        # The awaitable of send() is awaited only now. The application may have sent other messages
        # since it called send().
        self.check_state(MGL_FILE, kind)
        self.check_length(count, more)
        out = self.reserve(head_end_size(common) + MGL_CHUNK_LINE)
        self.in_file = True
        self.end_head(common, count, more)
        if self.no_body or count == 0:
            self.flush()
            return False
        if self.chunked:
            mgl_put_chunk_line(out, count)
        self.flush()
        return True

    def end_file(self, Py_ssize_t count, bint more):
        """Write everything that follows a file of `count` bytes: for files.send()."""
        self.in_file = False
        if self.no_body:
            count = 0
        if self.has_length:
            self.length -= count
        self.sent += count
        if self.chunked and count:
            mgl_put(self.reserve(2), b"\r\n", 2)
        if more:
            self.flush()
            if self.body_len == 0 and not self.received:
                self.channel.wants_more(self)   # receive() may have emptied the body buffer
        else:
            self.has_length = self.has_length and self.length != 0
            self.write_piece(b"", False)

    def client_left(self):
        """End the connection for files.send(): the client has disconnected or reads nothing."""
        self.channel.cut()
        self.disconnect()

    @property
    def write_timeout(self):
        """The seconds within which the client must receive something, or None for no limit."""
        return self.channel.site.config.timeout_write or None

    @property
    def closing(self):
        """Whether the server is shutting down."""
        return self.channel.site.closing

    @property
    def transport(self):
        """The transport of the connection."""
        return self.channel.transport

    @property
    def loop(self):
        """The loop that serves the request."""
        return self.channel.site.loop

    cdef int hand_over(self, bytes data) except -1:
        """Write the bytes of the buffer to the transport, and then `data`, which is not copied.

        The request keeps its buffer.
        """
        cdef bytes before = self.empty()
        # Not writelines(), because asyncio's in 3.12 and 3.13.0 never pauses the protocol.
        if before is None:
            return 0
        if PyBytes_GET_SIZE(before):
            self.give(before)
        return self.give(data)

    cdef bytes empty(self):
        """Empty the buffer and return its bytes.

        If memory runs out, the response is lost: end the connection and return None.
        """
        cdef bytes data = None
        try:
            data = PyBytes_FromStringAndSize(self.out.data, self.out.len)
        except MemoryError as exc:
            self.channel.write_failed(exc)
        self.out.len = 0
        return data

    cdef int give(self, bytes data) except -1:
        """Write the data to the transport.

        The transport's write() may run Python code. Until it returns, other messages raise
        RuntimeError and flush() does nothing.
        """
        self.writing = True
        try:
            self.channel.write(data)
        except BaseException as exc:
            self.writing = False
            if not isinstance(exc, Exception):
                raise
            self.channel.write_failed(exc)
        self.writing = False
        return 0

    cdef int flush(self) except -1:
        """Write the bytes of the buffer to the transport."""
        cdef mgl_outgoing *out
        cdef bytes common, data
        if self.out is NULL or self.writing:
            return 0
        if self.state == MGL_HELD:
            common = self.common_lines()
            if self.out is NULL or self.writing or common is None:
                return 0
            self.reserve(head_end_size(common))
            self.end_head(common, -1, True)
        data = self.empty()
        out = self.out
        self.out = NULL
        mgl_pool_give(&self.channel.site.pool, out)
        return self.give(data) if data else 0

    cdef int flush_soon(self) except -1:
        """Schedule a flush(), for messages that are sent outside of a step of this task."""
        if not self.flush_due:
            self.flush_due = True
            self.channel.site.loop.call_soon(self._flush_due)
        return 0

    def _flush_due(self):
        self.flush_due = False
        self.flush()

    cdef object drained(self, bint more):
        """Return the awaitable for send(), which waits while the transport has paused writing.

        It also waits if the connection is broken (see is_leaving()), until connection_lost().
        """
        cdef Draining result
        if not self.channel.lost and (
                self.channel.paused_writing
                or more and is_leaving(self.channel.transport, &self.pieces)):
            result = Draining.__new__(Draining)
            result.waiters = self.channel.room
            result.wait_on(result.waiters, self.channel.site.loop)
            return result
        return self.channel.site.ready

    # --------------------------------------------------------------------- the end ----

    cdef int complete(self) except -1:
        self.state = MGL_COMPLETE
        self.flush()
        if self.reading is not None:
            self.reading.wake_all()
        if self.channel.site.access_log is not None:
            self.note_access()
        return self.channel.answered(self, not self.close_after)

    cdef int refused(self, int status, Py_ssize_t n) except -1:
        """Disconnect the application, after the server has sent an error response.

        `status` and `n` bytes of body are those of the error response.
        """
        self.take_back()
        self.status = status
        self.sent = n
        if self.channel.site.access_log is not None:
            self.began = self.began or mgl_clock_ns()
            self.note_access()
        return self.disconnect()

    cdef int note_access(self) except -1:
        if self.noted:
            return 0
        self.noted = True
        try:
            self.channel.site.access_log(
                self.scope, self.status, self.sent, (mgl_clock_ns() - self.began) * 1e-9)
        except Exception:
            log.exception("Exception in the access log")
        return 0

    cdef int note_cut(self) except -1:
        """Note a response that has been cut short in the access log."""
        if MGL_HELD <= self.state < MGL_COMPLETE and self.channel.site.access_log is not None:
            self.note_access()
        return 0

    cdef int suspended(self) except -1:
        """Flush the buffer, because the application has begun to wait."""
        self.flush()
        self.channel.site.running.add(self)
        return 0

    cdef int app_returned(self, object value) except -1:
        try:
            if value is not None:
                log.error("ASGI callable should return None, but returned '%s'.", value)
                self.abandon()
            elif not self.disconnected:
                if self.state == MGL_UNSTARTED:
                    log.error("ASGI callable returned without starting response.%s", hint(self))
                    self.own_answer(500, b"Internal Server Error")
                elif self.state != MGL_COMPLETE:
                    log.error("ASGI callable returned without completing response.%s", hint(self))
                    self.abandon()
        finally:
            self.over()
        return 0

    cdef int app_raised(self, object exc) except -1:
        """Handle an exception that has ended the application.

        If no response has been sent, send a 500. Otherwise cut the response short. Re-raise
        KeyboardInterrupt, CancelledError and GeneratorExit, as a coroutine does.
        """
        # SystemExit counts as the application's own error: as with uvicorn, sys.exit() does not end
        # the server.
        cdef bint own = not isinstance(exc, (KeyboardInterrupt, CancelledError, GeneratorExit))
        try:
            if not own:
                if isinstance(exc, CancelledError) and not self.cancelled:
                    log.error("Exception in ASGI application\n", exc_info=exc)
                self.abandon()
            elif self.disconnected and because_client_left(exc):
                pass
            else:
                log.error("Exception in ASGI application\n", exc_info=exc)
                if self.disconnected or self.state == MGL_COMPLETE:
                    pass
                elif self.state <= MGL_HELD:
                    self.own_answer(500, explain(exc, self.channel.site.config.debug))
                else:
                    self.abandon()
        except BaseException:
            # Without memory the log and the response may have failed. The client must not wait.
            self.channel.transport.abort()
            raise
        finally:
            self.over()
        if not own:
            raise exc
        return 0

    cdef int abandon(self) except -1:
        """Give up the response: send a 500 if nothing has been sent, else cut it short."""
        self.flush()
        if self.state != MGL_COMPLETE and not self.channel.lost:
            self.close_after = True
            if self.state > MGL_HELD:
                self.channel.cut_short(self)
            elif not self.disconnected:
                self.own_answer(500, b"Internal Server Error")
        return 0

    cdef bint looks_whole(self) noexcept:
        """Return whether only the end of the connection marks the end of the body for the client.

        If so, the client takes a response that is cut short by a close() for a complete one.
        """
        return MGL_HELD < self.state < MGL_COMPLETE and not (
            self.chunked or self.has_length or self.no_body)

    cdef int take_back(self) except -1:
        """Discard a head that is held."""
        cdef mgl_outgoing *out = self.out
        self.out = NULL
        mgl_pool_give(&self.channel.site.pool, out)
        self.state = MGL_UNSTARTED
        return 0

    cdef int own_answer(self, int status, bytes text) except -1:
        """Send a response of the server instead of the application's."""
        self.take_back()
        self.close_after = True
        self.send_start(status, [(b"content-type", b"text/plain; charset=utf-8")], False)
        self.write_piece(text, False)
        return 0

    cdef int over(self) except -1:
        """Release everything that the application used, after it has ended."""
        cdef Site site = self.channel.site
        if not self.ended:
            self.ended = True
            self.note_cut()
            self.coroutine = None
            self.task = None
            site.in_flight -= 1
            site.running.discard(self)
            site.left()
        return 0


# The channel of a Request that Python code has created without a connection.
cdef Channel NOBODY = Channel.__new__(Channel)

Coroutine.register(Request)
(<PyTypeObject *>Request).tp_as_async.am_send = request_step


cdef inline bytes as_bytes(object data):
    """Return the data if it is a bytes object, else a copy of it as bytes."""
    return <bytes>data if PyBytes_CheckExact(data) else bytes(memoryview(data))


# --- headers -------------------------------------------------------------------------------------

cdef struct Lines:
    # The headers of a message: their size, and their meaning for the response.
    Py_ssize_t size     # bytes of all header lines
    long long length    # the value of Content-Length, or -1
    bint chunked        # Transfer-Encoding: chunked
    bint closes         # Connection: close
    bint upgrades       # Connection: upgrade
    bint date           # there is a Date
    bint server         # there is a Server


cdef tuple plain_headers(object headers):
    """Return the headers as a tuple of pairs of bytes objects, which nothing can change any more.

    This may run code of the application, which may send other messages. So check the state of the
    response afterwards.
    """
    cdef tuple plain = tuple(headers)
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(plain)):
        if not is_plain(<object>PyTuple_GET_ITEM(plain, i)):
            return tuple([(as_bytes(name), as_bytes(value)) for name, value in plain])
    return plain


cdef inline bint is_plain(object pair) noexcept:
    return (PyTuple_CheckExact(pair) and PyTuple_GET_SIZE(pair) == 2
            and PyBytes_CheckExact(<object>PyTuple_GET_ITEM(pair, 0))
            and PyBytes_CheckExact(<object>PyTuple_GET_ITEM(pair, 1)))


cdef int measure(tuple plain, bint trailing, Lines *lines) except -1:
    """Check the headers and fill in `lines`; raise RuntimeError for an invalid header.

    `trailing`: they are trailers, which must not contain headers of the framing.
    """
    cdef bytes name, value
    cdef int kind
    cdef Py_ssize_t i
    lines[0] = Lines(0, -1, False, False, False, False, False)
    for i in range(PyTuple_GET_SIZE(plain)):
        pair = <object>PyTuple_GET_ITEM(plain, i)
        name = <bytes>PyTuple_GET_ITEM(pair, 0)
        value = <bytes>PyTuple_GET_ITEM(pair, 1)
        check_header(name, value)
        lines.size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4
        kind = mgl_header_kind(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        if kind != MGL_OTHER_HEADER:
            note_header(kind, value, trailing, lines)
    return 0


cdef int note_header(int kind, bytes value, bint trailing, Lines *lines) except -1:
    if kind == MGL_DATE:
        lines.date = True
    elif kind == MGL_SERVER:
        lines.server = True
    elif trailing:
        raise RuntimeError("Framing headers are not allowed in trailers.")
    elif kind == MGL_CONNECTION:
        # The server writes the Connection header, because it decides whether the connection stays
        # open. The application may ask for "close", and for "upgrade": a 426 names the protocols
        # that the server asks for in its Upgrade header (RFC 9110, 7.8).
        value = value.lower()
        if b"close" in value:
            lines.closes = True
        if b"upgrade" in value and not lines.upgrades:
            lines.upgrades = True
            lines.size += 21
    elif kind == MGL_CONTENT_LENGTH:
        if lines.length >= 0:
            raise RuntimeError("Too many Content-Length headers in response.")
        lines.length = content_length(value)
    else:
        if value.lower() != b"chunked":
            raise RuntimeError(
                f"Unsupported Transfer-Encoding {value!r} in response: only chunked is allowed.")
        lines.chunked = True    # end_head() writes it: once, and not to HTTP/1.0
    return 0


cdef int put_headers(mgl_outgoing *out, tuple plain, Lines *lines) noexcept:
    """Copy the lines of headers that measure() has checked into the buffer."""
    cdef PyObject *name
    cdef PyObject *value
    cdef Py_ssize_t i
    cdef int kind
    for i in range(PyTuple_GET_SIZE(plain)):
        pair = PyTuple_GET_ITEM(plain, i)
        name = PyTuple_GET_ITEM(<object>pair, 0)
        value = PyTuple_GET_ITEM(<object>pair, 1)
        kind = mgl_header_kind(PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name))
        if kind != MGL_CONNECTION and kind != MGL_TRANSFER_ENCODING:
            mgl_put_field(
                out, PyBytes_AS_STRING(<object>name), PyBytes_GET_SIZE(<object>name),
                PyBytes_AS_STRING(<object>value), PyBytes_GET_SIZE(<object>value))
    if lines.upgrades:
        mgl_put_field(out, b"connection", 10, b"upgrade", 7)
    return 0


cdef inline size_t head_end_size(bytes common) noexcept:
    """Return the most bytes that end_head() may need."""
    return 0 if common is None else HEAD_END + PyBytes_GET_SIZE(common)


cdef str hint(Request request):
    """Name a likely cause of a response that the server has not received in full."""
    if "http.response.pathsend" not in request.scope.get("extensions", ()):
        return ""
    return (" A middleware may have discarded the message 'http.response.pathsend': use"
            " --no-sendfile.")


cdef bytes explain(object exc, bint debug):
    """Return the body of a 500 response, with the traceback in debug mode only."""
    if not debug:
        return b"Internal Server Error"
    import traceback

    return "".join(traceback.format_exception(exc)).encode("utf-8", "backslashreplace")


# --- send() and receive() ------------------------------------------------------------------------

cdef class Draining(Waiting):
    """Wait until the transport resumes writing, or the connection is lost: returned by send()."""

    cdef Waiters waiters

    cdef object step(self, bint *returned):
        cdef object future = self.future
        if future is None or future.done():
            self.finish()
            returned[0] = True
            return None if future is None else future.result()
        returned[0] = False
        return self.suspend()

    cdef int finish(self) except -1:
        if self.future is not None:
            self.stop_waiting(self.waiters)
        return 0


cdef class Turn(Awaitable):
    """Wait for the next iteration of the loop, as asyncio.sleep(0) does."""

    cdef bint taken

    cdef object step(self, bint *returned):
        returned[0] = self.taken
        self.taken = True
        return None


cdef class Receiving(Waiting):
    """Wait for the next message and return it: returned by receive()."""

    cdef Request request

    cdef object step(self, bint *returned):
        cdef Request request = self.request
        cdef object future = self.future
        cdef dict message = None
        returned[0] = True
        if request is None:
            return None
        if future is not None:
            self.finish()
            future.result()     # raises CancelledError if the future has been cancelled
        message = request.take()
        if message is not None:
            return message
        returned[0] = False
        if request.reading is None:
            request.reading = Waiters.__new__(Waiters)
        self.wait_on(request.reading, request.channel.site.loop)
        return self.suspend()

    cdef int finish(self) except -1:
        if self.future is not None:
            self.stop_waiting(self.request.reading)
        return 0
