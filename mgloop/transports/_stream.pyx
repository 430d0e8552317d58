# SPDX-License-Identifier: GPL-2.0-only
"""Implement the stream transport, for TCP and UNIX sockets.

The module is native because its code runs once per packet. The semantics are those of
asyncio.selector_events. The base classes handle protocols, flow control and closing (_base) and
reading (_receiving); this module writes. Only the loop's thread may use a transport. Its lifetime
is described in _socket.

A write calls send() immediately in most cases. If several entries are ready in an iteration, writes
of up to DEFER_MAX bytes wait until its end (LoopCore.flush()) and are sent together. This uses the
caches better, wakes the peer once, and puts the head and the body of a response into one segment.
The first longer write in an iteration is sent immediately, and later ones are coalesced up to the
high-water mark, which saves system calls and wake-ups for many chunks in a row. All methods that
could reveal the delay (get_write_buffer_size(), close(), abort(), the methods of the socket from
get_extra_info() ...) first send the deferred writes. The data in the queue is in one of these
states:

    queue    flush_queued  blocked  awaits_writable  ready     the transport waits for
    empty    no            no       no           -         nothing
    bytes    yes           no       no           -         the end of the iteration (deferred)
    bytes    any           yes      yes          -         EPOLLOUT, after EAGAIN
    bytes    any           yes      no           EPOLLOUT  its next time slice (MAX_SENT or EINTR)

Only send_queue() sets `blocked`, and only EPOLLOUT clears it. Nothing is sent while it is set.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.object cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport memset

from mgloop._loop cimport (
    EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, LoopCore, mgl_count, mgl_count_write, os_error,
    own_thread,
)
from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport SocketTransport
from mgloop.transports._common cimport chunks_of
from mgloop.transports._receiving cimport GONE, ReceivingStream, delivery_to
from mgloop.transports._socket cimport SocketWatcher
from mgloop.transports._writequeue cimport (
    iovec, mgl_queue_clear, mgl_queue_consume, mgl_queue_iov, mgl_queue_push,
)

import socket

from .. import _stdlib


cdef extern from *:
    """
    #include <sys/socket.h>
    """
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr *msg, int flags)
    int shutdown(int fd, int how)
    enum:
        AF_INET
        AF_INET6
        MSG_NOSIGNAL
        MSG_DONTWAIT
        SHUT_WR


cdef enum:
    MAX_SENT = 1024 * 1024      # bytes per time slice; a fast peer could accept data forever
    DEFER_MAX = 4 * 1024        # maximum of bytes in a short write; see may_defer()
    MAX_IOV = 64                # objects per sendmsg()

cdef object WRITELINES = _stdlib.WRITELINES
cdef object AsyncioTransport = _stdlib.StreamTransport


cdef int set_nodelay(object sock) except -1:
    """Set TCP_NODELAY on a TCP socket.

    Other protocols of the same address families lack the option or give its number another meaning.
    """
    if sock.family in (AF_INET, AF_INET6) and sock.proto in (0, socket.IPPROTO_TCP):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return 0


cdef int write_for_tls(void *below, const char *data, Py_ssize_t size) except -1:
    """Write for mgloop's own TLS protocol.

    This saves a method call, and a bytes object for data that is sent immediately.
    """
    (<Stream>below)._write(None, data, size)
    return 0


@cython.final
cdef class Stream(ReceivingStream):
    """An asyncio.Transport over a connected stream socket."""

    _start_tls_compatible = True
    _sendfile_compatible = _stdlib.SendfileMode.TRY_NATIVE

    def __init__(self, LoopCore loop, sock, protocol, waiter=None, dict extra=None, server=None,
                 context=None):
        """Make a transport that takes over the Python socket *sock*.

        Listener makes the transports of accepted connections in another way. The loop calls
        connection_made() later and then sets the result of *waiter*. The protocol runs in
        *context*, or in a copy of the current context.
        """
        self.epollout_on_demand = sock.family not in (AF_INET, AF_INET6)
        set_nodelay(sock)
        self.adopt_socket(loop, sock, protocol, waiter, extra, server, context)

    def __dealloc__(self):
        mgl_queue_clear(&self.queue)

    cdef int use_protocol(self, object protocol) except -1:
        self.delivery = delivery_to(protocol)
        self.disconnect_tls()
        if type(protocol) is SSLProtocol:
            self.tls = <SSLProtocol>protocol
            self.tls.below = <void *>self
            self.tls.context = self.context
            self.tls.write_below = write_for_tls
        return SocketTransport.use_protocol(self, protocol)

    cdef Py_ssize_t pending(self) noexcept:
        return self.queue.size

    cdef void drop_queue(self) noexcept:
        mgl_queue_clear(&self.queue)

    # -------------------------------------------------------------- events ----

    cdef int on_ready(self, uint32_t events) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        if events & ~(EPOLLIN | EPOLLPRI | EPOLLRDHUP) and self.blocked:
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

    # -------------------------------------------------------------- writing ----

    def write(self, data):
        """Send bytes now, or later if the peer does not accept them yet.

        A mutable buffer is copied if it has to wait. Raise TypeError if *data* is not bytes-like,
        and RuntimeError after write_eof() or during sendfile().
        """
        cdef Py_buffer view
        own_thread(self.loop)
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
        """Send, defer or queue n bytes. `data` is the bytes object that contains them, or None."""
        cdef ssize_t sent
        cdef Py_ssize_t done = 0
        if self.may_defer(data, n):
            if data is None:
                data = PyBytes_FromStringAndSize(start, n)
            mgl_queue_push(&self.queue, <PyObject *>data, 0)
            return self.defer()
        if self.queue.size == 0:
            sent = send(self.fd, start, n, MSG_NOSIGNAL | MSG_DONTWAIT)
            mgl_count_write(&self.loop.count, sent)
            if sent == n:
                return 0
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    return self.write_failed(errno)
            else:
                done = sent
            self.loop.check_open()
        if data is None:
            data = PyBytes_FromStringAndSize(start + done, n - done)
            done = 0
        mgl_queue_push(&self.queue, <PyObject *>data, done)
        if not self.blocked:
            self.send_queue()
        return self.pause_protocol()

    def writelines(self, list_of_data):
        """Send several bytes-like objects through sendmsg(), without joining them.

        Raise the same errors as write().
        """
        cdef Py_ssize_t total = 0
        cdef list chunks
        own_thread(self.loop)
        if self.eof:
            raise RuntimeError(f"Cannot call {WRITELINES}() after write_eof()")
        if self.empty_waiter is not None:
            raise RuntimeError(f"unable to {WRITELINES}; sendfile is in progress")
        if not list_of_data:
            return
        chunks = chunks_of(list_of_data)
        if not chunks:
            return
        if self.conn_lost:
            self.warn_conn_lost()
            return
        if self.loop._closed:
            data = b"".join(chunks)
            self.write_bytes(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            return
        for data in chunks:
            mgl_queue_push(&self.queue, <PyObject *>data, 0)
            total += PyBytes_GET_SIZE(data)
        if self.may_defer(chunks, total):
            self.defer()
            return
        if not self.blocked:
            self.send_queue()
        self.pause_protocol()

    cdef bint may_defer(self, object data, Py_ssize_t n) noexcept:
        """Return whether n bytes may wait for the end of the iteration, and count them if so.

        `data` is the object that contains the bytes. If it is None a deferred write needs a copy,
        and a long write may then not wait.
        """
        cdef uint32_t iteration
        if self.blocked or self.exposed:
            return False
        if n <= DEFER_MAX:
            return self.loop.may_defer(n)
        # A long write that waits for the first one saves a system call and a wake-up of the peer.
        # An aiohttp server that sends 64 KiB in eight writes makes 3 instead of 9 calls to send
        # them, and needs three quarters of the CPU time.
        iteration = <uint32_t>self.loop.count.iterations
        if self.long_write_iteration != iteration:
            self.long_write_iteration = iteration
            return False
        return data is not None and self.loop.may_defer_long(n)

    cdef int defer(self) except -1:
        """Defer the data that was just queued, but send it if the protocol would be paused."""
        mgl_count(&self.loop.count.deferred_writes, 1)
        self.loop.defer_flush(self)
        if <Py_ssize_t>self.queue.size > self.limits.high:
            self.flush_pending()
        return 0

    cdef int send_queue(self) except -1:
        """Send until the queue is empty, the kernel accepts no more, or the time slice is over.

        After a partial write the loop tries again, because an edge-triggered EPOLLOUT is guaranteed
        only after EAGAIN.
        """
        cdef iovec iov[MAX_IOV]
        cdef msghdr message
        cdef ssize_t sent
        cdef Py_ssize_t left = MAX_SENT
        cdef int chunks
        if self.loop.forked():
            return 0        # the parent sends the data that was written before the fork
        while self.queue.size > 0:
            if left <= 0:
                self.send_later()
                break
            chunks = mgl_queue_iov(&self.queue, iov, MAX_IOV)
            if chunks == 1:
                sent = send(self.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                memset(&message, 0, sizeof(message))
                message.msg_iov = iov
                message.msg_iovlen = chunks
                sent = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            mgl_count_write(&self.loop.count, sent)
            if sent < 0:
                if errno == EINTR:
                    self.send_later()
                elif errno == EAGAIN:
                    self.blocked = True
                    self.await_writable(True)
                else:
                    return self.write_failed(errno)
                break
            mgl_queue_consume(&self.queue, sent)
            left -= sent
        try:
            if self.limits.paused:
                self.resume_protocol()
        finally:
            # Do this even if resume_protocol() raises, because no other code will do it later.
            if self.queue.size == 0:
                self.all_sent()
        return 0

    cdef int send_later(self) except -1:
        """Continue to send after the entries that are in the ready queue now."""
        self.blocked = True
        return self.loop.mark_ready(self, EPOLLOUT)

    cdef int all_sent(self) except -1:
        """Complete the operations that wait for an empty queue: sendfile, close, half-close."""
        if self.awaits_writable:
            self.await_writable(False)
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_result(None)
        if self.closing:
            self.end(None)
        elif self.eof:
            try:
                self.shutdown_write()
            except OSError as exc:
                # The peer has reset the connection. The next read will detect that.
                self.report(f"Exception in callback {self!r}", exc)
        return 0

    cdef int write_failed(self, int error) except -1:
        exc = os_error(error)
        mgl_queue_clear(&self.queue)
        self.fatal_error(exc, "Fatal write error on socket transport")
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_exception(exc)
        return 0

    cdef int on_flush(self) except -1:
        return self.flush_pending()

    cdef int flush_pending(self) except -1:
        """Send the deferred writes. Afterwards the transport is in the same state as without them.
        """
        if self.queue.size > 0 and not self.blocked and not self.conn_lost:
            mgl_count(&self.loop.count.deferred_sends, 1)
            self.loop.deferred_long -= min(
                self.loop.deferred_long, <Py_ssize_t>self.queue.size)
            self.send_queue()
            if self.queue.size > 0:
                self.pause_protocol()
        return 0

    cdef int flush_for_external_use(self, bint permanent) except -1:
        cdef SSLProtocol tls = self.tls
        if tls is not None:
            tls.exposed |= permanent
            if tls.coalescing:
                tls.flush_pending()
                if permanent:
                    tls.coalescing = False
        return SocketWatcher.flush_for_external_use(self, permanent)

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Half-close: shut down the writing side after everything is sent.

        The peer may continue to send. Raise OSError if the connection is already lost but the
        transport has not detected that yet.
        """
        own_thread(self.loop)
        if self.closing or self.eof:
            return
        self.flush_pending()
        if self.closing:
            return      # sending the deferred writes has failed
        self.eof = True
        if self.queue.size == 0:
            self.shutdown_write()

    cdef int shutdown_write(self) except -1:
        if shutdown(self.fd, SHUT_WR) != 0:
            raise os_error(errno)
        return 0

    # -------------------------------------------------------------- sendfile ----

    def _make_empty_waiter(self):
        """Return a future that is done when everything is sent.

        write() raises RuntimeError until _reset_empty_waiter().
        """
        if self.empty_waiter is not None:
            raise RuntimeError("Empty waiter is already set")
        self.flush_pending()
        self.empty_waiter = self.loop.new_future()
        if self.queue.size == 0:
            self.empty_waiter.set_result(None)
        return self.empty_waiter

    def _reset_empty_waiter(self):
        self.empty_waiter = None

    def _lend(self):
        """Stop watching the socket and return it, so that other code can wait on it.

        _take_back() ends this.
        """
        self.loop.unwatch(self)
        self.watched = False
        return self.make_socket()

    def _take_back(self):
        if self.fd >= 0 and not self.conn_lost and not self.watched:
            self.watch_self()

    cdef int disconnect_tls(self) except -1:
        """Disconnect mgloop's own TLS protocol, if the transport has used it."""
        if self.tls is not None and self.tls.below == <void *>self:
            self.tls.below = NULL
        self.tls = None
        return 0

    cdef int connection_ended(self) except -1:
        self.disconnect_tls()
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_exception(ConnectionError("Connection is closed by peer"))
        return 0

    @property
    def __class__(self):
        return AsyncioTransport
