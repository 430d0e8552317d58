# SPDX-License-Identifier: GPL-2.0-only
"""The loop's methods sock_recv(), sock_recv_into(), sock_sendall() and sock_connect().

They are native because programs call them per packet or per request. Three things make them cheap.
The system call is tried first, when the call is awaited, and a future is created only after EAGAIN.
Waiting uses one edge-triggered registration per socket, which stays in place (FdWatch). The
methods return a Call, which needs no frame, unlike a coroutine.

    SockCall            checks, waits and tries again; a subclass makes the system call
      +- Recv           sock_recv()
      +- RecvInto       sock_recv_into()
      +- SendAll        sock_sendall()
      +- Connect        sock_connect()

sock_connect() is native if a TCP socket is connected to a literal address. All other connects use
asyncio's own code. So do the other sock_*() methods, which run per connection or carry addresses.
A connection within the machine is usually complete when connect() reports EINPROGRESS. So the
state of the connection is queried once before the socket is registered: in the next iteration,
where asyncio's poll would find the socket writable. An immediate result would save two iterations,
but programs depend on them without knowing it. If create_connection() is cancelled before asyncio
would have made the transport, the protocol must not be called here either.

All code runs on the thread of the loop. Lifetime: the FdWatch of a descriptor holds the calls that
wait for it. The descriptor belongs to the user, and user code may close it during the wait. Another
file may get the same number then. So each try first compares the socket's present fileno() with
the descriptor, because the call must never read from the other file.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc cimport errno as c_errno
from libc.errno cimport EAGAIN, EALREADY, EBADF, EINPROGRESS, EINTR
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from mgloop._awaitable cimport CALL_CLOSED, CALL_CREATED, PENDING
from mgloop._interest cimport FdCore, FdWatch, Waiter
from mgloop._loop cimport (
    EPOLLIN, EPOLLOUT, SCRATCH, Watcher, mgl_count_read, mgl_count_write, os_error,
)

import _socket

from . import _stdlib


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <poll.h>
    #include <sys/socket.h>

    /* Return the state of a connect() on this descriptor: 0 if it is connected, EINPROGRESS if
     * it is still in progress, or another errno if it has failed. */
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
    PyObject *bytes_or_null "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t n)
    void PyErr_Clear()


cdef enum:
    SMALL = 16 * 1024
    # Most bytes that one call sends in an iteration. If the reader is as fast, send() never returns
    # EAGAIN, and the loop would not get to anything else.
    MAX_SENT = 1024 * 1024

# The socket module's own class. The native methods make its system calls directly; asyncio's code
# calls the methods of any other class.
cdef object PlainSocket = _stdlib.PlainSocket

# These return ints. The attributes of socket.socket create an enum member at each access.
cdef object family_of = _socket.socket.family.__get__
cdef object type_of = _socket.socket.type.__get__
cdef object proto_of = _socket.socket.proto.__get__
cdef object own_connect = _socket.socket.connect


cdef inline object owned(PyObject *data):
    """Return an object to which the caller has given the only reference."""
    cdef object result = <object>data
    Py_DECREF(result)
    return result


cdef class SockCall(Waiter):
    """One call of a socket method, to be awaited."""

    @cython.final
    cdef SockCall prepare(self, FdCore loop, object sock, object argument, uint32_t event):
        """Set the attributes of a new call that waits for `event`. Return the call."""
        self.loop = loop
        self.sock = sock
        self.argument = argument
        self.event = event
        self.fd = -1
        self.state = CALL_CREATED
        return self

    cdef int check(self) except -1:
        """Make the checks that asyncio makes when the call is first awaited."""
        if type(self.sock) is not PlainSocket:
            _stdlib.check_ssl_socket(self.sock)
        if self.loop._debug and self.sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        self.fd = self.sock.fileno()
        return 0

    cdef object run(self):
        if self.future is None:
            self.check()
            return self.begin()
        return self.future.result() if self.future.done() else PENDING

    cdef object begin(self):
        """Try the call, and return its result, or PENDING after starting to wait."""
        cdef object result = self.try_call()
        if result is PENDING:
            self.future = self.loop.new_future()
            self.enlist()
        return result

    cdef object try_call(self):
        """Make the system call once.

        Return the result, or PENDING if the call would block. Raise OSError.
        """
        raise NotImplementedError

    cdef object unfinished(self, int error):
        """Return PENDING if the system call would have blocked or was interrupted.

        Raise OSError for every other errno.
        """
        if error == EINTR:
            self.retry = True
        elif error != EAGAIN:
            raise os_error(error)
        return PENDING

    cdef int enlist(self) except -1:
        """Enter the queue of calls that wait for the descriptor."""
        cdef FdWatch watch
        self.loop.check_owner(self.fd)
        watch = self.loop.fd_watch(self.fd, True)
        watch.enlist(self, self.sock)
        self.watch = watch
        if self.retry:
            self.schedule_retry()
        return 0

    cdef int schedule_retry(self) except -1:
        """Append the descriptor to the loop's ready queue.

        The edge-triggered registration will not report an event for a state that has not changed.
        """
        self.retry = False
        return self.loop.mark_ready(self.watch, self.event)

    cdef bint attempt(self) except -1:
        """Try the call when the descriptor is ready; return True if the wait is over."""
        cdef object result
        cdef bint failed = False
        if self.future is None or self.future.done():
            return True
        try:
            if self.sock.fileno() != self.fd:
                raise os_error(EBADF)
            result = self.try_call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fail(exc)
            failed = True
        if failed:
            return True
        if result is PENDING:
            # The call of a ConnectCheck is not watched: the kernel has not reported the descriptor
            # as ready yet.
            if self.watch is not None and (self.retry or not self.retried):
                # The kernel has reported the descriptor as ready, and will not report it again
                # unless its state changes. So try once more before waiting for the next event.
                self.retried = not self.retry
                self.schedule_retry()
            return False
        self.future.set_result(result)
        return True

    cdef int fail(self, object exc) except -1:
        if self.future is not None and not self.future.done():
            self.future.set_exception(exc)
        return 0

    cdef int finish(self) except -1:
        """Leave the queue, and release the argument and the socket."""
        self.state = CALL_CLOSED
        if self.watch is not None:
            self.watch.delist(self)
            self.watch = None
        self.argument = None
        self.sock = None
        self.future = None
        return 0


@cython.final
cdef class Recv(SockCall):
    """A call of sock_recv()."""

    cdef str qualname(self):
        return "Loop.sock_recv"

    cdef int check(self) except -1:
        SockCall.check(self)
        # Convert it once, because a subclass of int may override the comparison operators.
        self.size = self.argument
        if self.size < 0:
            raise ValueError("negative buffersize in recv")
        return 0

    cdef object try_call(self):
        cdef PyObject *data
        cdef Py_ssize_t n
        if self.size == 0:
            return b""      # without a system call, as the socket module
        # Copying from the scratch buffer is cheaper than shrinking a large bytes object, if the
        # reads return little. `sock_hint` is the size of the last read, of all sockets.
        if self.size > SCRATCH or (self.size > SMALL and self.loop.sock_hint > SMALL):
            return self.receive_large()
        if self.loop.sock_reserve is None:
            self.loop.sock_reserve = PyBytes_FromStringAndSize(NULL, SCRATCH)
        n = recv(self.fd, self.loop.scratch, self.size, MSG_DONTWAIT)
        mgl_count_read(&self.loop.count, n)
        if n < 0:
            return self.unfinished(c_errno.errno)
        self.loop.sock_hint = n
        data = bytes_or_null(self.loop.scratch, n)
        if data is NULL:
            PyErr_Clear()
            data = self.copy_to_reserve(n)
        return owned(data)

    cdef PyObject *copy_to_reserve(self, Py_ssize_t n) except NULL:
        """Copy the received bytes into the loop's reserve, because no memory is left for others.

        They would be lost otherwise. The next call allocates a new reserve before it receives.
        """
        cdef PyObject *data = <PyObject *>self.loop.sock_reserve
        Py_INCREF(<object>data)
        self.loop.sock_reserve = None
        memcpy(PyBytes_AS_STRING(<object>data), self.loop.scratch, n)
        _PyBytes_Resize(&data, n)
        return data

    cdef object receive_large(self):
        """Receive into a new bytes object, and shrink it."""
        cdef PyObject *data = PyBytes_New(NULL, self.size)
        cdef Py_ssize_t n
        cdef int error
        n = recv(self.fd, PyBytes_AS_STRING(<object>data), self.size, MSG_DONTWAIT)
        error = c_errno.errno
        mgl_count_read(&self.loop.count, n)
        if n < 0:
            Py_DECREF(<object>data)
            return self.unfinished(error)
        self.loop.sock_hint = n
        if n < self.size:
            _PyBytes_Resize(&data, n)
        return owned(data)


@cython.final
cdef class RecvInto(SockCall):
    """A call of sock_recv_into()."""

    cdef str qualname(self):
        return "Loop.sock_recv_into"

    cdef object try_call(self):
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef int error
        # The buffer is not held during the wait, so that its owner can resize or release it.
        try:
            PyObject_GetBuffer(self.argument, &view, PyBUF_WRITABLE)
        except (BufferError, TypeError, ValueError):
            self.sock.recv_into(self.argument)  # raises the socket module's own error
            raise
        if view.len == 0:
            PyBuffer_Release(&view)
            return 0
        n = recv(self.fd, view.buf, view.len, MSG_DONTWAIT)
        error = c_errno.errno
        mgl_count_read(&self.loop.count, n)
        PyBuffer_Release(&view)
        return n if n >= 0 else self.unfinished(error)


@cython.final
cdef class SendAll(SockCall):
    """A call of sock_sendall()."""

    cdef str qualname(self):
        return "Loop.sock_sendall"

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)

    cdef int check(self) except -1:
        SockCall.check(self)
        try:
            PyObject_GetBuffer(self.argument, &self.view, PyBUF_SIMPLE)
        except (BufferError, TypeError, ValueError):
            self.sock.send(self.argument)   # raises the socket module's own error
            raise
        self.has_view = True
        return 0

    cdef object try_call(self):
        cdef const char *start = <const char *>self.view.buf
        cdef Py_ssize_t limit = self.sent + MAX_SENT
        cdef Py_ssize_t n
        while True:
            n = send(self.fd, start + self.sent, self.view.len - self.sent,
                     MSG_NOSIGNAL | MSG_DONTWAIT)
            mgl_count_write(&self.loop.count, n)
            if n < 0:
                return self.unfinished(c_errno.errno)
            self.sent += n
            if self.sent == self.view.len:
                return None
            if self.sent >= limit:
                self.retry = True
                return PENDING

    cdef int finish(self) except -1:
        SockCall.finish(self)
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        return 0


@cython.final
cdef class Connect(SockCall):
    """A call of sock_connect()."""

    cdef str qualname(self):
        return "Loop.sock_connect"

    cdef object begin(self):
        """Begin to connect. The outcome is taken in the next iteration, by a ConnectCheck."""
        cdef ConnectCheck check
        cdef int error = self.sock.connect_ex(self.argument)
        if error == 0:
            return None
        # After EINTR the connect continues in the background, too (connect(2)).
        if error not in (EAGAIN, EALREADY, EINPROGRESS, EINTR):
            raise os_error(error)
        if self.loop._closed:
            self.loop._check_closed()
        self.loop.check_owner(self.fd)
        self.future = self.loop.new_future()
        check = ConnectCheck.__new__(ConnectCheck)
        check.loop = self.loop
        check.call = self
        if self.loop.iterating:
            self.loop.defer_flush(check)
        else:
            self.loop.mark_ready(check, EPOLLOUT)
        return PENDING

    cdef int check_connection(self) except -1:
        """Take the outcome of connect(), or begin to wait for it."""
        if self.state == CALL_CLOSED or self.attempt():
            return 0
        try:
            self.enlist()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fail(exc)
        return 0

    cdef object try_call(self):
        cdef int error = connect_outcome(self.fd)
        if error == 0:
            return None
        if error in (EAGAIN, EALREADY, EINPROGRESS, EINTR):
            return PENDING
        raise OSError(error, f"Connect call failed {self.argument}")


@cython.final
cdef class ConnectCheck(Watcher):
    """Checks a connection attempt in the iteration after connect().

    It joins the ready queue at the end of the iteration, after everything that the iteration has
    scheduled, as if a poll had found the socket writable.
    """

    cdef int on_flush(self) except -1:
        return self.loop.mark_ready(self, EPOLLOUT)

    cdef int on_ready(self, uint32_t events) except -1:
        return self.call.check_connection()

    cdef int failed(self, object exc) except -1:
        if self.call.future is None or self.call.future.done():
            # Without memory, a future loses its callbacks when it becomes done. The task that waits
            # for it never continues, and gets no exception. So report the error.
            return Watcher.failed(self, exc)
        return self.call.fail(exc)

    cdef int interrupted(self, uint32_t events) except -1:
        return self.loop.mark_ready(self, events)


cdef object literal_target(object sock, object address):
    """Return the result that asyncio's resolver would return for a literal address.

    Return None if `address` has to be resolved, or if the connect has to go through asyncio's code.
    """
    cdef int family
    if type(sock) is not PlainSocket or type(address) is not tuple or not 2 <= len(address) <= 4:
        return None
    if PlainSocket.connect is not own_connect:
        return None     # a tool such as pytest-socket has replaced the method
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
    """Return whether the socket's class overrides the method."""
    return type(sock) is not PlainSocket and _stdlib.overrides(sock, method)


