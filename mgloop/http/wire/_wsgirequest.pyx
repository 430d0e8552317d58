# SPDX-License-Identifier: GPL-2.0-only
"""One request to a WSGI application: the call of the application, and the end of it.

The loop receives the whole body of a request before the application starts, so that a slow client
does not occupy a thread. Then the application runs in a thread of the pool (_workpool.pyx), or in
the loop's thread with --wsgi-threads 0. The module is native because it runs per request.

WsgiRequest is the last of five classes: Response sends, RequestBody receives, WsgiResponse has what
the application calls, WsgiExtensions has the optional parts of that, and WsgiRequest calls the
application.

Lifetime: the connection holds a reference until the response is complete. The queue of jobs, and
then the thread, and at last the queue of answers hold one until the application has ended.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from mgloop.http.wire._body cimport BODY_RECEIVED, BODY_RECEIVING, RequestBody, explain
from mgloop.http.wire._environ cimport (
    WSGI_EARLY_HINTS, EnvironFactory, environ_factory, put_body,
)
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._headers cimport settled
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._response cimport MGL_COMPLETE, MGL_UNSTARTED
from mgloop.http.wire._site cimport (
    PyMethodDef, Site, bound_method, mgl_coarse_time, mgl_method_of,
)
from mgloop.http.wire._workpool cimport WorkPool, log_exception, mgl_link, wait_for_memory
from mgloop.http.wire._wsgiextensions cimport WsgiExtensions
from mgloop.http.wire._wsgiinput cimport BodyBuffer, StreamInput
from mgloop.http.wire._wsgiresponse cimport (
    WSGI_DONE, WSGI_END, WSGI_FAILED, WSGI_FILE, WSGI_PART, WSGI_SHORT, WsgiResponse, free_answer,
    mgl_answer,
)

import asyncio
import logging
import os
import sys

from ..errors import because_client_left
from ._filewrapper import FileWrapper


cdef extern from "Python.h":
    bint PyList_CheckExact(object o)
    bint PyTuple_CheckExact(object o)
    bint PyBytes_CheckExact(object o)
    Py_ssize_t PySequence_Fast_GET_SIZE(object o)
    PyObject *PySequence_Fast_GET_ITEM(object o, Py_ssize_t i)
    PyObject *PyIter_Next(object iterator) except? NULL
    object PyContext_Copy(object context)
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1


cdef enum:
    MOST_JOINED = 64 << 10      # bytes of a list of parts that are sent as one part

cdef object logger = logging.getLogger("mgloop.http")
cdef object set_running_loop = asyncio._set_running_loop
cdef long forks = 0     # the number of forks that this process descends from


def _forked():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


cdef int become_running(object loop) except -1:
    """Make `loop` the running loop of the thread; None for no running loop.

    CPython 3.11 needs memory for that. If memory runs out, try again until it succeeds: without the
    running loop, every later callback of the loop would fail.
    """
    cdef bint pending = True
    while pending:
        pending = False
        try:
            set_running_loop(loop)
        except MemoryError:
            pending = True
        if pending:
            wait_for_memory()
    return 0


@cython.final
cdef class WsgiRequest(WsgiExtensions):
    """Hold one request to a WSGI application, and run the application."""

    # -------------------------------------------------- in the thread of the loop ----

    cdef bint may_begin(self) except -1:
        """Return whether the whole body has arrived; ask the client for the body if it waits."""
        if self.body_state == BODY_RECEIVED or self.runner.streams:
            return True
        if self.expects_continue:
            self.send_continue()
        self.connection.site.running.add(self)      # a shutdown waits for the body
        return False

    cdef int add_body(self, const char *data, Py_ssize_t n) except -1:
        if self.stream is not None:
            return WsgiExtensions.add_body(self, data, n)
        # `body_len` stays 0, and so reading does not pause: the application gets the whole body.
        if self.received is None:
            self.received = BodyBuffer.__new__(BodyBuffer)
        self.body_total += n
        return self.received.add(data, n)

    cdef int begin(self) except -1:
        """Run the application, or queue the request for a thread."""
        self.begun = True
        try:
            self.launch()
        except Exception:
            log_exception("Failed to start the application for a request.")
            if not self.finished:
                self.end(None, WSGI_FAILED)
        return 0

    cdef int launch(self) except -1:
        cdef Site site = self.connection.site
        cdef Py_ssize_t length
        if self.runner.health_path is not None and self.environ["SCRIPT_NAME"] \
                + self.environ["PATH_INFO"] == self.runner.health_path:
            return self.answer_health()
        self.environ[WSGI_EARLY_HINTS] = bound_method(EARLY_HINTS, self, NULL)
        if self.body_state == BODY_RECEIVING:
            self.stream_body()
        elif self.received is not None:
            length = self.received.length
            put_body(self.environ, self.received.as_input(), length)
            self.received = None
        self.context = PyContext_Copy(site.context)
        if self.runner.inline:
            return self.run_here()
        self.pool = self.runner
        site.running.add(self)
        Py_INCREF(self)
        self.job.owner = <PyObject *>self
        try:
            return self.pool.add_job(&self.job)
        except BaseException:
            Py_DECREF(self)
            raise

    cdef int stream_body(self) except -1:
        """Let the application read the body while it arrives."""
        cdef StreamInput stream = self.start_stream()
        if self.received is not None:
            data = self.received.input().read()
            self.received = None
            if stream.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)):
                self.body_len = self.connection.site.body_buffer
        return put_body(self.environ, stream, -1)

    cdef int answer_health(self) except -1:
        """Answer the health check without the application."""
        status, headers, body = self.runner.health()
        self.start(status, headers, False)
        self.ended = True
        return self.end(body, WSGI_DONE)

    cdef int run_here(self) except -1:
        """Run the application in the loop's thread, until it ends or has to pause."""
        cdef set running = self.connection.site.running
        if self.step():
            running.add(self)
        return 0

    def _continue(self):
        self.continues = False
        if not self.finished:
            self.run_here()

    cdef int output_resumed(self) except -1:
        if self.runner.inline:
            return self.continue_soon()
        return WsgiResponse.output_resumed(self)

    cdef int continue_soon(self) except -1:
        """Schedule the next step of an application that has paused in the loop's thread."""
        if self.iterator is not None and not self.continues:
            self.connection.site.call_soon(self._continue)
            self.continues = True
        return 0

    cdef int disconnect(self) except -1:
        WsgiExtensions.disconnect(self)
        if not self.begun:
            self.leave()
        elif self.runner.inline:
            self.continue_soon()
        return 0

    cdef int leave(self) except -1:
        """Tell the site that it need not wait for the request any more."""
        cdef Site site = self.connection.site
        site.running.discard(self)
        return site.left()

    def cancel(self):
        """Cut the response short; the application ends with the next part that it produces."""
        self.close_after = True
        self.abandon()
        self.cancel_file()
        if self.runner.inline:
            self.continue_soon()

    def end_stream(self):
        """Cut off the request if it may never end, and return whether it was cut off.

        A response without a known length may never end, and neither may a request whose body is
        incomplete.
        """
        if self.finished or self.state == MGL_COMPLETE:
            return False
        if self.begun and (self.state == MGL_UNSTARTED or self.length >= 0):
            return False
        self.cut_stream()
        return True

    @property
    def connected(self):
        """Whether the client is still connected."""
        return not self.connection.lost

    cdef int end(self, bytes data, int outcome) noexcept:
        """Complete the response, and release everything, after the application has ended."""
        cdef Site site = self.connection.site
        try:
            if outcome == WSGI_FILE and self.start_file():
                return 0    # file_sent() calls this method again
            self.deliver_end(data, outcome, self.error_text or b"Internal Server Error")
        except BaseException:
            self.give_up("Cannot complete a response; closing the connection.")
        self.finished = True
        self.context = self.stream = None
        site.in_flight -= 1
        return self.leave()

    cdef int give_up(self, str message) noexcept:
        """End the connection after an exception, and log the exception."""
        # Abort first, because logging may fail, too. The client must not wait.
        try:
            self.connection.transport.abort()
        finally:
            log_exception(message)
        return 0

    # ------------------------------------------- in the thread of the application ----

    cdef bint step(self) except -1:
        """Run the application in its context; return whether it has to pause.

        The loop's thread has no running loop meanwhile, because frameworks refuse to run
        synchronous code in the thread of a running loop.
        """
        cdef bint pauses = False
        cdef object context = self.context
        if self.pool is None:
            become_running(None)
        PyContext_Enter(context)
        try:
            pauses = self.run_app()
        finally:
            PyContext_Exit(context)
            if self.pool is None:
                become_running(self.connection.site.loop)
        return pauses

    cdef bint run_app(self) except -1:
        """Call the application and take its response; return whether it has to pause."""
        cdef bint pauses = False
        cdef object interrupt = None
        try:
            pauses = self.call_app()
        except BaseException as exc:
            if self.runner.forks != forks:
                leave_child(exc)
            if self.pool is None and isinstance(exc, KeyboardInterrupt):
                interrupt = exc
            self.app_failed(exc)
        if interrupt is not None:
            raise interrupt
        return pauses

    cdef bint call_app(self) except -1:
        """Call the application, or continue with its iterable; return whether it has to pause."""
        cdef object result
        cdef bytes whole
        if self.iterator is None:
            if self.is_gone():      # the client has left while the request was queued
                self.report_end(None, WSGI_SHORT)
                return False
            result = self.runner.app(self.environ, bound_method(START_RESPONSE, self, NULL))
            if self.runner.forks != forks:
                leave_child(None)
            if not self.committed and self.head is not None \
                    and (PyList_CheckExact(result) or PyTuple_CheckExact(result)):
                whole = joined(result)
                if whole is not None:
                    self.finish_whole(whole)
                    return False
            self.iterable = result
            if type(result) is FileWrapper and self.head is not None and self.finish_file(result):
                return False
            self.iterator = iter(result)
        if self.pull():
            return True
        self.finish()
        return False

    cdef bint pull(self) except -1:
        """Take parts from the iterable until its end; return whether to pause."""
        cdef PyObject *next
        cdef object data
        cdef bint paused
        cdef double began = mgl_coarse_time() if self.pool is None else 0
        while True:
            if self.is_gone():
                logger.info("The client has disconnected before the end of its response.")
                return False
            # After the last byte of the Content-Length the connection resumes the next request.
            if self.pool is None:
                paused = self.connection.paused_writing and not self.ended
                if paused or mgl_coarse_time() != began:
                    if not paused:
                        self.continue_soon()
                    return True
            next = PyIter_Next(self.iterator)
            if self.runner.forks != forks:
                leave_child(None)
            if next is NULL:
                return False
            data = <object>next
            Py_DECREF(data)
            if not isinstance(data, bytes):
                raise TypeError(
                    f"The application must yield bytes, but yielded {type(data).__name__}.")
            if PyBytes_GET_SIZE(data):
                self.commit()
                self.produce(data)

    cdef int finish_whole(self, bytes data) except -1:
        """End with a response that consists of one part."""
        self.commit()
        if self.remaining >= 0:
            if PyBytes_GET_SIZE(data) > self.remaining:
                logger.error("Response body longer than its Content-Length; dropped the rest.")
                data = data[:self.remaining]
            elif PyBytes_GET_SIZE(data) < self.remaining:
                self.produce(data)
                return self.finish()
        self.ended = True
        return self.report_end(data, WSGI_DONE)

    cdef bint finish_file(self, object wrapper) except -1:
        """End with a response that is a file; return False if its blocks have to be read."""
        cdef bytes data
        if self.is_head or self.head_status == 204 or self.head_status == 304:
            self.finish()
            return True
        if self.ended or not self.choose_file(wrapper):
            return False
        self.commit()
        self.ended = True
        data = self.read_small_file()
        try:
            self.close_iterable()
        except BaseException:
            log_exception("Exception in close() of a WSGI response\n")
        self.report_end(data, WSGI_FILE if data is None else WSGI_DONE)
        return True

    cdef int finish(self) except -1:
        """End after the last part that the application has produced."""
        cdef int outcome = WSGI_DONE
        if self.is_gone():
            outcome = WSGI_SHORT
        else:
            self.commit()
            if self.remaining > 0:
                logger.error(
                    "Response body %d bytes shorter than its Content-Length;"
                    " closing the connection.", self.remaining)
                outcome = WSGI_SHORT
            elif not self.ended:
                self.pass_on(b"", False)
        self.ended = True
        try:
            self.close_iterable()
        except BaseException:
            log_exception("Exception in close() of a WSGI response\n")
        return self.report_end(None, outcome)

    cdef int app_failed(self, object exc) except -1:
        """End after an exception of the application."""
        cdef bint gone = self.is_gone()
        self.ended = True
        try:
            if not (gone and because_client_left(exc)):
                logger.error("Exception in WSGI application\n", exc_info=exc)
                self.error_text = explain(exc, self.connection.site.config.debug)
        except BaseException:
            log_exception("Cannot log an exception of the WSGI application\n")
        try:
            self.close_iterable()
        except BaseException:
            log_exception("Exception in close() of a WSGI response\n")
        return self.report_end(None, WSGI_FAILED)

    cdef int file_sent(self, int outcome) except -1:
        return self.end(None, outcome)

    cdef int close_iterable(self) except -1:
        """Call the iterable's close(), if it has one."""
        cdef object iterable = self.iterable
        self.iterable = self.iterator = None
        if iterable is not None:
            close = getattr(iterable, "close", None)
            if close is not None:
                close()
        return 0

    cdef int report_end(self, bytes data, int outcome) noexcept:
        """Tell the loop that the application has ended, with the last part of the response."""
        cdef mgl_answer *answer = &self.last
        self.reported = True
        self.environ = None
        if self.pool is None:
            return self.end(data, outcome)
        answer.kind = WSGI_END
        answer.outcome = outcome
        answer.data = <PyObject *>data
        if data is not None:
            Py_INCREF(data)
        else:
            answer.data = NULL
        Py_INCREF(self)
        answer.link.owner = <PyObject *>self
        # After a failure the traceback still refers to objects of the application, and their
        # destructors may take long.
        return self.pool.answer(&answer.link, outcome == WSGI_DONE)


