# SPDX-License-Identifier: GPL-2.0-only
"""sock_recv(), sock_recv_into() and sock_sendall(), which run per packet, and sock_connect().

Native because programs call them per message, or per request. Three things make them cheap. The
system call is tried first, when the call is awaited, and only EAGAIN makes a future. Waiting uses
one edge-triggered registration per socket that stays in place (FdWatch). And what is awaited is no
coroutine but an Awaitable, which has no frame.

sock_connect() is native where a TCP socket is connected to a literal address: asyncio's own code
serves the rest, and the other sock_*() methods, which run per connection or carry addresses. A
connection within the machine is complete when connect() has reported that it is in progress. So the
kernel is asked once before the socket is registered: in the next iteration, where asyncio's poll
finds the socket writable. A result at once would save two iterations, but programs depend on them
without knowing it. If create_connection() is cancelled before asyncio would have made the
transport, the protocol must not be called here either.

Lifetime: a call that waits is held by the FdWatch of its descriptor; the descriptor stays the
user's, who may close it meanwhile. So the socket is asked for its number again before each try:
a call must never read from a stranger that has got the same one.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc cimport errno as c_errno
from libc.errno cimport EAGAIN, EALREADY, EBADF, EINPROGRESS, EINTR
from libc.stdint cimport uint32_t

from mgloop._interest cimport FdCore, FdWatch, Waiter
from mgloop._loop cimport (
    EPOLLIN, EPOLLOUT, SCRATCH, Watcher, mgl_count_read, mgl_count_write, os_error,
)

import _socket
import warnings

from . import _stdlib


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <poll.h>
    #include <sys/socket.h>

    /* What has become of a connect() on this descriptor: 0 = connected, or an errno; EINPROGRESS if
     * it goes on. */
    static int connect_outcome(int fd) {
        struct pollfd asked = {.fd = fd, .events = POLLOUT};
        int error = 0;
        socklen_t size = sizeof(error);
        if (poll(&asked, 1, 0) == 0) return EINPROGRESS;
        return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
    }

    static int is_literal(int family, const char *host) {
        unsigned char address[16];
        return inet_pton(family, host, address) == 1;
    }
    """
    int connect_outcome(int fd)
    bint is_literal(int family, const char *host)
    ssize_t recv(int fd, void *buf, size_t n, int flags)
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT
        AF_INET
        AF_INET6
        SOCK_STREAM
        IPPROTO_TCP


cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **data, Py_ssize_t n) except -1
    PyObject *PyBytes_New "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t n) except NULL


cdef enum:
    SMALL = 16 * 1024
    MAX_SENT = 1024 * 1024      # bytes per turn: a reader that keeps up would let us send for ever

cdef enum Kind:
    RECV
    RECV_INTO
    SENDALL
    CONNECT

# The socket module's own class. The native methods make its system calls directly; asyncio's code
# calls the methods of any other class.
cdef object PlainSocket = _stdlib.PlainSocket
cdef tuple NAMES = (
    "Loop.sock_recv", "Loop.sock_recv_into", "Loop.sock_sendall", "Loop.sock_connect")

# As ints: the attributes of socket.socket make an enum each time.
cdef object family_of = _socket.socket.family.__get__
cdef object type_of = _socket.socket.type.__get__
cdef object proto_of = _socket.socket.proto.__get__
cdef object own_connect = _socket.socket.connect

# try_call() found nothing to read, or no room to write to.
cdef object NOT_YET = object()


