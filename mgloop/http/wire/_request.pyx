# SPDX-License-Identifier: GPL-2.0-only
"""One HTTP request: ASGI's send(), and the end of its application.

Request is the last of four classes, each in a module of its own: Response sends, RequestBody
receives, AppTask is the coroutine of the task, and Request connects these. They form a chain of
base classes, because separate objects would cost three allocations per request. The module is
native because it runs per request and per message, on the thread of the loop.

Lifetime: the task holds a reference until the application has returned, and the connection holds
one until the response is complete. A late send() finds its own, complete response and never that
of another request.
"""

cimport cython
from cpython.object cimport PyObject

from mgloop._awaitable cimport Awaitable
from mgloop.http.wire._apptask cimport APP_CLOSED, AppTask
from mgloop.http.wire._body cimport BODY_DISCONNECTED, BODY_RECEIVING, RequestBody, explain
from mgloop.http.wire._response cimport (
    MGL_BODY_PART, MGL_COMPLETE, MGL_FILE, MGL_HELD, MGL_HINT, MGL_START, MGL_TRAILER,
    MGL_UNKNOWN, MGL_UNSTARTED, mgl_message_kind,
)
from mgloop.http.wire._site cimport PyMethodDef, Site, bound_method, mgl_method_of

import logging
import sys
from asyncio import CancelledError

from ..errors import ClientDisconnected, because_client_left


cdef extern from "Python.h":
    bint PyCoro_CheckExact(object o)
    bint PyDict_Next(PyObject *d, Py_ssize_t *position, PyObject **key, PyObject **value) noexcept
    bint PyDict_CheckExact(object o)


# Messages that send() discards after the client has disconnected.
cdef enum:
    MOST_DISCARDED = 100

cdef object logger = logging.getLogger("mgloop.http")

cdef str TYPE = sys.intern("type")
cdef str STATUS = sys.intern("status")
cdef str HEADERS = sys.intern("headers")
cdef str TRAILERS = sys.intern("trailers")
cdef str BODY = sys.intern("body")
cdef str MORE_BODY = sys.intern("more_body")
#: The keys of Fields. Each maps to the string object that read_fields() compares by identity.
cdef dict KNOWN = {key: key for key in (TYPE, STATUS, HEADERS, TRAILERS, BODY, MORE_BODY)}
cdef dict MESSAGES = {
    "http.response.start": MGL_START,
    "http.response.body": MGL_BODY_PART,
    "http.response.pathsend": MGL_FILE,
    "http.response.zerocopysend": MGL_FILE,
    "http.response.trailers": MGL_TRAILER,
    "http.response.early_hint": MGL_HINT,
}

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


# --- the request ---------------------------------------------------------------------------------