cdef PyMethodDef *EARLY_HINTS = mgl_method_of(WsgiExtensions.early_hints)
cdef PyMethodDef *START_RESPONSE = mgl_method_of(WsgiResponse.start_response)


cdef bytes joined(object parts):
    """Return the parts of a list or tuple as one bytes object.

    Return None if they are too large together, or if one of them is not a bytes object.
    """
    cdef object fixed = settled(parts)
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(fixed)
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t i
    if count == 0:
        return b""
    for i in range(count):
        part = PySequence_Fast_GET_ITEM(fixed, i)
        if not PyBytes_CheckExact(<object>part):
            return None
        size += PyBytes_GET_SIZE(<object>part)
    if count == 1:
        return <bytes>PySequence_Fast_GET_ITEM(fixed, 0)
    return b"".join(fixed) if size <= MOST_JOINED else None


cdef int leave_child(object exc) except -1:
    """Exit from a child process that the application has forked and not ended.

    The parent sends the response. The child would send another one, and then run a copy of the
    server.
    """
    cdef object status = 0
    if isinstance(exc, SystemExit):
        status = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    elif exc is not None:
        logger.error("Exception in a child process of the WSGI application\n", exc_info=exc)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status & 0xff)


cdef class WsgiFactory(RequestFactory):
    """Make the requests of one connection."""

    cdef WsgiRunner runner
    cdef EnvironFactory environs

    cdef RequestBody make_request(self, HeadParser head):
        cdef WsgiRequest request = WsgiRequest.__new__(WsgiRequest)
        request.runner = self.runner
        request.environ = self.environs.make_environ(head)
        if request.environ is None:
            return None
        if self.runner.site.access_log is not None:
            request.scope = log_scope(request.environ, head)
        return request


