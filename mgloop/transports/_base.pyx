# SPDX-License-Identifier: GPL-2.0-only
"""Implement SocketTransport, the base class of the stream and datagram transports.

    Watcher (_loop)              a descriptor that the loop polls
      +- SocketTransport         protocol, context, flow control, closing, extra information
           +- Stream (_stream)
           +- Datagram (_datagram)

The module is native because the subclasses run once per packet and share this state. Only the
loop's thread may use a transport.

Invariants: `fd` is open until connection_lost() has returned, and the descriptor is unregistered
before it is closed. Nothing is read or sent after `conn_lost` is set. The protocol is called in the
transport's own context.

The following fields determine the state of a transport (`-` = any value):

    state     fd    conn_lost  closing  paused  watched
    new       -1    1          yes      -       no       before adopt(); methods act as after "over"
    made      open  0          no       any     no       claimed; _start() calls connection_made()
    open      open  0          no       no      yes
    paused    open  0          no       yes     yes      `missed` collects the events
    draining  open  0          yes      -       yes      close() with a queue; nothing is read
    ending    open  > 0        yes      -       any      end() has scheduled connection_lost()
    over      -1    > 0        yes      -       no       after _call_connection_lost()

A transport never returns to an earlier state, except from paused to open. While a socket is lent
for sendfile(), the transport is open and not watched.

The poll table holds a reference to a transport that is claimed or watched. The transport owns its
descriptor, either directly or through a Python socket. The creator of the transport passes that
socket, or the transport makes it when the program asks for it.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.errno cimport EBADF

from mgloop._loop cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, LoopCore, MGL_OTHER, MGL_TCP, MGL_UNIX,
    Watcher, mgl_connections, mgl_count, os_error, own_thread,
)

import contextvars
import socket
import warnings
from asyncio.log import logger

from .. import _stdlib
from .public_socket import PublicSocket


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <sys/socket.h>
    #include <unistd.h>
    """
    ctypedef unsigned int socklen_t
    int close(int fd)
    int shutdown(int fd, int how)
    int getsockname(int fd, sockaddr *address, socklen_t *size)
    const char *inet_ntop(int family, const void *src, char *dst, socklen_t size)
    unsigned short ntohs(unsigned short n)
    unsigned int ntohl(unsigned int n)
    enum:
        AF_INET
        AF_INET6
        AF_UNIX
        SHUT_RDWR
        SOCK_NONBLOCK
        INET6_ADDRSTRLEN


cdef extern from "Python.h":
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    int try_exit "PyContext_Exit"(PyObject *context)
    PyObject *try_method "PyObject_VectorcallMethod"(
        PyObject *name, PyObject *const *args, size_t nargs, PyObject *kw)
    void PyErr_Clear()
    object PyObject_VectorcallMethod(object name, PyObject *const *args, size_t nargs, PyObject *kw)
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    Py_ssize_t PyNumber_AsSsize_t(object number, PyObject *overflow) except? -1
    Py_ssize_t PY_SSIZE_T_MAX


cdef extern from "attributes.h":
    void mgl_drop_empty_dict(object o)


cdef enum:
    DEFAULT_HIGH = 64 * 1024
    INTEREST = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET

cdef bint server_knows_clients = _stdlib.SERVER_KNOWS_CLIENTS


cdef int raise_pending() except -1:
    """Raise the exception that a C call has set, so that Cython handles it like any other."""
    return -1


cdef int kind_of(int family) noexcept:
    if family in (AF_INET, AF_INET6):
        return MGL_TCP
    return MGL_UNIX if family == AF_UNIX else MGL_OTHER


cdef object new_context(object given):
    """Return *given*, or a copy of the current context if it is None."""
    return contextvars.copy_context() if given is None else given


