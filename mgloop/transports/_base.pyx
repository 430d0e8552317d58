# SPDX-License-Identifier: GPL-2.0-only
"""Implement SocketTransport, the base class of the stream and datagram transports.

    Watcher (_loop)                        a descriptor that the loop polls
      +- SocketWatcher (_socket)           registration, Python socket, addresses
           +- SocketTransport              protocol, context, flow control, closing
                +- ReceivingStream (_receiving)
                |    +- Stream (_stream)
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

_socket describes the ownership of the descriptor and the lifetime of a transport.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.errno cimport EBADF
from libc.stdint cimport uint32_t

from mgloop._loop cimport LoopCore, Watcher, mgl_connections, mgl_count, os_error, own_thread
from mgloop.transports._common cimport (
    count_lost_write, pause_above_limit, report_exception, report_fatal, resume_below_limit,
    set_limits,
)
from mgloop.transports._socket cimport SocketWatcher, kind_of

import contextvars
import warnings
from asyncio.log import logger

from .. import _stdlib


cdef extern from *:
    """
    #include <sys/socket.h>
    """
    int shutdown(int fd, int how)
    enum:
        AF_UNIX
        SHUT_RDWR


cdef extern from "Python.h":
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    int try_exit "PyContext_Exit"(PyObject *context)
    PyObject *try_method "PyObject_VectorcallMethod"(
        PyObject *name, PyObject *const *args, size_t nargs, PyObject *kw)
    object PyObject_VectorcallMethod(object name, PyObject *const *args, size_t nargs, PyObject *kw)
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET


cdef extern from "attributes.h":
    void mgl_drop_empty_dict(object o)


cdef bint server_knows_clients = _stdlib.SERVER_KNOWS_CLIENTS


cdef int raise_pending() except -1:
    """Raise the exception that a C call has set, so that Cython handles it like any other."""
    return -1


cdef object new_context(object given):
    """Return *given*, or a copy of the current context if it is None."""
    return contextvars.copy_context() if given is None else given


cdef class SocketTransport(SocketWatcher):
    """The common part of the socket transports.

    It corresponds to asyncio.selector_events._SelectorTransport.
    """

    cdef Py_ssize_t pending(self) noexcept:
        return 0

    cdef void drop_queue(self) noexcept:
        pass

    cdef int connection_ended(self) except -1:
        return 0

    cdef int disconnect_tls(self) except -1:
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
        set_limits(&self.limits, None, None)
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
        self.take_socket(sock, extra)
        try:
            self.attach(server)
        except BaseException:
            self.abandon()
            raise
        loop.schedule_with(self._start, (connection_made, waiter), self.context)
        return 0

    def __del__(self):
        self.disconnect_tls()
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

    cdef int relinquish(self, Watcher other) except -1:
        """Give up the descriptor if the transport is closing, or raise RuntimeError.

        As in asyncio, `other` may then share the descriptor. The transport still sends its queue,
        and connection_lost() is called as usual.
        """
        if self.closing:
            if not self.conn_lost:
                other.displaced = self
        elif self.sock is not None and self.sock.fileno() != self.fd:
            # The program has closed the socket, and its number now belongs to another file.
            self.force_close(os_error(EBADF))
        else:
            raise RuntimeError(f"File descriptor {self.fd} is used by transport {self!r}")
        return 0

    cdef int watch_self(self) except -1:
        try:
            self.loop.watch(self, self.fd, self.interest())
            self.watched = True
        except OSError as exc:
            self.fatal_error(exc, "Fatal error on transport")
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
        return pause_above_limit(&self.limits, self.pending(), self.loop, self, self.protocol,
                                 self.context)

    cdef int resume_protocol(self) except -1:
        return resume_below_limit(&self.limits, self.pending(), self.loop, self, self.protocol,
                                  self.context)

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

    cdef int warn_conn_lost(self) except -1:
        return count_lost_write(&self.conn_lost, "socket.send() raised exception.")

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
            report_fatal(self.loop, self, self.protocol, message, exc, isinstance(exc, OSError))
        finally:
            # Close even if the report raises, as it does without memory, because otherwise the peer
            # would wait.
            self.force_close(exc)
        return 0

    def _fatal_error(self, exc, message="Fatal error on transport"):
        self.fatal_error(exc, message)

    cdef int report(self, str message, object exc) except -1:
        return report_exception(self.loop, self, self.protocol, message, exc)

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
                self.release()

    cdef mgl_connections *counters(self) noexcept:
        """Return the counters of this kind of connection."""
        return &self.loop.count.connections[kind_of(self.family)]

    cdef int release(self) except -1:
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
