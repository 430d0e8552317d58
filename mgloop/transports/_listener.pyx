# SPDX-License-Identifier: GPL-2.0-only
"""Accept connections on the listening sockets of servers, and make transports of them.

The module is native because it runs once per accepted connection. It makes the transport, calls the
protocol factory and calls connection_made() in one callback, without a Python socket and without a
task. asyncio's way with a task (mixins/server.py) is used for connections with TLS, in debug
mode, for other address families than IPv4, IPv6 and UNIX, and for listening sockets whose class
overrides accept().

The registration of a listener is level-triggered: the kernel reports again the connections that
stay in the backlog. An exception while a connection is accepted can therefore not lose the
connections after it. Only the loop's thread may use a listener. The poll table holds a reference to
it while it is registered, and the loop's table of listeners until the server is closed.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.errno cimport (
    EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno,
)
from libc.stdint cimport uint32_t

from mgloop._loop cimport EPOLLIN, LoopCore, Watcher, mgl_count, os_error
from mgloop.transports._base cimport new_context
from mgloop.transports._socket cimport Address, address_tuple, kind_of, sockaddr
from mgloop.transports._stream cimport Stream, set_nodelay

import socket
from asyncio.log import logger

from .. import _stdlib


cdef extern from *:
    """
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/un.h>
    #include <unistd.h>
    int accept4(int, struct sockaddr *, socklen_t *, int);
    """
    ctypedef unsigned int socklen_t
    cdef struct sockaddr_un:
        unsigned short sun_family
        char sun_path[108]
    size_t strnlen(const char *text, size_t size)
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)
    int close(int fd)
    enum:
        AF_INET
        AF_INET6
        AF_UNIX
        SOCK_NONBLOCK
        SOCK_CLOEXEC


cdef extern from "Python.h":
    object copy_of_context "PyContext_Copy"(PyObject *context)
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    object PyUnicode_DecodeFSDefaultAndSize(const char *text, Py_ssize_t size)


cdef union Name:
    Address ip
    sockaddr_un path


cdef object unix_name(sockaddr_un *name, socklen_t size):
    """Return a UNIX socket's address in the form of the socket module.

    It is "" for an unnamed socket, bytes for an abstract address, else the path.
    """
    cdef Py_ssize_t length = min(<size_t>size, sizeof(sockaddr_un)) - sizeof(name.sun_family)
    if length <= 0:
        return ""
    if name.sun_path[0] == 0:
        return PyBytes_FromStringAndSize(name.sun_path, length)
    return PyUnicode_DecodeFSDefaultAndSize(name.sun_path, strnlen(name.sun_path, length))


@cython.final
cdef class Listener(Watcher):
    """A watcher that accepts connections on a listening socket. The server owns the socket."""

    def __init__(self, LoopCore loop, protocol_factory, sock, sslcontext, server, int backlog,
                 handshake_timeout, shutdown_timeout, context=None):
        self.context = new_context(context)
        self.loop = loop
        self.protocol_factory = protocol_factory
        self.sock = sock
        self.sslcontext = sslcontext
        self.server = server
        self.backlog = max(backlog, 1)
        self.handshake_timeout = handshake_timeout
        self.shutdown_timeout = shutdown_timeout
        self.family = sock.family
        self.proto = sock.proto
        self.by_python = (self.family not in (AF_INET, AF_INET6, AF_UNIX)
                          or _stdlib.overrides(sock, "accept"))
        name = sock.getsockname()
        set_nodelay(sock)       # accepted sockets inherit it, which saves a system call per socket
        if self.family in (AF_INET, AF_INET6):
            if name[0] not in ("0.0.0.0", "::"):
                self.sockname = name
        else:
            self.sockname = name
        loop.watch(self, sock.fileno(), EPOLLIN)

    def stop(self):
        """Stop accepting connections and leave the socket open."""
        self.stopped = True
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
        self.loop.unwatch(self)
        self.context = None

    def _resume(self):
        self.retry = None
        if self.stopped:
            return
        try:
            self.loop.watch(self, self.fd, EPOLLIN)
        except OSError as exc:
            self.report("socket.accept() out of system resource", exc)
            self.retry = self.loop.call_later(_stdlib.ACCEPT_RETRY_DELAY, self._resume)

    cdef int relinquish(self, Watcher other) except -1:
        if self.sock.fileno() == self.fd:
            raise RuntimeError(f"File descriptor {self.fd} is used by {self!r}")
        # The program has closed the socket, and its number now belongs to another file.
        self.fd = -1
        return 0

    cdef int on_ready(self, uint32_t events) except -1:
        cdef Name peer
        cdef socklen_t size
        cdef int fd, _i
        cdef object peername = None, conn
        for _i in range(self.backlog):
            if self.stopped:
                return 0
            if self.by_python:
                if not self.accept_any_family():
                    return 0
                continue
            size = sizeof(peer)
            peer.ip.any.sa_family = 0
            fd = accept4(self.fd, &peer.ip.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                return self.accept_failed(errno)
            self.count_accepted()
            conn = None
            try:
                if self.family == AF_UNIX:
                    peername = unix_name(&peer.path, size)
                if self.sslcontext is not None or self.loop._debug:
                    conn = socket.socket(
                        self.family, self.sock.type | SOCK_NONBLOCK, self.proto, fileno=fd)
            except BaseException:
                close(fd)
                raise
            if conn is None:
                self.accept(fd, &peer.ip, peername)
                continue
            self.accept_with_task(conn, address_tuple(&peer.ip) if peername is None else peername)
        return 0

    cdef int accept_failed(self, int error) except -1:
        if error in (EAGAIN, EINTR, ECONNABORTED):
            return 0
        if error in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
            return self.out_of_resources(error)
        raise os_error(error)

    cdef int accept_any_family(self) except -1:
        """Accept a connection by the socket's accept() method, which supports all families.

        Return 1 if there was a connection, else 0.
        """
        cdef int error = 0
        try:
            conn, peername = self.sock.accept()
        except OSError as exc:
            error = exc.errno
        if error:
            return self.accept_failed(error)
        conn.setblocking(False)
        self.count_accepted()
        self.accept_with_task(conn, peername)
        return 1

    cdef int count_accepted(self) noexcept:
        mgl_count(&self.loop.count.connections[kind_of(self.family)].accepted, 1)
        return 0

    cdef int accept(self, int fd, Address *peer, object peername) except -1:
        """Make a transport and a protocol for an accepted descriptor.

        If `peername` is None, `peer` contains the peer's address.
        """
        cdef Stream stream
        cdef object context, connection_made
        cdef bint abandoned = False
        try:
            stream = Stream.__new__(Stream)
        except BaseException:
            close(fd)
            raise
        try:
            context = copy_of_context(<PyObject *>self.context)
            PyContext_Enter(<PyObject *>context)
            try:
                protocol = self.protocol_factory()
                connection_made = protocol.connection_made
            finally:
                PyContext_Exit(<PyObject *>context)
            stream.family = self.family
            stream.epollout_on_demand = self.family == AF_UNIX
            stream.proto = self.proto
            stream.sockname = self.sockname
            stream.peername = peername
            if peername is None:
                stream.peer = peer[0]
            stream.adopt(self.loop, fd, protocol, context)
            stream.attach(self.server)
        except BaseException as exc:
            # Ignore the exception, as asyncio does. asyncio reports it only in debug mode, and the
            # listener then uses accept_with_task().
            stream.abandon()
            close(fd)
            if isinstance(exc, (SystemExit, KeyboardInterrupt)):
                raise
            abandoned = True
        if abandoned:
            return 0
        PyContext_Enter(<PyObject *>context)
        try:
            stream.start(connection_made)
        finally:
            PyContext_Exit(<PyObject *>context)
        return 0

    cdef int accept_with_task(self, object conn, object peername) except -1:
        """Make a task that makes the transport of an accepted Python socket.

        This is the way for TLS, for debug mode and for rare address families.
        """
        cdef object context = self.context
        cdef object coroutine
        if context is None:
            # The server was closed after accept(), because making the Python socket can run user
            # code.
            conn.close()
            return 0
        if self.loop._debug:
            logger.debug("%r got a new connection: %r", self.server, conn)
        coroutine = self.loop._accept_connection(
            self.protocol_factory, conn, peername, self.sslcontext, self.server,
            self.handshake_timeout, self.shutdown_timeout)
        PyContext_Enter(<PyObject *>context)
        try:
            self.loop.create_task(coroutine)
        except BaseException:
            # The user's task factory has raised.
            coroutine.close()
            conn.close()
            raise
        finally:
            PyContext_Exit(<PyObject *>context)
        return 0

    cdef int out_of_resources(self, int error) except -1:
        """Stop accepting for a second and report the error.

        Otherwise the kernel would report the socket in each poll, and the loop would spin.
        """
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