cdef int set_limits(WriteLimits *limits, object high, object low) except -1:
    """Set a transport's high-water and low-water marks, in bytes.

    A mark that is None becomes a multiple of the other one. Raise ValueError unless
    high >= low >= 0, and TypeError if a mark is not an integer.
    """
    # Convert each mark once before the comparison, because an int subclass may override the
    # comparison operators. A mark beyond Py_ssize_t becomes the largest Py_ssize_t.
    cdef Py_ssize_t low_size = 0, high_size
    if low is not None:
        low_size = PyNumber_AsSsize_t(low, NULL)
    if high is not None:
        high_size = PyNumber_AsSsize_t(high, NULL)
    elif low is None:
        high_size = DEFAULT_HIGH
    else:
        high_size = 4 * min(max(low_size, -1), PY_SSIZE_T_MAX // 4)
    if low is None:
        low_size = high_size // 4
    if not high_size >= low_size >= 0:
        raise ValueError(f"high ({high_size}) must be >= low ({low_size}) must be >= 0")
    limits.high = high_size
    limits.low = low_size
    return 0


cdef int control_flow(str method, object loop, object transport, object protocol,
                      object context) except -1:
    """Call the protocol's pause_writing() or resume_writing() and report its exceptions.

    The transport's context, if it has one, may already be entered, when data_received() calls
    write().
    """
    cdef bint entered = False
    if context is not None:
        entered = try_enter(<PyObject *>context) == 0
        if not entered:
            PyErr_Clear()
    try:
        getattr(protocol, method)()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as exc:
        loop.call_exception_handler({
            "message": f"protocol.{method}() failed",
            "exception": exc,
            "transport": transport,
            "protocol": protocol,
        })
    finally:
        if entered:
            PyContext_Exit(<PyObject *>context)
    return 0


cdef object address_tuple(Address *address):
    """Return an IPv4 or IPv6 address as the tuple that the socket module would return."""
    cdef char text[INET6_ADDRSTRLEN]
    if address.any.sa_family == AF_INET:
        inet_ntop(AF_INET, <char *>address + 4, text, sizeof(text))
        return text.decode(), ntohs(address.v4.sin_port)
    inet_ntop(AF_INET6, <char *>address + 8, text, sizeof(text))
    return (text.decode(), ntohs(address.v6.sin6_port), ntohl(address.v6.sin6_flowinfo),
            address.v6.sin6_scope_id)


cdef class SocketTransport(Watcher):
    """The common part of the socket transports.

    It corresponds to asyncio.selector_events._SelectorTransport.
    """

    cdef Py_ssize_t pending(self) noexcept:
        return 0

    cdef int flush_pending(self) except -1:
        return 0

    cdef void drop_queue(self) noexcept:
        pass

    cdef int connection_ended(self) except -1:
        return 0

    cdef int leave_tls(self) except -1:
        return 0

    def __cinit__(self):
        mgl_drop_empty_dict(self)
        # A transport without a descriptor behaves like one that is over.
        self.closing = True
        self.conn_lost = 1

    cdef int adopt(self, LoopCore loop, int fd, object protocol, object context) except -1:
        """Take over the descriptor. If this raises, the caller still owns the descriptor."""
        self.context = context
        self.loop = loop
        self.limits.high = DEFAULT_HIGH
        self.limits.low = DEFAULT_HIGH // 4
        self.use_protocol(protocol)
        loop.claim(self, fd)
        self.closing = False
        self.conn_lost = 0
        return 0

    cdef int adopt_socket(self, LoopCore loop, object sock, object protocol, object waiter,
                          dict extra, object server, object context) except -1:
        """Take over a Python socket and schedule _start(), which also completes `waiter`.

        If this raises, the caller still owns the socket.
        """
        cdef object connection_made = protocol.connection_made
        self.adopt(loop, sock.fileno(), protocol, new_context(context))
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
        try:
            self.attach(server)
        except BaseException:
            self.abandon()
            raise
        loop.schedule_with(self._start, (connection_made, waiter), self.context)
        return 0

    def __del__(self):
        self.leave_tls()
        if self.fd < 0:
            return
        try:
            warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
        finally:
            # Close the descriptor even if the warning raises, because filters can turn warnings
            # into errors.
            try:
                self.close_descriptor()
            finally:
                if self.server is not None:
                    self._detach()

    def _start(self, what):
        connection_made, waiter = what
        try:
            self.start(connection_made)
        finally:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    cdef int attach(self, object server) except -1:
        if server is not None:
            if server_knows_clients:
                server._attach(self)
            else:
                server._attach()
            self.server = server
        return 0

    cdef int abandon(self) except -1:
        """Undo adopt(): the caller owns the descriptor again."""
        self.loop.unwatch(self)
        self.fd = -1
        self.sock = None
        self.closing = True
        self.conn_lost = 1
        return 0

    cdef int start(self, object connection_made) except -1:
        """Call connection_made() and then begin to read; the transport's context is entered."""
        self.counted = True
        mgl_count(&self.counters().opened, 1)
        try:
            connection_made(self)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            callback = _stdlib.format_callback(connection_made, (self,), self.loop._debug)
            self.report(f"Exception in callback {callback}", exc)
        finally:
            if not self.conn_lost and self.fd >= 0:
                self.watch_self()
        return 0

    cdef int failed(self, object exc) except -1:
        """Report an unexpected exception and end the connection, because its state is unknown."""
        try:
            self.report(f"Exception in callback {self!r}", exc)
        finally:
            self.force_close(exc)
        return 0

    cdef int interrupted(self, uint32_t events) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        if self.paused:
            self.missed |= events
            return 0
        return self.loop.mark_ready(self, events)

    cdef int give_way(self, Watcher other) except -1:
        """Give up the descriptor if the transport is closing, or raise RuntimeError.

        As in asyncio, `other` may then share the descriptor. The transport still sends its queue,
        and connection_lost() is called as usual.
        """
        if self.closing:
            if not self.conn_lost:
                other.under = self
        elif self.sock is not None and self.sock.fileno() != self.fd:
            # The program has closed the socket, and its number now belongs to another file.
            self.force_close(os_error(EBADF))
        else:
            raise RuntimeError(f"File descriptor {self.fd} is used by transport {self!r}")
        return 0

    cdef uint32_t interest(self) noexcept:
        """Return the events to register for.

        A TCP socket reports EPOLLOUT only after a write has failed with EAGAIN, so that registering
        for it permanently costs nothing. A UNIX or datagram socket reports EPOLLOUT whenever the
        peer takes a message out, which would wake the loop once per message. These sockets are
        registered for EPOLLOUT only while the transport waits until it can write.
        """
        if self.room_on_demand and not self.awaits_room:
            return INTEREST
        return INTEREST | EPOLLOUT

    cdef int watch_self(self) except -1:
        try:
            self.loop.watch(self, self.fd, self.interest())
            self.watched = True
        except OSError as exc:
            self.fatal_error(exc, "Fatal error on transport")
        return 0

    cdef int await_room(self, bint wanted) except -1:
        """Start waiting for EPOLLOUT (after EAGAIN), or stop waiting (when everything is sent)."""
        if wanted:
            self.loop.check_open()
        if not self.watched:
            self.awaits_room = wanted
        elif wanted:
            # Call epoll_ctl() even if EPOLLOUT is registered already. An edge-triggered EPOLLOUT is
            # reported only after the send buffer was full. EAGAIN may have had another reason, and
            # epoll_ctl() makes the kernel check again whether the socket is writable now.
            self.awaits_room = True
            try:
                self.loop.rearm(self, self.interest())
            except OSError:
                if self.room_on_demand:
                    raise
        elif self.room_on_demand and self.awaits_room:
            self.awaits_room = False
            try:
                self.loop.rearm(self, self.interest())
            except OSError:
                pass        # the only consequence is an unnecessary event
        return 0

    cdef int use_protocol(self, object protocol) except -1:
        self.protocol = protocol
        self.connected = True
        return 0

    cdef object call(self, object method, PyObject *arg):
        """Return protocol.method(arg), called in the transport's context."""
        cdef PyObject *args[3]
        cdef object protocol = self.protocol
        cdef size_t n = 1 if arg is NULL else 2
        args[0] = NULL
        args[1] = <PyObject *>protocol
        args[2] = arg
        cdef object context = self.context
        PyContext_Enter(<PyObject *>context)
        try:
            return PyObject_VectorcallMethod(
                method, &args[1], n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
        finally:
            PyContext_Exit(<PyObject *>context)

    cdef bint notify(self, object method, PyObject *arg, str failure) except -1:
        """Call protocol.method(arg) in the transport's context and ignore the result.

        Return whether the call succeeded. If it raised, the connection ends with the message
        `failure`.
        """
        cdef PyObject *args[3]
        cdef PyObject *result = NULL
        cdef object protocol = self.protocol
        cdef object context = self.context
        args[0] = NULL
        args[1] = <PyObject *>protocol
        args[2] = arg
        if try_enter(<PyObject *>context) == 0:
            result = try_method(<PyObject *>method, &args[1], 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                NULL)
            if try_exit(<PyObject *>context) != 0:
                Py_XDECREF(result)
                result = NULL
        if result is NULL:
            self.notify_failed(failure)
            return False
        Py_DECREF(<object>result)
        return True

    cdef int notify_failed(self, str failure) except -1:
        """End the connection because of the exception that a C call has set."""
        try:
            raise_pending()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, failure)
        return 0

    # -------------------------------------------------------------- flow control ----

    def pause_reading(self):
        """Stop delivering data until resume_reading()."""
        own_thread(self.loop)
        if self.closing or self.paused:
            return
        self.paused = True
        if self.loop._debug:
            logger.debug("%r pauses reading", self)

    def resume_reading(self):
        """Deliver data again after pause_reading().

        The loop delivers the data that has arrived in between, after this call returns. Raise
        RuntimeError if the loop is closed.
        """
        own_thread(self.loop)
        if self.closing or not self.paused:
            return
        self.paused = False
        self.loop.check_open()
        if self.missed:
            self.loop.mark_ready(self, self.missed)
            self.missed = 0
        if self.loop._debug:
            logger.debug("%r resumes reading", self)

    def is_reading(self):
        """Return whether received data is delivered, that is neither paused nor closing."""
        return not self.closing and not self.paused

    cdef int pause_protocol(self) except -1:
        if has_exceeded(&self.limits, self.pending()):
            mgl_count(&self.loop.count.pauses, 1)
            control_flow("pause_writing", self.loop, self, self.protocol, self.context)
        return 0

    cdef int resume_protocol(self) except -1:
        if has_drained(&self.limits, self.pending()):
            control_flow("resume_writing", self.loop, self, self.protocol, self.context)
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the high-water and low-water marks of the write buffer, in bytes.

        pause_writing() is called above *high*, and resume_writing() at or below *low*. Raise
        ValueError unless high >= low >= 0.
        """
        own_thread(self.loop)
        set_limits(&self.limits, high, low)
        self.flush_pending()
        self.pause_protocol()

    def get_write_buffer_limits(self):
        """Return (low, high), the marks of the write buffer in bytes."""
        return self.limits.low, self.limits.high

    def get_write_buffer_size(self):
        """Return the number of bytes that the kernel has not accepted yet."""
        self.flush_pending()
        return self.pending()

    cdef warn_conn_lost(self):
        if self.conn_lost >= <unsigned int>_stdlib.LOG_THRESHOLD:
            logger.warning("socket.send() raised exception.")
        self.conn_lost += 1

    # -------------------------------------------------------------- closing ----

    def close(self):
        """Send the write buffer, then close. The loop calls connection_lost(None) later."""
        own_thread(self.loop)
        if self.closing:
            return
        self.closing = True
        self.flush_pending()
        if self.pending() == 0:
            self.end(None)

    def abort(self):
        """Discard the write buffer and close."""
        own_thread(self.loop)
        self.flush_pending()
        self.force_close(None)

    def _force_close(self, exc):
        self.force_close(exc)

    cdef int force_close(self, object exc) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        self.drop_queue()
        self.closing = True
        return self.end(exc)

    cdef int end(self, object exc) except -1:
        """Schedule connection_lost() unless it was scheduled before."""
        if not self.conn_lost:
            self.conn_lost = 1
            try:
                self.loop.schedule_with(self._call_connection_lost, exc, self.context)
            except MemoryError:
                # A later abort() can try again. Shut the socket down so that the peer does not wait
                # for that.
                self.conn_lost = 0
                shutdown(self.fd, SHUT_RDWR)
                raise
        return 0

    cdef int fatal_error(self, object exc, str message) except -1:
        try:
            if not isinstance(exc, OSError):
                self.report(message, exc)
            elif self.loop._debug:
                logger.debug("%r: %s", self, message, exc_info=exc)
        finally:
            # Close even if the report raises, as it does without memory, because otherwise the peer
            # would wait.
            self.force_close(exc)
        return 0

    def _fatal_error(self, exc, message="Fatal error on transport"):
        self.fatal_error(exc, message)

    cdef report(self, str message, exc):
        self.loop.call_exception_handler({
            "message": message,
            "exception": exc,
            "transport": self,
            "protocol": self.protocol,
        })

    def _call_connection_lost(self, exc):
        if self.fd < 0:
            return
        try:
            if self.connected:
                self.protocol.connection_lost(exc)
        finally:
            try:
                if self.sockname is None and self.public_socket is None and self.family != AF_UNIX:
                    # Keep the address for get_extra_info() after the close, as asyncio does.
                    self.sockname = self.local_name()
            except OSError:
                pass
            finally:
                self.let_go()

    cdef mgl_connections *counters(self) noexcept:
        """Return the counters of this kind of connection."""
        return &self.loop.count.connections[kind_of(self.family)]

    cdef int let_go(self) except -1:
        """Release the descriptor, the protocol, the context and the server."""
        if self.counted:
            self.counted = False
            mgl_count(&self.counters().closed, 1)
        try:
            self.close_descriptor()
        finally:
            self.protocol = None
            self.context = None
            try:
                if self.server is not None:
                    self._detach()
            finally:
                self.connection_ended()
        return 0

    def _detach(self):
        server = self.server
        self.server = None
        if server_knows_clients:
            server._detach(self)
        else:
            server._detach()

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

    @cython.always_allow_keywords(False)    # see _loop.pyx
    def is_closing(self):
        """Return whether close() or abort() was called or the connection was lost."""
        return self.closing

    # -------------------------------------------------------------- the rest ----

    def set_protocol(self, protocol):
        """Set the protocol that receives data from now on. Its connection_made() is not called."""
        own_thread(self.loop)
        self.use_protocol(protocol)

    def get_protocol(self):
        return self.protocol

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

    cdef int flush_for_outsider(self, bint for_good) except -1:
        """Send the deferred writes before other code uses the socket without the transport.

        With `for_good` that code will not call again before each use, and the transport no longer
        defers writes.
        """
        if for_good:
            self.exposed = True
        return self.flush_pending()

    def _flush_pending(self, for_good):
        self.flush_for_outsider(for_good)

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

    cdef bint owns_descriptor(self) noexcept:
        return not self.closing

    @property
    def _loop(self):
        return self.loop if self.fd >= 0 else None

    @property
    def _protocol(self):
        return self.protocol

    @property
    def _protocol_paused(self):
        return self.limits.paused

    @property
    def _paused(self):
        return self.paused

    @property
    def _closing(self):
        return self.closing

    @property
    def _conn_lost(self):
        return self.conn_lost

    @property
    def _sock(self):
        if self.fd < 0:
            return None
        self.flush_for_outsider(True)
        return self.make_socket()

    @property
    def _sock_fd(self):
        return self.fd

    def __repr__(self):
        info = [f"mgloop.{type(self).__name__}"]
        if self.fd < 0:
            info.append("closed")
        elif self.closing:
            info.append("closing")
        info.append(f"fd={self.fd}")
        if self.fd >= 0:
            reading = self.watched and not self.paused and not self.closing
            info.append(f"read={'polling' if reading else 'idle'}")
            info.append(f"write=<{'polling' if self.pending() else 'idle'}, "
                        f"bufsize={self.pending()}>")
        return f"<{' '.join(info)}>"