@cython.final
cdef class SockCall(Waiter):
    """One awaited call."""

    def __cinit__(self):
        self.finished = True    # until it is given something to do

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)

    def __del__(self):
        if not self.started and not self.finished:
            warnings.warn(
                f"coroutine {NAMES[self.kind]!r} was never awaited", RuntimeWarning, source=self)

    cdef int check(self) except -1:
        """What asyncio checks first, when the call is awaited."""
        if type(self.sock) is not PlainSocket:
            _stdlib.check_ssl_socket(self.sock)
        if self.loop._debug and self.sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        self.fd = self.sock.fileno()
        if self.kind == RECV:
            # Converted once: the comparison operators of an int subclass cannot be trusted.
            self.size = self.argument
            if self.size < 0:
                raise ValueError("negative buffersize in recv")
        elif self.kind == SENDALL:
            try:
                PyObject_GetBuffer(self.argument, &self.view, PyBUF_SIMPLE)
            except (BufferError, TypeError, ValueError):
                self.sock.send(self.argument)   # raises the socket module's own error
                raise
            self.has_view = True
        return 0

    cdef object begin(self):
        """The result if it is there at once, else NOT_YET with the wait set up."""
        cdef object result
        self.started = True
        self.check()
        if self.kind == CONNECT:
            return self.connect()
        result = self.try_call()
        if result is NOT_YET:
            self.future = self.loop.new_future()
            self.enlist()
        return result

    cdef object connect(self):
        """Begin to connect. The outcome is taken in the next iteration, by a ConnectCheck."""
        cdef ConnectCheck check
        cdef int error = self.sock.connect_ex(self.argument)
        if error == 0:
            return None
        # After EINTR it goes on as well (connect(2)).
        if error not in (EAGAIN, EALREADY, EINPROGRESS, EINTR):
            raise os_error(error)
        if self.loop._closed:
            self.loop._check_closed()
        self.loop.users_fd(self.fd)
        self.future = self.loop.new_future()
        check = ConnectCheck.__new__(ConnectCheck)
        check.loop = self.loop
        check.call = self
        if self.loop.iterating:
            self.loop.defer_flush(check)
        else:
            self.loop.mark_ready(check, EPOLLOUT)
        return NOT_YET

    cdef int check_connection(self) except -1:
        """Take the outcome of connect(), or begin to wait for it."""
        if self.finished or self.attempt():
            return 0
        try:
            self.enlist()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fail(exc)
        return 0

    cdef object try_call(self):
        """The call itself, or what has become of connect(): its result, or NOT_YET. Raises
        OSError."""
        cdef PyObject *data
        cdef Py_ssize_t n, limit
        cdef Py_ssize_t size = self.size
        cdef char *start
        cdef Py_buffer target
        cdef int error
        if self.kind == CONNECT:
            error = connect_outcome(self.fd)
            if error == 0:
                return None
            if error in (EAGAIN, EALREADY, EINPROGRESS, EINTR):
                return NOT_YET
            raise OSError(error, f"Connect call failed {self.argument}")
        if self.kind == SENDALL:
            start = <char *>self.view.buf
            limit = self.done + MAX_SENT
            while True:
                n = send(self.fd, start + self.done, self.view.len - self.done,
                         MSG_NOSIGNAL | MSG_DONTWAIT)
                mgl_count_write(&self.loop.count, n)
                if n < 0:
                    break
                self.done += n
                if self.done == self.view.len:
                    return None
                if self.done >= limit:
                    self.again = True
                    return NOT_YET
        elif self.kind == RECV_INTO:
            # Not held while waiting: the owner may resize or release the buffer meanwhile.
            try:
                PyObject_GetBuffer(self.argument, &target, PyBUF_WRITABLE)
            except (BufferError, TypeError, ValueError):
                self.sock.recv_into(self.argument)      # raises the socket module's own error
                raise
            if target.len == 0:
                PyBuffer_Release(&target)
                return 0
            n = recv(self.fd, target.buf, target.len, MSG_DONTWAIT)
            mgl_count_read(&self.loop.count, n)
            error = c_errno.errno
            PyBuffer_Release(&target)
            if n >= 0:
                return n
            c_errno.errno = error
        else:
            if size == 0:
                return b""      # without a look, as the socket module
            # A copy out of the scratch buffer is cheaper than a large object that is then shrunk,
            # as long as the last reads, over all sockets, have brought little.
            if size <= SMALL or (size <= SCRATCH and self.loop.sock_hint <= SMALL):
                n = recv(self.fd, self.loop.scratch, size, MSG_DONTWAIT)
                mgl_count_read(&self.loop.count, n)
                if n >= 0:
                    self.loop.sock_hint = n
                    return PyBytes_FromStringAndSize(self.loop.scratch, n)
            else:
                data = PyBytes_New(NULL, size)
                n = recv(self.fd, PyBytes_AS_STRING(<object>data), size, MSG_DONTWAIT)
                mgl_count_read(&self.loop.count, n)
                if n >= 0:
                    self.loop.sock_hint = n
                    if n < size:
                        _PyBytes_Resize(&data, n)
                    result = <object>data
                    Py_DECREF(result)
                    return result
                Py_DECREF(<object>data)
        if c_errno.errno == EINTR:
            self.again = True
            return NOT_YET
        if c_errno.errno == EAGAIN:
            return NOT_YET
        raise os_error(c_errno.errno)

    cdef bint writes(self) noexcept:
        """Whether it waits for the descriptor to be writable."""
        return self.kind == SENDALL or self.kind == CONNECT

    cdef int enlist(self) except -1:
        """Enter the queue of those who wait for the descriptor."""
        cdef FdWatch watch
        self.loop.users_fd(self.fd)
        watch = self.loop.fd_watch(self.fd, True)
        watch.enlist(self, self.writes(), self.sock)
        self.watch = watch
        if self.again:
            self.try_again()
        return 0

    cdef int try_again(self) except -1:
        """Behind those who are ready now: no edge will tell."""
        self.again = False
        return self.loop.mark_ready(self.watch, EPOLLOUT if self.writes() else EPOLLIN)

    cdef bint attempt(self) except -1:
        """Called when the descriptor is ready. True = there is nothing more to wait for."""
        cdef object result
        cdef bint failed = False
        if self.future.done():
            return True
        try:
            if self.sock.fileno() != self.fd:
                raise os_error(EBADF)
            result = self.try_call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.future.set_exception(exc)
            failed = True
        if failed:
            return True
        if result is NOT_YET:
            # A ConnectCheck has no watch, and no kernel has reported the descriptor as ready.
            if self.watch is not None and (self.again or not self.looked_twice):
                # The kernel has said that it is ready, and will not say so again.
                self.looked_twice = not self.again
                self.try_again()
            return False
        self.future.set_result(result)
        return True

    cdef int fail(self, object exc) except -1:
        if not self.future.done():
            self.future.set_exception(exc)
        return 0

    cdef object step(self, bint *returned):
        cdef object result
        if self.finished:
            raise RuntimeError("cannot reuse already awaited coroutine")
        try:
            if not self.started:
                result = self.begin()
                if result is not NOT_YET:
                    self.finish()
                    returned[0] = True
                    return result
            elif self.future.done():
                result = self.future.result()
                self.finish()
                returned[0] = True
                return result
            returned[0] = False
            # Marks the future as being waited for, as the task's step wants it.
            return next(iter(self.future))
        except BaseException:
            self.finish()
            raise

    cdef int finish(self) except -1:
        """Leave the queue, and let go of buffer and socket."""
        self.finished = True
        if self.watch is not None:
            self.watch.delist(self, self.writes())
            self.watch = None
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        self.argument = None
        self.sock = None
        self.future = None
        return 0

    @property
    def __name__(self):
        return NAMES[self.kind].rpartition(".")[2]

    @property
    def __qualname__(self):
        return NAMES[self.kind]

    @property
    def cr_await(self):
        """What it waits for, for those who print the call graph."""
        return self.future