@cython.final
cdef class Request(AppTask):
    """Hold one request and its response, and serve as the coroutine of its task."""

    def send_message(self, message):
        """Process one message of the application and return an awaitable, as ASGI's send().

        Raise RuntimeError for a message that is invalid or not allowed in the present state, and
        ClientDisconnected (an OSError) if the response has been cut off.
        """
        cdef Fields fields
        cdef dict known
        cdef object kind, first, second, third
        cdef int what
        cdef bint more
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
        if self.state != MGL_COMPLETE:
            if self.cut_off:
                raise ClientDisconnected("server is shutting down")
            if self.body_state == BODY_DISCONNECTED:
                return self.discard()
        self.check_state(what, kind)
        # The code below may run Python code of the application, which may change the message. So
        # turn the borrowed references into owned ones first.
        if what == MGL_BODY_PART:
            first = None if fields.body is NULL else <object>fields.body
            second = False if fields.more_body is NULL else <object>fields.more_body
            more = second
            self.write_body(first, more)
            return self.wait_writable(more)
        if what == MGL_START:
            if fields.status is NULL:
                raise KeyError(STATUS)
            first = <object>fields.status
            second = () if fields.headers is NULL else <object>fields.headers
            third = False if fields.trailers is NULL else <object>fields.trailers
            self.start(first, second, third)
        elif what == MGL_FILE:
            return self.send_file(message, kind == "http.response.pathsend")
        elif what == MGL_TRAILER:
            self.write_trailers(message.get("headers", ()), message.get("more_trailers", False))
            return self.wait_writable(False)
        else:
            self.write_hint(message.get("links", ()))
        return self.connection.site.ready

    cdef object discard(self):
        """Discard a message after the client has disconnected; return the awaitable for send().

        The message is discarded without an error, as in uvicorn, so that the application can run
        the code that follows its response. Each send() waits for one iteration of the loop: code
        that waits for http.disconnect runs then, and can cancel the task that sends. After
        MOST_DISCARDED messages send() raises ClientDisconnected, because an application that never
        stops sending would occupy the loop forever.
        """
        if self.discarded >= MOST_DISCARDED:
            logger.debug(
                "Application sent %d messages after the client disconnected; send() raises now.",
                MOST_DISCARDED)
            raise ClientDisconnected("the client has disconnected")
        self.discarded += 1
        return NextIteration.__new__(NextIteration)

    cdef object send_file(self, dict message, bint by_path):
        """Send a file by the transport's sendfile(), for ASGI's pathsend and zerocopysend."""
        from . import files

        if by_path:
            file, offset, count, more = files.whole(message)
        else:
            file, offset, count, more = files.part(message)
        return files.send(self, message["type"], file, offset, count, more, by_path)

    def client_left(self):
        """End the connection for files.send(): the client has disconnected or reads nothing."""
        self.connection.cut()
        self.disconnect()

    # ------------------------------------------------------------------ the server ----

    cdef int begin(self) except -1:
        """Start the task in which the application runs."""
        try:
            self.task = self.connection.site.start(self)
        except BaseException as exc:    # the task factory has raised, or there is no memory
            if self.app_state != APP_CLOSED:
                self.app_raised(exc)
            elif isinstance(exc, Exception):
                # The application ran until the exception closed it, or to its end.
                logger.error("Exception in ASGI application\n", exc_info=exc)
            else:
                raise
        if self.app_state == APP_CLOSED:
            self.task = None
        return 0

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
        if self.app_state == APP_CLOSED or self.state == MGL_COMPLETE:
            return False
        if self.body_state != BODY_RECEIVING and not self.truncated and (
                self.state == MGL_UNSTARTED or self.length >= 0):
            return False
        self.cut_stream()
        return True

    # ------------------------------------------------------------- the application ----

    cdef object call_app(self):
        coroutine = self.connection.site.app(
            self.scope, bound_method(RECEIVE, self, NULL), bound_method(SEND, self, NULL))
        return coroutine if PyCoro_CheckExact(coroutine) else coroutine.__await__()

    cdef int app_suspended(self) except -1:
        self.flush()
        if not self.listed:
            self.connection.site.running.add(self)
            self.listed = True
        return 0

    cdef int app_closed(self) except -1:
        try:
            self.abandon()
        finally:
            self.end()
        return 0

    cdef int app_returned(self, object value) except -1:
        try:
            if value is not None:
                logger.error("ASGI callable should return None, but returned '%s'.", value)
                self.abandon()
            elif self.body_state != BODY_DISCONNECTED:
                if self.state == MGL_UNSTARTED:
                    logger.error("ASGI callable returned without starting response.%s", hint(self))
                    self.send_error(500, b"Internal Server Error")
                elif self.state != MGL_COMPLETE:
                    logger.error(
                        "ASGI callable returned without completing response.%s", hint(self))
                    self.abandon()
        finally:
            self.end()
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
                    logger.error("Exception in ASGI application\n", exc_info=exc)
                self.abandon()
            elif self.body_state == BODY_DISCONNECTED and because_client_left(exc):
                pass
            else:
                logger.error("Exception in ASGI application\n", exc_info=exc)
                if self.body_state == BODY_DISCONNECTED or self.state == MGL_COMPLETE:
                    pass
                elif self.state <= MGL_HELD:
                    self.send_error(500, explain(exc, self.connection.site.config.debug))
                else:
                    self.abandon()
        except BaseException:
            # Without memory the log and the response may have failed. The client must not wait.
            self.connection.transport.abort()
            raise
        finally:
            self.end()
        if not own:
            raise exc
        return 0

    cdef int abandon(self) except -1:
        """Give up the response: send a 500 if nothing has been sent, else cut it short."""
        self.flush()
        if self.state != MGL_COMPLETE and not self.connection.lost:
            self.close_after = True
            if self.state > MGL_HELD:
                self.connection.cut_short(self)
            elif self.body_state != BODY_DISCONNECTED:
                self.send_error(500, b"Internal Server Error")
        return 0

    cdef int end(self) except -1:
        """Release everything that the application used, after it has ended."""
        cdef Site site = self.connection.site
        if self.app_state != APP_CLOSED:
            self.app_state = APP_CLOSED
            self.log_incomplete()
            self.coroutine = None
            self.task = None
            site.in_flight -= 1
            if self.listed:
                site.running.discard(self)
                self.listed = False
            site.left()
        return 0


cdef PyMethodDef *RECEIVE = mgl_method_of(RequestBody.receive)
cdef PyMethodDef *SEND = mgl_method_of(Request.send_message)


cdef str hint(Request request):
    """Name a likely cause of a response that the server has not received in full."""
    if "http.response.pathsend" not in request.scope.get("extensions", ()):
        return ""
    return (" A middleware may have discarded the message 'http.response.pathsend': use"
            " --no-sendfile.")


cdef class NextIteration(Awaitable):
    """Wait for the next iteration of the loop, as asyncio.sleep(0) does."""

    cdef bint waited

    cdef object step(self, bint *returned):
        returned[0] = self.waited
        self.waited = True
        return None
