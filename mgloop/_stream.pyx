# SPDX-License-Identifier: GPL-2.0-only
"""Stream transports (TCP and UNIX sockets) and the listener that accepts them.

    Watcher (_loop)          a descriptor in the poll loop
      +- Stream              asyncio.Transport over a connected stream socket
      +- Listener            accepts connections and makes a Stream of each

Native because they run per packet and per accepted connection. The semantics are those of
asyncio.selector_events; what differs is the way of the bytes:

Reading is edge-triggered: one registration for the life of the connection, and no epoll_ctl() to
pause or resume. A read that brings less than was asked for has emptied the socket, so it is not
followed by another that would only return EAGAIN, unless the kernel said that the peer is gone.
After MAX_READS reads the transport goes to the end of the ready queue: others get their turn.
Small reads go through a scratch buffer and are copied out exactly; large ones into a bytes object
of the size expected, which is then shrunk.

Writing tries send() at once. While several things are ready in an iteration, writes of up to
DEFER_MAX bytes wait for its end instead (LoopCore.flush) and leave together: that is kinder to the
caches, wakes the peer once, and makes one segment of a response's head and body. Whatever asks
about the state of the transport from outside (get_write_buffer_size(), close(), abort() ...) sends
first, so that deferring cannot be told from sending.

Invariants: `fd` is open until connection_lost() has been delivered, and the descriptor is taken
out of the poll loop before it is closed. Once `conn_lost` is set nothing is read or sent any more.
The protocol is only called in the transport's own context.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.errno cimport (
    EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno,
)
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from mgloop._loop cimport (
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, LoopCore, Watcher,
)

import asyncio
import os
import socket
import warnings
from asyncio.log import logger

from . import _stdlib


cdef extern from "writequeue.h":
    int mgl_queue_push(mgl_queue *q, PyObject *data, size_t sent) except -1
    int mgl_queue_iov(mgl_queue *q, iovec *iov, int max)
    void mgl_queue_consume(mgl_queue *q, size_t n)
    void mgl_queue_clear(mgl_queue *q)


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <netinet/tcp.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <unistd.h>
    int accept4(int, struct sockaddr *, socklen_t *, int);
    """
    ctypedef unsigned int socklen_t
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void *buf, size_t n, int flags)
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr *msg, int flags)
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)
    int close(int fd)
    int shutdown(int fd, int how)
    const char *inet_ntop(int family, const void *src, char *dst, socklen_t size)
    unsigned short ntohs(unsigned short n)
    unsigned int ntohl(unsigned int n)
    enum:
        AF_INET
        AF_INET6
        AF_UNIX
        MSG_NOSIGNAL
        MSG_DONTWAIT
        SOCK_NONBLOCK
        SOCK_CLOEXEC
        SHUT_WR
        INET6_ADDRSTRLEN


cdef extern from "Python.h":
    PyObject *PyContext_CopyCurrent() except NULL
    PyObject *PyContext_Copy(PyObject *context) except NULL
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    void PyErr_Clear()
    Py_ssize_t PY_SSIZE_T_MAX
    object PyObject_VectorcallMethod(object name, PyObject *const *args, size_t nargs, PyObject *kw)
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    int _PyBytes_Resize(PyObject **data, Py_ssize_t n) except -1
    PyObject *PyBytes_New "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t n) except NULL


cdef enum:
    SCRATCH = 64 * 1024         # shared receive buffer
    SMALL_READ = 4 * 1024       # expected below this: scratch and an exact copy
    MIDDLE_READ = 32 * 1024     # below this: a bytes object of the next power of two
    LARGE_READ = 256 * 1024     # else: as asyncio's max_size
    MAX_READS = 4               # per turn
    DEFER_MAX = 4 * 1024        # longer writes are sent at once
    MAX_IOV = 64                # objects per sendmsg()
    DEFAULT_HIGH = 64 * 1024
    GONE = EPOLLRDHUP | EPOLLHUP | EPOLLERR
    INTEREST = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET

# One for the process: it is only used between a recv() and the copy after it, with the GIL held.
cdef char scratch[SCRATCH]

cdef object MINUS_ONE = -1
cdef object AsyncioTransport = asyncio.Transport
cdef object BufferedProtocol = asyncio.BufferedProtocol
cdef bint server_knows_clients = _stdlib.SERVER_KNOWS_CLIENTS