@cython.final
cdef class ConnectCheck(Watcher):
    """Checks a connection attempt in the iteration after connect().

    It joins the ready queue at the end of the iteration, behind everything that the iteration has
    scheduled, as if a poll had found the socket writable.
    """

    cdef int on_flush(self) except -1:
        return self.loop.mark_ready(self, EPOLLOUT)

    cdef int on_ready(self, uint32_t events) except -1:
        return self.call.check_connection()

    cdef int failed(self, object exc) except -1:
        return self.call.fail(exc)

    cdef int interrupted(self, uint32_t events) except -1:
        return self.loop.mark_ready(self, events)


cdef SockCall new_call(FdCore loop, int kind, object sock, object argument):
    cdef SockCall call = SockCall.__new__(SockCall)
    call.loop = loop
    call.finished = False
    call.kind = kind
    call.sock = sock
    call.argument = argument
    call.fd = -1
    return call


cdef object literal_target(object sock, object address):
    """`address` as asyncio's resolver would have it, if that need not be asked; else None."""
    cdef int family
    if type(sock) is not PlainSocket or type(address) is not tuple or not 2 <= len(address) <= 4:
        return None
    if PlainSocket.connect is not own_connect:
        return None     # replaced, as by pytest-socket
    host, port = address[0], address[1]
    if type(host) is not str or type(port) is not int or "\0" in host or not host.isascii():
        return None
    family = family_of(sock)
    if type_of(sock) != SOCK_STREAM or proto_of(sock) not in (0, IPPROTO_TCP):
        return None
    if family == AF_INET and len(address) == 2 and is_literal(AF_INET, host.encode()):
        return address
    if family == AF_INET6 and is_literal(AF_INET6, host.encode()):
        return address + (0, 0)[len(address) - 2:]
    return None


cdef inline bint has_own(object sock, str method) except -1:
    """Whether the socket's class overrides the method."""
    return type(sock) is not PlainSocket and _stdlib.overrides(sock, method)


cdef class SockCore(FdCore):
    """FdCore and the native socket methods."""

    def sock_recv(self, sock, n):
        """Receive up to n bytes; as asyncio.loop.sock_recv."""
        if has_own(sock, "recv"):
            return _stdlib.SelectorLoop.sock_recv(self, sock, n)
        return new_call(self, RECV, sock, n)

    def sock_recv_into(self, sock, buf):
        """Receive into a writable buffer, returns the number of bytes; as asyncio's."""
        if has_own(sock, "recv_into"):
            return _stdlib.SelectorLoop.sock_recv_into(self, sock, buf)
        return new_call(self, RECV_INTO, sock, buf)

    def sock_connect(self, sock, address):
        """Connect to a remote address; as asyncio.loop.sock_connect."""
        target = literal_target(sock, address)
        if target is None:
            return _stdlib.SelectorLoop.sock_connect(self, sock, address)
        return new_call(self, CONNECT, sock, target)

    def sock_sendall(self, sock, data):
        """Send all of data; as asyncio.loop.sock_sendall."""
        if has_own(sock, "send"):
            return _stdlib.SelectorLoop.sock_sendall(self, sock, data)
        return new_call(self, SENDALL, sock, data)
