# SPDX-License-Identifier: GPL-2.0-only
"""The response of a WSGI application: start_response(), write() and the parts of the body.

The application runs in a thread of the pool, or in the loop's thread (--wsgi-threads 0). Its
thread checks and converts everything into bytes and C values. The loop's thread frames these bytes
and writes them to the transport. The module is native because it runs per request and per part.

An answer carries a part to the loop. The application's thread waits as soon as PENDING bytes have
not reached the transport, and while the transport has paused writing. A client that does not read
therefore delays its own request only, until the timeout for writing disconnects it.

The first fields of the class belong to the application's thread, apart from those that the pool's
mutex protects. Everything that the base classes declare belongs to the loop's thread.
"""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from mgloop.http.wire._body cimport BODY_DISCONNECTED, RequestBody
from mgloop.http.wire._response cimport MGL_COMPLETE, MGL_HELD, MGL_UNSTARTED
from mgloop.http.wire._site cimport mgl_outgoing, mgl_put
from mgloop.http.wire._wsgihead cimport wsgi_head
from mgloop.http.wire._workpool cimport (
    WorkPool, mgl_work_drained, mgl_work_lock, mgl_work_unlock, mgl_work_wait_drained,
)

import logging

from ..errors import ClientDisconnected


cdef extern from "Python.h":
    char *PyBytes_AS_STRING(object o)
    void Py_XDECREF(PyObject *o)


cdef enum:
    PENDING = 64 << 10      # bytes of output at which the application waits for the loop

cdef object logger = logging.getLogger("mgloop.http")


