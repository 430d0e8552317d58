# SPDX-License-Identifier: GPL-2.0-only
"""The body of a request: from the parser to ASGI's receive().

The connection adds the parts of the body as they arrive. receive() returns all that has arrived
since its last call, and http.disconnect after the end of the response or of the connection. The
module is native because it runs per message, on the thread of the loop.

RequestBody is the second class of the chain that ends with Request. The classes form a chain, and
are not separate objects, because each request would have to allocate these.
"""

from mgloop._awaitable cimport Waiters, Waiting
from mgloop.http.wire._gather cimport gather, gathered
from mgloop.http.wire._response cimport MGL_COMPLETE, MGL_HELD, Response, mgl_clock_ns
from mgloop.http.wire._site cimport MGL_BODY

import sys


cdef str TYPE = sys.intern("type")
cdef str BODY = sys.intern("body")
cdef str MORE_BODY = sys.intern("more_body")
cdef str HTTP_REQUEST = sys.intern("http.request")


cdef class RequestBody(Response):
    """Buffer the body of a request until the application receives it."""

    def receive(self):
        """Return an awaitable for the next http.request or http.disconnect, as ASGI's receive()."""
        cdef Receiving result
        if self.expects_continue:
            self.send_continue()
        result = Receiving.__new__(Receiving)
        result.request = self
        return result

    @property
    def disconnected(self):
        """Whether the client is gone, as far as the application is concerned."""
        return self.body_state == BODY_DISCONNECTED

    cdef dict next_message(self):
        """Return the next message for receive(), or None if the application has to wait for it."""
        cdef object data
        cdef bint more = self.body_state == BODY_RECEIVING
        if self.body_state == BODY_DISCONNECTED or self.state == MGL_COMPLETE:
            return {TYPE: "http.disconnect"}
        if self.body_len == 0 and self.body_state != BODY_RECEIVED:
            return None
        data = b"" if self.body is None else gathered(self.body)
        self.body = None
        self.body_len = 0
        if more:
            self.connection.wants_more(self)
        else:
            self.body_state = BODY_DELIVERED
        return {TYPE: HTTP_REQUEST, BODY: data, MORE_BODY: more}

    cdef int add_body(self, const char *data, Py_ssize_t n) except -1:
        """Add `n` bytes that have arrived."""
        self.body = gather(self.body, data, n)
        self.body_len += n
        self.body_total += n
        return 0

    cdef int body_ended(self) except -1:
        """Record that the whole body has arrived."""
        if self.body_state == BODY_RECEIVING:
            self.body_state = BODY_RECEIVED
        self.expects_continue = False
        return 0

    cdef int disconnect(self) except -1:
        """Make receive() return http.disconnect from now on."""
        if self.body_state == BODY_RECEIVING:
            self.truncated = True
        self.body_state = BODY_DISCONNECTED
        self.wake_receivers()
        # Not when the application ends: one that does not call receive() may run on for hours.
        return self.log_incomplete()

    cdef int send_continue(self) except -1:
        """Send 100 Continue, unless the head of the response has been sent already.

        The client's deadline for the body begins now, whether it was sent or not.
        """
        self.expects_continue = False
        if self.body_state != BODY_RECEIVING or self.state == MGL_COMPLETE:
            return 0
        if self.state <= MGL_HELD and not self.write_interim(b"HTTP/1.1 100 Continue\r\n\r\n"):
            return 0
        return self.connection.set_deadline(MGL_BODY)

    cdef bint write_interim(self, bytes head) except -1:
        """Write an interim response. Return False if the connection could not write it.

        It does not go through the buffer, because that may hold the head of the final response.
        """
        cdef bint failed = False
        try:
            self.connection.write(head)
        except Exception as exc:
            self.connection.write_failed(exc)
            failed = True
        return not failed

    cdef int body_arrived(self) except -1:
        """Give the application the body so far."""
        if self.receivers is not None and (
                self.body_len or self.body_state != BODY_RECEIVING):
            self.receivers.wake_all()
        return 0

    cdef int cut_stream(self) except -1:
        """Cut off the response, because a shutdown does not wait for it any longer."""
        self.cut_off = True
        if not self.connection.lost:
            self.flush()
            self.connection.cut_short(self)
        return self.disconnect()

    cdef int refused(self, int status, Py_ssize_t n) except -1:
        """Disconnect the application, and write the error response to the access log."""
        self.drop_head()
        self.status = status
        self.sent = n
        if self.connection.site.access_log is not None:
            self.began = self.began or mgl_clock_ns()
            self.log_access()
        return self.disconnect()

    cdef bint may_begin(self) except -1:
        return True

    cdef int begin(self) except -1:
        raise NotImplementedError

    cdef int output_resumed(self) except -1:
        return 0

    cdef int wake_receivers(self) except -1:
        return 0 if self.receivers is None else self.receivers.wake_all()

    cdef int file_ended(self) except -1:
        # receive() may have emptied the buffer while a file was sent, when reading was paused.
        if self.body_len == 0 and self.body_state == BODY_RECEIVING:
            self.connection.wants_more(self)
        return 0


cdef bytes explain(object exc, bint debug):
    if not debug:
        return b"Internal Server Error"
    import traceback

    return "".join(traceback.format_exception(exc)).encode("utf-8", "backslashreplace")


cdef class Receiving(Waiting):
    """Wait for the next message and return it: returned by receive()."""

    cdef RequestBody request

    cdef object step(self, bint *returned):
        cdef RequestBody request = self.request
        cdef object future = self.future
        cdef dict message = None
        returned[0] = True
        if request is None:
            return None
        if future is not None:
            self.finish()
            future.result()     # raises CancelledError if the future has been cancelled
        message = request.next_message()
        if message is not None:
            return message
        returned[0] = False
        if request.receivers is None:
            request.receivers = Waiters.__new__(Waiters)
        self.wait_on(request.receivers, request.connection.site.loop)
        return self.suspend()

    cdef int finish(self) except -1:
        if self.future is not None:
            self.stop_waiting(self.request.receivers)
        return 0
