# SPDX-License-Identifier: GPL-2.0-only
"""Implement SocketWatcher, which owns the socket of a socket transport.

The class has the descriptor, its registration for events, the Python socket and the addresses.
SocketTransport in _base derives from it and adds the protocol. The module is native because the
registration changes with the state of the write buffer. Only the loop's thread may use it.

The transport owns its descriptor, either directly or through a Python socket. The creator of the
transport passes that socket, or the transport makes it when the program asks for it. The poll table
holds a reference to an object that is claimed or watched.
"""

from libc.stdint cimport uint32_t

from mgloop._loop cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, MGL_OTHER, MGL_TCP, MGL_UNIX, Watcher,
)

import socket

from .public_socket import PublicSocket


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <sys/socket.h>
    #include <unistd.h>
    """
    ctypedef unsigned int socklen_t
    int close(int fd)
    int getsockname(int fd, sockaddr *address, socklen_t *size)
    const char *inet_ntop(int family, const void *src, char *dst, socklen_t size)
    unsigned short ntohs(unsigned short n)
    unsigned int ntohl(unsigned int n)
    enum:
        AF_INET
        AF_INET6
        AF_UNIX
        SOCK_NONBLOCK
        INET6_ADDRSTRLEN


cdef enum:
    INTEREST = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET


cdef int kind_of(int family) noexcept:
    if family in (AF_INET, AF_INET6):
        return MGL_TCP
    return MGL_UNIX if family == AF_UNIX else MGL_OTHER


cdef object address_tuple(Address *address):
    """Return an IPv4 or IPv6 address as the tuple that the socket module would return."""
    cdef char text[INET6_ADDRSTRLEN]
    if address.any.sa_family == AF_INET:
        inet_ntop(AF_INET, <char *>address + 4, text, sizeof(text))
        return text.decode(), ntohs(address.v4.sin_port)
    inet_ntop(AF_INET6, <char *>address + 8, text, sizeof(text))
    return (text.decode(), ntohs(address.v6.sin6_port), ntohl(address.v6.sin6_flowinfo),
            address.v6.sin6_scope_id)


cdef class SocketWatcher(Watcher):
    """A socket that the loop polls: descriptor, registration, Python socket and addresses."""

    cdef int flush_pending(self) except -1:
        return 0

    cdef int take_socket(self, object sock, dict extra) except -1:
        """Own a Python socket, and keep its addresses for the time after the close."""
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
        return 0

    cdef object make_socket(self):
        """Return the Python socket. Make it if necessary; it then owns the descriptor."""
        if self.sock is None:
            if self.fd >= 0:
                # SOCK_NONBLOCK in the type informs the socket module that the descriptor is already
                # non-blocking.
                self.sock = socket.socket(
                    self.family, socket.SOCK_STREAM | SOCK_NONBLOCK, self.proto,
                    fileno=self.fd)
            else:
                self.sock = socket.socket(self.family, socket.SOCK_STREAM, self.proto)
                self.sock.close()
        return self.sock

    cdef int close_descriptor(self) except -1:
        cdef int fd = self.fd
        # Unregister explicitly, because a duplicate of the descriptor would keep the registration
        # alive after close().
        self.loop.unwatch(self)
        self.fd = -1
        self.watched = False
        if self.sock is not None:
            self.sock.close()
        else:
            close(fd)
        return 0

    # -------------------------------------------------------------- registration ----

    cdef uint32_t interest(self) noexcept:
        """Return the events to register for.

        A TCP socket reports EPOLLOUT only after a write has failed with EAGAIN, so that registering
        for it permanently costs nothing. A UNIX or datagram socket reports EPOLLOUT whenever the
        peer takes a message out, which would wake the loop once per message. These sockets are
        registered for EPOLLOUT only while the transport waits until it can write.
        """
        if self.epollout_on_demand and not self.awaits_writable:
            return INTEREST
        return INTEREST | EPOLLOUT

    cdef int await_writable(self, bint wanted) except -1:
        """Start waiting for EPOLLOUT (after EAGAIN), or stop waiting (when everything is sent)."""
        if wanted:
            self.loop.check_open()
        if not self.watched:
            self.awaits_writable = wanted
        elif wanted:
            # Call epoll_ctl() even if EPOLLOUT is registered already. An edge-triggered EPOLLOUT is
            # reported only after the send buffer was full. EAGAIN may have had another reason, and
            # epoll_ctl() makes the kernel check again whether the socket is writable now.
            self.awaits_writable = True
            try:
                self.loop.rearm(self, self.interest())
            except OSError:
                if self.epollout_on_demand:
                    raise
        elif self.epollout_on_demand and self.awaits_writable:
            self.awaits_writable = False
            try:
                self.loop.rearm(self, self.interest())
            except OSError:
                pass        # the only consequence is an unnecessary event
        return 0

    # -------------------------------------------------------------- information ----

    def get_extra_info(self, name, default=None):
        """Return 'socket', 'sockname', 'peername', or an item that the transport's creator added.

        Return *default* if the name is unknown.
        """
        if name == "socket":
            self.flush_pending()
            if self.public_socket is None:
                self.public_socket = PublicSocket(self, self.make_socket())
            return self.public_socket
        if name == "peername":
            if self.peername is None and self.peer.any.sa_family != 0:
                self.peername = address_tuple(&self.peer)
            return self.peername
        if name == "sockname":
            if self.sockname is None and self.fd >= 0:
                self.sockname = self.local_name()
            return self.sockname
        if self.extra is not None:
            return self.extra.get(name, default)
        return default

    cdef object local_name(self):
        """Return the socket's own address, without a Python socket for IPv4 and IPv6."""
        cdef Address name
        cdef socklen_t size = sizeof(name)
        if self.family in (AF_INET, AF_INET6) and getsockname(self.fd, &name.any, &size) == 0:
            return address_tuple(&name)
        return self.make_socket().getsockname()

    # -------------------------------------------------------------- use by other code ----

    cdef int flush_for_external_use(self, bint permanent) except -1:
        """Send the deferred writes before other code uses the socket without the transport.

        With `permanent` that code will not call again before each use, and the transport no longer
        defers writes.
        """
        if permanent:
            self.exposed = True
        return self.flush_pending()

    def _flush_pending(self, permanent):
        self.flush_for_external_use(permanent)

    @property
    def _sock(self):
        if self.fd < 0:
            return None
        self.flush_for_external_use(True)
        return self.make_socket()

    @property
    def _sock_fd(self):
        return self.fd