cdef class WsgiResponse(RequestBody):
    """Take a response from a WSGI application."""

    def __cinit__(self):
        self.remaining = -1

    # ------------------------------------------- in the thread of the application ----

    def start_response(self, status, headers, exc_info=None):
        """Set the head of the response and return write(), as PEP 3333 defines it.

        Raise AssertionError if it has been called before and `exc_info` is not given, TypeError and
        ValueError for an invalid status or header, and the exception in `exc_info` if the head has
        been sent.
        """
        cdef HeaderInfo info
        cdef int code
        cdef bytes head
        if exc_info:
            if self.committed:
                raise exc_info[1].with_traceback(exc_info[2])
        elif self.head is not None:
            raise AssertionError("start_response() has been called before, and without exc_info.")
        head = wsgi_head(status, headers, &code, &info)
        with cython.critical_section(self):
            if not self.committed:
                self.head = head
                self.head_info = info
                self.head_status = code
                self.remaining = -1 if self.is_head or code == 204 or code == 304 else info.length
        return self

    def __call__(self, data):
        """Send a part of the body: the write() that start_response() returns."""
        if self.head is None:
            raise AssertionError("write() has been called before start_response().")
        if not isinstance(data, bytes):
            raise TypeError(f"write() requires bytes, not {type(data).__name__}.")
        if self.is_gone():
            raise ClientDisconnected("the client has disconnected")
        self.commit()
        self.produce(data)

    cdef int commit(self) except -1:
        """Fix the head, because it is about to be sent."""
        if self.head is None:
            raise AssertionError("The application has not called start_response().")
        with cython.critical_section(self):
            self.committed = True
        return 0

    cdef int produce(self, object data) except -1:
        """Pass a part of the body to the loop, at most up to the Content-Length."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        if self.remaining >= 0:
            if n > self.remaining:
                n = self.remaining
                if not self.overlong:
                    self.overlong = True
                    logger.error("Response body longer than its Content-Length; dropped the rest.")
                data = data[:n]
            self.remaining -= n
        if self.ended:
            return 0
        if self.remaining == 0:
            self.ended = True
        return self.pass_on(bytes(data), not self.ended)

    cdef int pass_on(self, bytes data, bint more) except -1:
        """Pass a part of the body to the loop, and wait if too much is on its way already."""
        cdef mgl_answer *answer
        cdef Py_ssize_t n
        cdef bint waits
        if self.pool is None:
            self.deliver(data, more)
            if more and not self.connection.lost:
                # Send it now: the application may take long to produce the next part.
                self.flush()
                if not self.connection.send_deferred():
                    self.gone = True    # the loop reports the end of the connection later
            return 0
        answer = self.new_answer(WSGI_PART, data, more)
        n = PyBytes_GET_SIZE(data)
        mgl_work_lock(&self.pool.queue)
        self.unsent += n
        waits = self.unsent >= PENDING and more and not self.gone
        mgl_work_unlock(&self.pool.queue)
        self.pool.answer(&answer.link, False)
        return self.wait_sent() if waits else 0

    cdef mgl_answer *new_answer(self, int kind, bytes data, bint more) except NULL:
        cdef mgl_answer *answer = <mgl_answer *>PyMem_RawMalloc(sizeof(mgl_answer))
        if answer is NULL:
            raise MemoryError
        Py_INCREF(self)
        answer.link.owner = <PyObject *>self
        Py_INCREF(data)
        answer.data = <PyObject *>data
        answer.kind = kind
        answer.more = more
        answer.outcome = WSGI_DONE
        return answer

    cdef int wait_sent(self) noexcept:
        """Wait until the loop has passed the output to the transport, or nothing can be sent."""
        cdef WorkPool pool = self.pool
        with nogil:
            mgl_work_lock(&pool.queue)
            while self.unsent >= PENDING and not self.gone and not pool.queue.closed:
                mgl_work_wait_drained(&pool.queue)
            mgl_work_unlock(&pool.queue)
        return 0

    cdef bint is_gone(self) noexcept:
        """Return whether nothing can be sent any more."""
        cdef bint gone
        if self.pool is None:
            return self.gone
        mgl_work_lock(&self.pool.queue)
        gone = self.gone or self.pool.queue.closed
        mgl_work_unlock(&self.pool.queue)
        return gone

    # --------------------------------------------------- in the thread of the loop ----

    cdef int deliver(self, bytes data, bint more) except -1:
        """Write a part of the body, and the head before the first part."""
        cdef mgl_outgoing *out
        cdef bytes head
        if self.body_state == BODY_DISCONNECTED or self.state == MGL_COMPLETE:
            return 0
        if self.state == MGL_UNSTARTED:
            head = self.head
            out = self.reserve(PyBytes_GET_SIZE(head))
            mgl_put(out, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
            self.hold_head(self.head_status, &self.head_info)
        if PyBytes_GET_SIZE(data) == 0 and more:
            return 0
        return self.write_part(data, more)

    cdef int deliver_end(self, bytes data, int outcome, bytes text) except -1:
        """Complete the response, after the application has ended.

        `data`: the last part of the body, or None if the response is complete already.
        `text`: the body of the response to a failed request.
        """
        if self.body_state == BODY_DISCONNECTED or self.state == MGL_COMPLETE \
                or self.connection.lost:
            return 0
        if outcome == WSGI_DONE:
            return self.deliver(b"" if data is None else data, False)
        self.close_after = True
        if outcome == WSGI_FAILED and self.state <= MGL_HELD:
            return self.send_error(500, text)
        if self.state == MGL_UNSTARTED and self.head is not None:
            self.deliver(b"", True)
        self.flush()
        return self.connection.cut_short(self)

    cdef int take_part(self, bytes data, bint more) except -1:
        """Deliver a part that comes from another thread."""
        try:
            return self.deliver(data, more)
        finally:
            if self.connection.paused_writing:
                self.held += PyBytes_GET_SIZE(data)
            else:
                self.note_sent(PyBytes_GET_SIZE(data))

    cdef int note_sent(self, Py_ssize_t n) noexcept:
        """Let the application continue: `n` bytes of its output have been written."""
        cdef bint waits
        if self.pool is None or n == 0:
            return 0
        mgl_work_lock(&self.pool.queue)
        waits = self.unsent >= PENDING
        self.unsent -= n
        if waits and self.unsent < PENDING:
            mgl_work_drained(&self.pool.queue)
        mgl_work_unlock(&self.pool.queue)
        return 0

    cdef int abandon(self) noexcept:
        """Stop taking output from the application, because nothing can be sent any more."""
        if self.pool is None:
            self.gone = True
            return 0
        mgl_work_lock(&self.pool.queue)
        self.gone = True
        mgl_work_drained(&self.pool.queue)
        mgl_work_unlock(&self.pool.queue)
        return 0

    cdef int output_resumed(self) except -1:
        """Let the application continue, because the client reads again."""
        cdef Py_ssize_t n
        n = self.held
        self.held = 0
        return self.note_sent(n)

    cdef int disconnect(self) except -1:
        self.abandon()
        return RequestBody.disconnect(self)


cdef int free_answer(mgl_answer *answer) noexcept:
    """Release an answer and its references."""
    cdef PyObject *owner = answer.link.owner
    Py_XDECREF(answer.data)
    answer.data = NULL
    answer.link.owner = NULL
    if answer.kind != WSGI_END:     # that one is a part of its request
        PyMem_RawFree(answer)
    Py_XDECREF(owner)
    return 0
