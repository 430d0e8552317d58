# SPDX-License-Identifier: GPL-2.0-only
"""One request to a compiled HTTP handler: the call of the handler, and its response.

A site may have a handler in front of its ASGI or WSGI application. A HandledRequest receives the
body, and then calls the handler in the thread of the loop. If the handler answers, the response is
written at once, without a task or a Python object per header. Otherwise, the request of the
application takes the place of the HandledRequest, with the same headers and the same body.

The handler does not see WebSocket handshakes, health checks, and requests whose body is larger than
--body-buffer: these belong to the application from the start.

The module is native because it runs per request. A connection holds a reference to its request
until the response is complete. A HandlerFactory belongs to a connection, a HandlerRunner to a site.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from mgloop.http.wire._body cimport (
    BODY_DISCONNECTED, BODY_RECEIVED, BODY_RECEIVING, RequestBody, explain,
)
from mgloop.http.wire._connection cimport Connection
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._gather cimport gathered
from mgloop.http.wire._handler cimport HTTPHandler_1, HTTPRequest_1, HTTPResponse_1
from mgloop.http.wire._handlerdata cimport RequestData, ResponseData
from mgloop.http.wire._headers cimport HeaderInfo
from mgloop.http.wire._headstore cimport HeadStore, stored_headers
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._requestheaders cimport HeaderList
from mgloop.http.wire._response cimport FRAMING_NONE, MGL_HELD, MGL_UNSTARTED
from mgloop.http.wire._site cimport (
    MGL_DECIMAL_DIGITS, STATUS_LINES, Site, mgl_outgoing, mgl_pool_give, mgl_put,
    mgl_put_decimal, mgl_put_field, without,
)
from mgloop.http.wire._target cimport Target, decode_path, split_target

import logging

from . import _peer


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)


cdef extern from *:
    """
    #include "result.h"

    #define mgl_call_answer(handler, request, response) \\
        mgl_checked_result((handler)->__pyx_vtab->answer(handler, request, response), "answer")
    """
    # Whether the handler has answered.
    int mgl_call_answer(
        HTTPHandler_1 handler, HTTPRequest_1 request, HTTPResponse_1 response) except -1


cdef enum:
    # The most bytes of the header lines that put_response() adds.
    LINES_END = 160 + 2 * MGL_DECIMAL_DIGITS

cdef object logger = logging.getLogger("mgloop.http")


@cython.final
cdef class HandledRequest(RequestBody):
    """Hold one request until the compiled handler has decided about it, and send its response."""

    # -------------------------------------------------------------------- the body ----

    cdef bint may_begin(self) except -1:
        """Return whether the handler may be called, or the application that takes over."""
        cdef HandledRequest itself = self   # pass_on() drops the connection's reference
        cdef Site site = self.connection.site
        cdef RequestBody successor
        if self.body_state != BODY_RECEIVING and self.body_total <= site.body_buffer:
            return True
        if self.body_state == BODY_RECEIVING and self.body_total < site.body_buffer:
            if self.expects_continue:
                self.send_continue()
            if not self.listed:
                site.running.add(self)      # a shutdown waits for the body
                self.listed = True
            return False
        successor = itself.pass_on()
        return successor.may_begin()

    cdef int unlist(self) except -1:
        if self.listed:
            self.listed = False
            self.connection.site.running.discard(self)
        return 0

    cdef int disconnect(self) except -1:
        self.unlist()
        RequestBody.disconnect(self)
        return self.connection.site.left()

    def cancel(self):
        """End the connection, because the body of the request has not arrived in time."""
        self.close_after = True
        self.connection.cut()

    def end_stream(self):
        """Cut off the request if its body is incomplete, and return whether it was cut off."""
        if not self.listed:
            return False
        self.cut_stream()
        return True

    @property
    def connected(self):
        """Whether the client is still connected."""
        return not self.connection.lost

    # ------------------------------------------------------------- the application ----

    cdef RequestBody pass_on(self):
        """Replace this request by one of the application, and return that one."""
        cdef Connection connection = <Connection>self.connection
        cdef HeadParser head = connection.parser
        cdef str method = head.method
        cdef bytes target = head.target
        cdef bytes data
        cdef RequestBody successor
        self.unlist()
        # The parser has forgotten these two if it has read the whole message.
        head.method = self.request_method
        head.target = self.request_target
        try:
            successor = self.factory.application_request(head)
        finally:
            head.method = method
            head.target = target
        if successor is None:
            raise RuntimeError("the application's interface refuses the request")
        successor.connection = connection
        successor.is_head = self.is_head
        successor.http_10 = self.http_10
        successor.keep_alive = self.keep_alive
        successor.expects_continue = self.expects_continue
        successor.began = self.began
        if self.body is not None:
            data = gathered(self.body)
            self.body = None
            successor.add_body(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if self.body_state == BODY_RECEIVED:
            successor.body_ended()
        if connection.unstarted is self:
            connection.unstarted = successor
        connection.request = successor
        return successor

    cdef int start_application(self) except -1:
        """Start the application for a request that the handler has not answered."""
        cdef RequestBody successor = None
        if self.connection.lost or self.body_state == BODY_DISCONNECTED:
            self.factory.store.release()
            return self.end()
        try:
            successor = self.pass_on()
        except BaseException:
            self.end()
            self.connection.transport.abort()
            raise
        return successor.begin()

    # ----------------------------------------------------------------- the handler ----

    cdef int begin(self) except -1:
        """Call the handler, and then the application if the handler has not answered."""
        cdef bint answered = False
        cdef object failure = None
        self.unlist()
        try:
            answered = self.call_handler()
        except BaseException as exc:
            failure = exc
        if failure is not None:
            return self.handler_failed(failure)
        return self.end() if answered else self.start_application()

    cdef bint call_handler(self) except -1:
        """Call the handler and write its response; return whether it has answered."""
        cdef HandlerRunner runner = self.factory.runner
        cdef HTTPRequest_1 request = runner.take_request()
        cdef HTTPResponse_1 response = runner.take_response()
        cdef RequestData data
        cdef ResponseData answer
        cdef bint answered = False
        answer.pool = &runner.site.pool
        answer.status = 200
        answer.head = answer.body = NULL
        answer.info = HeaderInfo(0, -1, False, False, False, False, False, False)
        self.describe(&data)
        try:
            request.data = &data
            response.data = &answer
            try:
                answered = mgl_call_answer(runner.handler, request, response)
            finally:
                request.data = NULL
                response.data = NULL
            if answered:
                self.factory.store.release()
                self.respond(&answer)
        finally:
            mgl_pool_give(answer.pool, answer.head)
            mgl_pool_give(answer.pool, answer.body)
            # An object that the handler has kept must not become valid again.
            if Py_REFCNT(<PyObject *>request) == 1 and Py_REFCNT(<PyObject *>response) == 1:
                runner.request = request
                runner.response = response
        return answered

    cdef int describe(self, RequestData *data) except -1:
        """Let `data` refer to the parts of the request."""
        cdef HeadStore store = self.factory.store
        data.method = PyUnicode_AsUTF8AndSize(self.request_method, &data.method_len)
        data.target = PyBytes_AS_STRING(self.request_target)
        data.target_len = PyBytes_GET_SIZE(self.request_target)
        data.parts = self.parts
        data.headers = stored_headers(store)
        data.header_count = store.count
        data.text = store.text.data
        data.body = b""
        data.body_len = 0
        if self.body is not None:
            self.body = gathered(self.body)
            data.body = PyBytes_AS_STRING(self.body)
            data.body_len = PyBytes_GET_SIZE(self.body)
        data.owner = <void *>self
        data.origin = origin_of
        return 0

    cdef int handler_failed(self, object exc) except -1:
        """Log the exception of the handler, and send a 500 response; re-raise KeyboardInterrupt."""
        self.factory.store.release()
        try:
            # SystemExit counts as the handler's own error, as it does for ASGI.
            logger.error("Exception in compiled handler\n", exc_info=exc)
            if self.state <= MGL_HELD and self.body_state != BODY_DISCONNECTED \
                    and not self.connection.lost:
                self.send_error(500, explain(exc, self.connection.site.config.debug))
        except BaseException:
            # Without memory the log and the response may have failed. The client must not wait.
            self.connection.transport.abort()
            raise
        finally:
            self.end()
        if isinstance(exc, KeyboardInterrupt):
            raise exc
        return 0

    cdef int respond(self, ResponseData *answer) except -1:
        """Write the response of the handler."""
        cdef bytes common
        if self.state != MGL_UNSTARTED or self.body_state == BODY_DISCONNECTED \
                or self.connection.lost:
            return 0
        common = self.connection.site.headers_now()
        if answer.info.date or answer.info.server:
            common = without(common, answer.info.date, answer.info.server)
        self.put_response(common, answer)
        return self.complete()

    cdef int put_response(self, bytes common, ResponseData *answer) except -1:
        """Put the whole response into the buffer."""
        cdef bytes first = <bytes>STATUS_LINES[answer.status]
        cdef Py_ssize_t n = 0 if answer.body is NULL else answer.body.len
        cdef Py_ssize_t head = 0 if answer.head is NULL else answer.head.len
        cdef mgl_outgoing *out
        self.hold_head(answer.status, &answer.info)
        self.check_length(n, False)
        out = self.reserve(
            PyBytes_GET_SIZE(first) + head + PyBytes_GET_SIZE(common) + LINES_END + n)
        mgl_put(out, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
        if head:
            mgl_put(out, answer.head.data, head)
        if answer.info.upgrades:
            mgl_put_field(out, b"connection", 10, b"upgrade", 7)
        if self.is_head and n and answer.info.length < 0 \
                and answer.status != 204 and answer.status != 304:
            mgl_put(out, b"content-length: ", 16)
            mgl_put_decimal(out, n)
            mgl_put(out, b"\r\n", 2)
        self.end_head(common, n, False)
        if n and self.framing != FRAMING_NONE:
            mgl_put(out, answer.body.data, n)
            self.length -= n
            self.sent = n
        return 0

    cdef int end(self) except -1:
        cdef Site site = self.connection.site
        site.in_flight -= 1
        return site.left()

    # ------------------------------------------------------------------- the peer ----

    cdef dict origin(self):
        """Return the client and the scheme of the request, as items of a scope."""
        cdef HandlerFactory factory = self.factory
        cdef HeaderList headers
        cdef dict scope = {"client": factory.client, "scheme": factory.scheme}
        if self.forwarded:
            headers = HeaderList.__new__(HeaderList)
            factory.store.replay(headers)
            scope["headers"] = headers.pairs
            factory.runner.site.proxy(scope)
        return scope

    cdef int fill_scope(self, bint http_10) except -1:
        """Make the scope, with the items that the access log reads."""
        cdef Site site = self.factory.runner.site
        cdef dict scope = self.origin()
        scope["method"] = self.request_method
        scope["path"] = site.root + decode_path(self.parts.path, self.parts.path_len, False)
        scope["query_string"] = self.parts.query[:self.parts.query_len] if self.parts.query_len \
            else b""
        scope["http_version"] = "1.0" if http_10 else "1.1"
        self.scope = scope
        return 0


cdef dict origin_of(void *request):
    return (<HandledRequest>request).origin()


cdef inline uint64_t body_size(HeadParser head) noexcept:
    """Return the size of the body by its Content-Length, or the size so far of a chunked one."""
    # llhttp counts its field down, and may have read a part of the body with the head.
    return head.body_total + head.llhttp.content_length


# --- the factories --------------------------------------------------------------------------------

cdef class HandlerFactory(RequestFactory):
    """Make the requests of one connection, for the handler or for the application."""

    cdef RequestBody make_request(self, HeadParser head):
        cdef HandledRequest request
        cdef Target target
        cdef str problem = split_target(head.target, head.method, &target)
        if problem is not None:
            self.store.release()
            head.reject(400, problem)
            return None
        if not self.concerns_handler(head, &target):
            return self.application_request(head)
        request = HandledRequest.__new__(HandledRequest)
        request.factory = self
        request.request_method = head.method
        request.request_target = head.target
        request.parts = target
        request.forwarded = head.forwarded and self.trusted
        if target.host is not NULL:
            self.store.replace_host(target.host, target.host_len)
        if self.runner.site.access_log is not None:
            request.fill_scope(head.http_10)
        return request

    cdef bint concerns_handler(self, HeadParser head, Target *target) except -1:
        """Return whether the request is one for the handler, as far as its head shows."""
        cdef bytes path = self.runner.health_path
        if head.wants_websocket or body_size(head) > <uint64_t>self.runner.site.body_buffer:
            return False
        return path is None or PyBytes_GET_SIZE(path) != target.path_len \
            or memcmp(PyBytes_AS_STRING(path), target.path, target.path_len) != 0

    cdef RequestBody application_request(self, HeadParser head):
        """Return the request of the application with this head."""
        self.store.replay(self.inner.sink)
        self.store.release()
        return self.inner.make_request(head)


cdef class HandlerRunner:
    """Let a compiled handler answer requests of a site.

    handler: an instance of a subclass of HTTPHandler.
    """

    def __cinit__(self, Site site not None, HTTPHandler_1 handler not None):
        cdef str path = site.config.health_path
        self.site = site
        self.handler = handler
        # The application compares the path with the root path in front.
        if path is not None and path.startswith(site.root):
            self.health_path = path[len(site.root):].encode()

    def request_factory(self, RequestFactory inner not None, transport, bint over_tls, ends,
                        bint unnamed):
        """Return the RequestFactory of a connection; *inner* is that of the application."""
        cdef HandlerFactory factory = HandlerFactory.__new__(HandlerFactory)
        factory.runner = self
        factory.inner = inner
        factory.store = HeadStore.__new__(HeadStore)
        factory.store.site = self.site
        factory.sink = factory.store
        factory.client = _peer.addresses(transport)[0] if ends is None else ends[0]
        factory.scheme = "https" if over_tls else "http"
        if self.site.proxy is not None:
            factory.trusted = self.site.proxy.everybody if unnamed \
                else self.site.proxy.trusts_peer(factory.client)
        return factory

    cdef HTTPRequest_1 take_request(self):
        """Return an object for a call, which no other call uses."""
        cdef HTTPRequest_1 request = self.request
        self.request = None
        return HTTPRequest_1.__new__(HTTPRequest_1) if request is None else request

    cdef HTTPResponse_1 take_response(self):
        """Return an object for a call, which no other call uses."""
        cdef HTTPResponse_1 response = self.response
        self.response = None
        return HTTPResponse_1.__new__(HTTPResponse_1) if response is None else response
