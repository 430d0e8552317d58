# SPDX-License-Identifier: GPL-2.0-only
"""Declare SocketTransport, the base class of the socket transports; _base.pyx describes it."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport EPOLLMSG, LoopCore, mgl_connections
from mgloop.transports._common cimport WriteLimits
from mgloop.transports._socket cimport SocketWatcher


cdef enum:
    # A flag among a watcher's events that the kernel never reports. It marks the second attempt of
    # a read that got EAGAIN although the kernel had reported the descriptor readable. An
    # edge-triggered registration does not report that again, so that the read is repeated once.
    SECOND_READ = EPOLLMSG


cdef class SocketTransport(SocketWatcher):
    cdef dict __dict__          # lets programs and tests replace methods on an instance
    cdef object context         # contextvars.Context; None after connection_lost()
    cdef object protocol
    cdef object server          # the server to detach from after connection_lost(), or None
    cdef WriteLimits limits
    cdef uint32_t missed        # events that the kernel reported while reading was paused
    cdef unsigned int conn_lost  # > 0: connection_lost() is scheduled or done
    cdef bint paused            # pause_reading() was called
    cdef bint closing
    cdef bint connected         # connection_lost() must be called on the protocol
    cdef bint counted           # is included in the number of open connections

    # Methods that the subclasses override.
    cdef Py_ssize_t pending(self) noexcept          # return the bytes that the kernel has not taken
    cdef void drop_queue(self) noexcept             # discard the write buffer
    cdef int connection_ended(self) except -1       # clean up after connection_lost()
    cdef int disconnect_tls(self) except -1              # clear the TLS protocol's pointer to self
    cdef mgl_connections *counters(self) noexcept   # return the counters of the connection's kind

    cdef int adopt(self, LoopCore loop, int fd, object protocol, object context) except -1
    cdef int adopt_socket(self, LoopCore loop, object sock, object protocol, object waiter,
                          dict extra, object server, object context) except -1
    cdef int use_protocol(self, object protocol) except -1
    cdef int attach(self, object server) except -1
    cdef int abandon(self) except -1
    cdef int start(self, object connection_made) except -1
    cdef int watch_self(self) except -1
    cdef object call(self, object method, PyObject *arg)
    cdef bint notify(self, object method, PyObject *arg, str failure) except -1
    cdef int notify_failed(self, str failure) except -1
    cdef int warn_conn_lost(self) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
    cdef int report(self, str message, object exc) except -1
    cdef int fatal_error(self, object exc, str message) except -1
    cdef int force_close(self, object exc) except -1
    cdef int end(self, object exc) except -1
    cdef int release(self) except -1


cdef object new_context(object given)