# glibc maps blocks of 128 KiB and more, and unmaps them when they are shrunk or freed: 78 us per
# 100 KiB read against 16. Freeing one mapped block raises its threshold to that block's size.
free(malloc(4 * 1024 * 1024))


cdef object os_error(int error):
    return OSError(error, os.strerror(error))


cdef object address_tuple(Address *address):
    """As the socket module gives it."""
    cdef char text[INET6_ADDRSTRLEN]
    if address.any.sa_family == AF_INET:
        inet_ntop(AF_INET, <char *>address + 4, text, sizeof(text))
        return text.decode(), ntohs(address.v4.sin_port)
    inet_ntop(AF_INET6, <char *>address + 8, text, sizeof(text))
    return (text.decode(), ntohs(address.v6.sin6_port), ntohl(address.v6.sin6_flowinfo),
            address.v6.sin6_scope_id)


# ------------------------------------------------------------------ the transport ----

@cython.final
cdef class Stream(Watcher):
    """asyncio.Transport over a connected stream socket."""

    _start_tls_compatible = True
    _sendfile_compatible = _stdlib.SendfileMode.TRY_NATIVE

    def __init__(self, LoopCore loop, sock, protocol, waiter=None, dict extra=None, server=None):
        """For a Python socket, which the transport takes over; accepted connections go through
        Listener. connection_made() is called from the loop, then `waiter` is told."""
        cdef PyObject *context = PyContext_CopyCurrent()
        self.adopt(loop, sock.fileno(), protocol, context)
        self.sock = sock
        self.family = sock.family
        self.extra = extra
        try:
            self.sockname = sock.getsockname()
        except OSError:
            pass
        if extra is not None and "peername" in extra:
            self.peername = extra["peername"]
        else:
            try:
                self.peername = sock.getpeername()
            except OSError:
                pass
        if sock.family != AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server = server
        if server is not None:
            if server_knows_clients:
                server._attach(self)
            else:
                server._attach()
        loop.schedule_with(self._start, waiter, <object>self.context)

    cdef int adopt(self, LoopCore loop, int fd, object protocol, PyObject *context) except -1:
        """`context` is a reference of the transport's own from here on."""
        self.context = context
        self.loop = loop
        self.fd = fd
        self.high = DEFAULT_HIGH
        self.low = DEFAULT_HIGH // 4
        self.use_protocol(protocol)
        return 0

    def __dealloc__(self):
        mgl_queue_clear(&self.queue)
        Py_XDECREF(self.context)

    def __del__(self):
        if self.fd < 0:
            return
        warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
        self.close_descriptor()
        if self.server is not None:
            self._detach()

    def _start(self, waiter):
        try:
            self.start()
        finally:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    cdef int start(self) except -1:
        """connection_made(), and only then the first read. Runs in the transport's context."""
        try:
            self.protocol.connection_made(self)
        finally:
            if not self.conn_lost and self.fd >= 0:
                self.loop.watch(self, self.fd, INTEREST)
                self.watched = True
        return 0

    cdef int use_protocol(self, object protocol) except -1:
        self.protocol = protocol
        self.connected = True
        self.buffered = isinstance(protocol, BufferedProtocol)
        return 0

    cdef object call(self, object method, PyObject *arg):
        """protocol.method(arg), in the transport's context."""
        cdef PyObject *args[3]
        cdef object protocol = self.protocol
        cdef size_t n = 1 if arg is NULL else 2
        args[0] = NULL
        args[1] = <PyObject *>protocol
        args[2] = arg
        PyContext_Enter(self.context)
        try:
            return PyObject_VectorcallMethod(
                method, &args[1], n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
        finally:
            PyContext_Exit(self.context)

    # -------------------------------------------------------------- reading ----

    cdef int on_ready(self, uint32_t events) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        if events & ~(EPOLLIN | EPOLLRDHUP) and self.blocked:
            self.blocked = False
            self.send_queue()
            if self.conn_lost:
                return 0
        if events & (EPOLLIN | GONE) and not self.closing and not self.read_eof:
            if self.paused:
                self.missed |= events
            else:
                self.read(events)
        return 0

    cdef int read(self, uint32_t events) except -1:
        cdef object data, count
        cdef Py_ssize_t asked = 0, got
        cdef int turn
        for turn in range(MAX_READS):
            if self.buffered:
                got = self.receive_into(&asked)
                if got < 0:
                    return 0
                if got == 0:
                    return self.on_eof()
                count = got
                try:
                    self.call("buffer_updated", <PyObject *>count)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exc:
                    return self.fatal_error(
                        exc, "Fatal error: protocol.buffer_updated() call failed.")
            else:
                data = self.receive(&asked)
                if data is None:
                    return 0
                got = PyBytes_GET_SIZE(data)
                if got == 0:
                    return self.on_eof()
                try:
                    self.call("data_received", <PyObject *>data)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exc:
                    return self.fatal_error(
                        exc, "Fatal error: protocol.data_received() call failed.")
            if self.closing or self.conn_lost:
                return 0
            if self.paused:
                self.missed |= EPOLLIN | events & GONE
                return 0
            if got < asked and not events & GONE:
                return 0
        return self.loop.mark_ready(self, EPOLLIN | events & GONE)

    cdef object receive(self, Py_ssize_t *asked):
        """The next bytes; b"" at the end; None if there are none now or the transport has failed."""
        cdef PyObject *data
        cdef Py_ssize_t n, size
        cdef uint32_t hint = self.hint
        if hint < SMALL_READ:
            size = SCRATCH
            data = NULL
            n = recv(self.fd, scratch, SCRATCH, MSG_DONTWAIT)
        else:
            size = LARGE_READ
            if hint < MIDDLE_READ:
                size = SMALL_READ
                while size <= <Py_ssize_t>hint:
                    size *= 2
            data = PyBytes_New(NULL, size)
            n = recv(self.fd, PyBytes_AS_STRING(<object>data), size, MSG_DONTWAIT)
        asked[0] = size
        if n < 0:
            if data is not NULL:
                Py_DECREF(<object>data)
            self.on_read_error(errno)
            return None
        # Rises at once, falls by an eighth of the difference per read.
        self.hint = <uint32_t>n if n > <Py_ssize_t>hint else hint - ((hint - <uint32_t>n) >> 3)
        if data is NULL:
            return PyBytes_FromStringAndSize(scratch, n)
        _PyBytes_Resize(&data, n)
        result = <object>data
        Py_DECREF(result)
        return result

    cdef Py_ssize_t receive_into(self, Py_ssize_t *asked) except -2:
        """Fills the protocol's own buffer; how many bytes, -1 if none came."""
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef int error
        cdef object buf
        try:
            buf = self.call("get_buffer", <PyObject *>MINUS_ONE)
            if len(buf) == 0:
                raise RuntimeError("get_buffer() returned an empty buffer")
            PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.get_buffer() call failed.")
            return -1
        n = recv(self.fd, view.buf, view.len, MSG_DONTWAIT)
        error = errno
        asked[0] = view.len
        PyBuffer_Release(&view)
        if n < 0:
            self.on_read_error(error)
            return -1
        return n

    cdef int on_read_error(self, int error) except -1:
        if error == EAGAIN:
            return 0
        if error == EINTR:
            return self.loop.mark_ready(self, EPOLLIN)
        return self.fatal_error(os_error(error), "Fatal read error on socket transport")

    cdef int on_eof(self) except -1:
        if self.loop._debug:
            logger.debug("%r received EOF", self)
        try:
            keep_open = self.call("eof_received", NULL)
            if keep_open:
                # The protocol may still write; there is nothing left to read.
                self.read_eof = True
                return 0
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            return self.fatal_error(exc, "Fatal error: protocol.eof_received() call failed.")
        self.close()
        return 0

    def pause_reading(self):
        """Stop calling data_received() until resume_reading()."""
        if self.closing or self.paused:
            return
        self.paused = True
        if self.loop._debug:
            logger.debug("%r pauses reading", self)

    def resume_reading(self):
        """Go on after pause_reading(); what came meanwhile is delivered from the loop."""
        if self.closing or not self.paused:
            return
        self.paused = False
        if self.missed:
            self.loop.mark_ready(self, self.missed)
            self.missed = 0
        if self.loop._debug:
            logger.debug("%r resumes reading", self)

    def is_reading(self):
        """True if data would be delivered as it comes."""
        return not self.closing and not self.paused

    # -------------------------------------------------------------- writing ----

    def write(self, data):
        """Send bytes, now or as soon as the peer takes them; a mutable buffer is copied where it
        has to wait. Raises TypeError for what is not bytes-like, RuntimeError after write_eof()."""
        cdef Py_buffer view
        if PyBytes_CheckExact(data):
            return self._write(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self._write(None, <const char *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef _write(self, object data, const char *start, Py_ssize_t n):
        if self.eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.empty_waiter is not None:
            raise RuntimeError("unable to write; sendfile is in progress")
        if n == 0:
            return
        if self.conn_lost:
            self.warn_conn_lost()
            return
        self.write_bytes(data, start, n)

    cdef int write_bytes(self, object data, const char *start, Py_ssize_t n) except -1:
        """Send, defer or queue n bytes; `data` is the bytes object they are in, or None."""
        cdef ssize_t sent
        cdef Py_ssize_t done = 0
        if n <= DEFER_MAX and not self.blocked and self.loop.can_defer(n):
            if data is None:
                data = PyBytes_FromStringAndSize(start, n)
            mgl_queue_push(&self.queue, <PyObject *>data, 0)
            self.loop.deferred += n
            self.loop.defer_flush(self)
            if <Py_ssize_t>self.queue.size > self.high:
                self.settle()
            return 0
        if self.queue.size == 0:
            sent = send(self.fd, start, n, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent == n:
                return 0
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    return self.write_failed(errno)
            else:
                done = sent
        if data is None:
            data = PyBytes_FromStringAndSize(start + done, n - done)
            done = 0
        mgl_queue_push(&self.queue, <PyObject *>data, done)
        if not self.blocked:
            self.send_queue()
        return self.pause_protocol()

    def writelines(self, list_of_data):
        """Send several bytes-like objects, gathered by the kernel and never joined."""
        cdef Py_ssize_t total = 0
        cdef list chunks = []
        if self.eof:
            raise RuntimeError("Cannot call writelines() after write_eof()")
        if self.empty_waiter is not None:
            raise RuntimeError("unable to writelines; sendfile is in progress")
        if not list_of_data:
            return
        for data in list_of_data:
            if not PyBytes_CheckExact(data):
                if not isinstance(data, (bytes, bytearray, memoryview)):
                    raise TypeError(
                        f"data argument must be a bytes-like object, not {type(data).__name__!r}")
                data = bytes(data)
            if PyBytes_GET_SIZE(data):
                chunks.append(data)
                total += PyBytes_GET_SIZE(data)
        if total == 0:
            return
        if self.conn_lost:
            self.warn_conn_lost()
            return
        for data in chunks:
            mgl_queue_push(&self.queue, <PyObject *>data, 0)
        if not self.blocked:
            if total <= DEFER_MAX and self.loop.can_defer(total):
                self.loop.deferred += total
                self.loop.defer_flush(self)
                if <Py_ssize_t>self.queue.size > self.high:
                    self.settle()
                return
            self.send_queue()
        self.pause_protocol()

    cdef warn_conn_lost(self):
        if self.conn_lost >= <unsigned int>_stdlib.LOG_THRESHOLD:
            logger.warning("socket.send() raised exception.")
        self.conn_lost += 1

    cdef int send_queue(self) except -1:
        """Send until the queue is empty or the kernel takes no more. A part sent is followed by
        another try: only EAGAIN makes sure of an EPOLLOUT edge."""
        cdef iovec iov[MAX_IOV]
        cdef msghdr message
        cdef ssize_t sent
        memset(&message, 0, sizeof(message))
        message.msg_iov = iov
        while self.queue.size > 0:
            message.msg_iovlen = mgl_queue_iov(&self.queue, iov, MAX_IOV)
            if message.msg_iovlen == 1:
                sent = send(self.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                sent = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    self.blocked = True
                    break
                return self.write_failed(errno)
            mgl_queue_consume(&self.queue, sent)
        return self.after_send()

    cdef int after_send(self) except -1:
        if self.protocol_paused and <Py_ssize_t>self.queue.size <= self.low:
            self.resume_protocol()
        if self.queue.size == 0:
            if self.empty_waiter is not None and not self.empty_waiter.done():
                self.empty_waiter.set_result(None)
            if self.closing:
                if not self.conn_lost:
                    self.conn_lost = 1
                    self.loop.schedule_with(self._call_connection_lost, None, <object>self.context)
            elif self.eof:
                self.shutdown_write()
        return 0

    cdef int write_failed(self, int error) except -1:
        exc = os_error(error)
        mgl_queue_clear(&self.queue)
        self.fatal_error(exc, "Fatal write error on socket transport")
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_exception(exc)
        return 0

    cdef int on_flush(self) except -1:
        return self.settle()

    cdef int settle(self) except -1:
        """Send what was deferred; then the transport is as if nothing ever were."""
        if self.queue.size > 0 and not self.blocked and not self.conn_lost:
            self.send_queue()
            if self.queue.size > 0:
                self.pause_protocol()
        return 0

    cdef int pause_protocol(self) except -1:
        if not self.protocol_paused and <Py_ssize_t>self.queue.size > self.high:
            self.protocol_paused = True
            self.control_flow("pause_writing")
        return 0

    cdef int resume_protocol(self) except -1:
        self.protocol_paused = False
        return self.control_flow("resume_writing")

    cdef int control_flow(self, str method) except -1:
        """Tell the protocol. Its context may be entered already, further up: in data_received()."""
        cdef bint entered = try_enter(self.context) == 0
        if not entered:
            PyErr_Clear()
        try:
            getattr(self.protocol, method)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.report(f"protocol.{method}() failed", exc)
        finally:
            if entered:
                PyContext_Exit(self.context)
        return 0

    cdef report(self, str message, exc):
        self.loop.call_exception_handler({
            "message": message,
            "exception": exc,
            "transport": self,
            "protocol": self.protocol,
        })

    def set_write_buffer_limits(self, high=None, low=None):
        """The sizes in bytes above which pause_writing() and below which resume_writing() is
        called. Raises ValueError unless high >= low >= 0."""
        if high is None:
            high = DEFAULT_HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self.high = min(high, PY_SSIZE_T_MAX)
        self.low = min(low, PY_SSIZE_T_MAX)
        self.settle()
        self.pause_protocol()

    def get_write_buffer_limits(self):
        """(low, high), in bytes."""
        return self.low, self.high

    def get_write_buffer_size(self):
        """Bytes that the kernel has not taken yet."""
        self.settle()
        return self.queue.size

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Shut down the writing side once everything is sent; the peer may go on sending."""
        if self.closing or self.eof:
            return
        self.settle()
        self.eof = True
        if self.queue.size == 0:
            self.shutdown_write()

    cdef int shutdown_write(self) except -1:
        if shutdown(self.fd, SHUT_WR) != 0:
            raise os_error(errno)
        return 0

    # -------------------------------------------------------------- closing ----

    def close(self):
        """Send what is queued, then close; connection_lost(None) follows from the loop."""
        if self.closing:
            return
        self.closing = True
        self.settle()
        if self.queue.size == 0 and not self.conn_lost:
            self.conn_lost = 1
            self.loop.schedule_with(self._call_connection_lost, None, <object>self.context)

    def abort(self):
        """Close without sending what is queued."""
        self.settle()
        self.force_close(None)

    def _force_close(self, exc):
        self.force_close(exc)

    cdef int force_close(self, object exc) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        mgl_queue_clear(&self.queue)
        self.closing = True
        self.conn_lost = 1
        self.loop.schedule_with(self._call_connection_lost, exc, <object>self.context)
        return 0

    cdef int fatal_error(self, object exc, str message) except -1:
        if isinstance(exc, OSError):
            if self.loop._debug:
                logger.debug("%r: %s", self, message, exc_info=exc)
        else:
            self.report(message, exc)
        return self.force_close(exc)

    def _fatal_error(self, exc, message="Fatal error on transport"):
        self.fatal_error(exc, message)

    def _call_connection_lost(self, exc):
        if self.fd < 0:
            return
        try:
            if self.connected:
                self.protocol.connection_lost(exc)
        finally:
            if self.sockname is None and self.public_socket is None and self.family != AF_UNIX:
                # Still to be had by get_extra_info() afterwards, as with asyncio.
                self.sockname = self.make_socket().getsockname()
            self.close_descriptor()
            self.protocol = None
            if self.server is not None:
                self._detach()
            if self.empty_waiter is not None and not self.empty_waiter.done():
                self.empty_waiter.set_exception(
                    ConnectionError("Connection is closed by peer"))

    def _detach(self):
        server = self.server
        self.server = None
        if server_knows_clients:
            server._detach(self)
        else:
            server._detach()

    cdef int close_descriptor(self) except -1:
        cdef int fd = self.fd
        # Explicitly: a duplicate of the descriptor would keep the registration alive.
        self.loop.unwatch(self)
        self.fd = -1
        if self.sock is not None:
            self.sock.close()
        else:
            close(fd)
        return 0

    def is_closing(self):
        """True once close() or abort() was called or the connection is lost."""
        return self.closing

    # -------------------------------------------------------------- the rest ----

    def set_protocol(self, protocol):
        """Deliver to another protocol from now on; its connection_made() is not called."""
        self.use_protocol(protocol)

    def get_protocol(self):
        return self.protocol

    def get_extra_info(self, name, default=None):
        """'socket', 'sockname', 'peername', or what the creator of the transport has added."""
        if name == "socket":
            self.settle()
            if self.public_socket is None:
                self.public_socket = _stdlib.TransportSocket(self.make_socket())
            return self.public_socket
        if name == "peername":
            if self.peername is None and self.peer.any.sa_family != 0:
                self.peername = address_tuple(&self.peer)
            return self.peername
        if name == "sockname":
            if self.sockname is None and self.fd >= 0:
                self.sockname = self.make_socket().getsockname()
            return self.sockname
        if self.extra is not None:
            return self.extra.get(name, default)
        return default

    cdef object make_socket(self):
        """The Python socket, which from now on owns the descriptor."""
        if self.sock is None:
            if self.fd >= 0:
                # SOCK_NONBLOCK in the type is how the socket module is told that it is so already.
                self.sock = socket.socket(
                    self.family, socket.SOCK_STREAM | SOCK_NONBLOCK, 0, fileno=self.fd)
            else:
                self.sock = socket.socket(self.family)
                self.sock.close()
        return self.sock

    def _make_empty_waiter(self):
        """A future that is done once everything is sent; no write() until _reset_empty_waiter()."""
        if self.empty_waiter is not None:
            raise RuntimeError("Empty waiter is already set")
        self.settle()
        self.empty_waiter = self.loop.new_future()
        if self.queue.size == 0:
            self.empty_waiter.set_result(None)
        return self.empty_waiter

    def _reset_empty_waiter(self):
        self.empty_waiter = None

    def _lend(self):
        """The socket, for somebody else to wait on until _take_back()."""
        self.loop.unwatch(self)
        self.watched = False
        return self.make_socket()

    def _take_back(self):
        if self.fd >= 0 and not self.conn_lost and not self.watched:
            self.loop.watch(self, self.fd, INTEREST)
            self.watched = True

    cdef bint owns_descriptor(self) noexcept:
        return not self.closing

    @property
    def __class__(self):
        return AsyncioTransport

    @property
    def _loop(self):
        return self.loop if self.fd >= 0 else None

    @property
    def _protocol(self):
        return self.protocol

    @property
    def _protocol_paused(self):
        return self.protocol_paused

    @property
    def _sock(self):
        return self.make_socket() if self.fd >= 0 else None

    @property
    def _sock_fd(self):
        return self.fd

    def __repr__(self):
        info = ["mgloop.Stream"]
        if self.fd < 0:
            info.append("closed")
        elif self.closing:
            info.append("closing")
        info.append(f"fd={self.fd}")
        if self.fd >= 0:
            reading = self.watched and not self.paused and not self.closing and not self.read_eof
            info.append(f"read={'polling' if reading else 'idle'}")
            info.append(f"write=<{'polling' if self.blocked else 'idle'}, "
                        f"bufsize={self.queue.size}>")
        return f"<{' '.join(info)}>"


# ------------------------------------------------------------------ the listener ----

@cython.final
cdef class Listener(Watcher):
    """Accepts connections on a listening socket, which stays the server's."""

    def __init__(self, LoopCore loop, protocol_factory, sock, sslcontext, server, int backlog,
                 handshake_timeout, shutdown_timeout):
        self.context = PyContext_CopyCurrent()
        self.loop = loop
        self.protocol_factory = protocol_factory
        self.sock = sock
        self.sslcontext = sslcontext
        self.server = server
        self.backlog = max(backlog, 1)
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout
        self.family = sock.family
        name = sock.getsockname()
        if self.family == AF_UNIX:
            self.sockname = name
        else:
            # Accepted sockets inherit it, which saves a system call for each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if name[0] not in ("0.0.0.0", "::"):
                self.sockname = name
        loop.watch(self, sock.fileno(), EPOLLIN)

    def __dealloc__(self):
        Py_XDECREF(self.context)

    def stop(self):
        """Accept no more; the socket is left open."""
        self.stopped = True
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        self.loop.unwatch(self)

    def _resume(self):
        self.retry = None
        if not self.stopped:
            self.loop.watch(self, self.fd, EPOLLIN)

    cdef int on_ready(self, uint32_t events) except -1:
        cdef Address peer
        cdef socklen_t size
        cdef int fd, i
        for i in range(self.backlog):
            if self.stopped:
                return 0
            size = sizeof(peer)
            peer.any.sa_family = 0
            fd = accept4(self.fd, &peer.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EAGAIN, EINTR, ECONNABORTED):
                    return 0
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    return self.out_of_resources(errno)
                self.report("socket.accept() failed", os_error(errno))
                return 0
            if self.sslcontext is not None or self.loop._debug:
                self.accept_cold(fd)
            else:
                self.accept(fd, &peer)
        return 0

    cdef int accept(self, int fd, Address *peer) except -1:
        """Make a transport and a protocol of an accepted descriptor."""
        cdef Stream stream
        cdef PyObject *context
        cdef object protocol
        try:
            context = PyContext_Copy(self.context)
            stream = Stream.__new__(Stream)
            stream.context = context
            PyContext_Enter(context)
            try:
                protocol = self.protocol_factory()
            finally:
                PyContext_Exit(context)
        except (SystemExit, KeyboardInterrupt):
            close(fd)
            raise
        except BaseException:
            # As asyncio, which tells of it in debug mode only (see accept_cold()).
            close(fd)
            return 0
        stream.adopt(self.loop, fd, protocol, context)
        stream.family = self.family
        stream.sockname = self.sockname
        if self.family == AF_UNIX:
            stream.peername = ""
        else:
            stream.peer = peer[0]
        if self.server is not None:
            stream.server = self.server
            if server_knows_clients:
                self.server._attach(stream)
            else:
                self.server._attach()
        try:
            PyContext_Enter(context)
            try:
                stream.start()
            finally:
                PyContext_Exit(context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            callback = _stdlib.format_callback(protocol.connection_made, (stream,), False)
            stream.report(f"Exception in callback {callback}", exc)
        return 0

    cdef int accept_cold(self, int fd) except -1:
        """TLS and debug mode: by way of a task, with a Python socket."""
        conn = socket.socket(self.family, self.sock.type | SOCK_NONBLOCK, self.sock.proto, fileno=fd)
        PyContext_Enter(self.context)
        try:
            if self.loop._debug:
                logger.debug("%r got a new connection: %r", self.server, conn)
            self.loop.create_task(self.loop._accept_connection(
                self.protocol_factory, conn, self.sslcontext, self.server,
                self.handshake_timeout, self.shutdown_timeout))
        finally:
            PyContext_Exit(self.context)
        return 0

    cdef int out_of_resources(self, int error) except -1:
        """Stop listening for a second: the kernel would go on reporting, and spin the loop."""
        self.report("socket.accept() out of system resource", os_error(error))
        if not self.stopped:
            self.loop.unwatch(self)
            self.retry = self.loop.call_later(_stdlib.ACCEPT_RETRY_DELAY, self._resume)
        return 0

    cdef report(self, str message, exc):
        self.loop.call_exception_handler({
            "message": message,
            "exception": exc,
            "socket": _stdlib.TransportSocket(self.sock),
        })

    def __repr__(self):
        return f"<mgloop.Listener fd={self.fd} {self.sock!r}>"