cdef dict log_scope(dict environ, HeadParser head):
    """Return a scope with the items that the access log reads."""
    path = environ["SCRIPT_NAME"] + environ["PATH_INFO"]
    client = environ.get("REMOTE_ADDR")
    return {
        "client": (client, environ.get("REMOTE_PORT", "0")) if client else None,
        "method": head.method,
        "path": path.encode("latin-1").decode("utf-8", "replace"),
        "query_string": environ["QUERY_STRING"].encode("latin-1"),
        "http_version": "1.0" if head.http_10 else "1.1",
    }


cdef class WsgiRunner(WorkPool):
    """Run the WSGI application of a site in at most `threads` threads, or in the loop's thread.

    threads: 0 for the loop's thread.
    health: returns status, headers and body of the answer to the health check.
    """

    def __init__(self, Site site not None, app, int threads, health=None):
        WorkPool.__init__(self, site.loop, site.context, threads)
        self.site = site
        self.app = app
        self.health_path = site.config.health_path
        self.health = health
        self.inline = threads == 0
        self.streams = site.config.wsgi_stream_input and not self.inline
        self.forks = forks

    def request_factory(self, transport, bint over_tls, ends, bint unnamed):
        """Return the RequestFactory of a connection."""
        cdef WsgiFactory factory = WsgiFactory.__new__(WsgiFactory)
        factory.runner = self
        factory.environs = environ_factory(self.site, transport, over_tls, ends, unnamed)
        factory.sink = factory.environs
        return factory

    cdef int run_job(self, mgl_link *job) noexcept:
        """Run the application of one request, in a thread."""
        cdef WsgiRequest request = <WsgiRequest>job.owner
        job.owner = NULL
        Py_DECREF(request)
        try:
            request.step()
        except BaseException:
            log_exception("Exception in the server, in a thread of the application\n")
            if not request.reported:
                request.report_end(None, WSGI_FAILED)
        return 0

    cdef int take_answer(self, mgl_link *link, mgl_link *next) noexcept:
        """Process one answer of a thread, in the thread of the loop."""
        cdef mgl_answer *answer = <mgl_answer *>link
        cdef WsgiRequest request = <WsgiRequest>link.owner
        cdef bint same = next is not NULL and next.owner is link.owner
        cdef mgl_answer *after = <mgl_answer *>next
        cdef bytes data = None if answer.data is NULL else <bytes>answer.data
        cdef bint more = answer.more
        if answer.kind == WSGI_END:
            request.end(data, answer.outcome)
        else:
            try:
                if answer.kind != WSGI_PART:
                    request.take_notice(answer.kind, data)
                else:
                    if same and after.kind == WSGI_PART and not after.more \
                            and PyBytes_GET_SIZE(<object>after.data) == 0:
                        more = False    # so that a response of one part gets a Content-Length
                    request.take_part(data, more)
                if not same:
                    request.flush()
            except BaseException:
                request.give_up("Cannot send a part of a response; closing the connection.")
        free_answer(answer)
        return 0

    cdef int drop_answer(self, mgl_link *link) noexcept:
        free_answer(<mgl_answer *>link)
        return 0