cdef class SockCore(FdCore):
    """Extend FdCore by the native socket methods."""

    def sock_recv(self, sock, n):
        """Receive up to n bytes and return them, as asyncio.loop.sock_recv()."""
        if has_own(sock, "recv"):
            return _stdlib.SelectorLoop.sock_recv(self, sock, n)
        return (<SockCall>Recv.__new__(Recv)).prepare(self, sock, n, EPOLLIN)

    def sock_recv_into(self, sock, buf):
        """Receive into a writable buffer and return the number of bytes.

        The semantics are those of asyncio.loop.sock_recv_into().
        """
        if has_own(sock, "recv_into"):
            return _stdlib.SelectorLoop.sock_recv_into(self, sock, buf)
        return (<SockCall>RecvInto.__new__(RecvInto)).prepare(self, sock, buf, EPOLLIN)

    def sock_connect(self, sock, address):
        """Connect to a remote address, as asyncio.loop.sock_connect()."""
        target = literal_target(sock, address)
        if target is None:
            return _stdlib.SelectorLoop.sock_connect(self, sock, address)
        return (<SockCall>Connect.__new__(Connect)).prepare(self, sock, target, EPOLLOUT)

    def sock_sendall(self, sock, data):
        """Send all of data, as asyncio.loop.sock_sendall()."""
        if has_own(sock, "send"):
            return _stdlib.SelectorLoop.sock_sendall(self, sock, data)
        return (<SockCall>SendAll.__new__(SendAll)).prepare(self, sock, data, EPOLLOUT)
