# SPDX-License-Identifier: GPL-2.0-only
"""Declare SocketTransport, the base class of the socket transports; _base.pyx describes it."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport EPOLLMSG, LoopCore, Watcher, mgl_connections


cdef extern from "<netinet/in.h>":
    cdef struct sockaddr:
        unsigned short sa_family
    cdef struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
    cdef struct sockaddr_in6:
        unsigned short sin6_family
        unsigned short sin6_port
        unsigned int sin6_flowinfo
        unsigned int sin6_scope_id


cdef enum:
    # A flag among a watcher's events that the kernel never reports. It marks the second attempt of
    # a read that got EAGAIN although the kernel had reported the descriptor readable. An
    # edge-triggered registration does not report that again, so that the read is repeated once.
    SECOND_LOOK = EPOLLMSG


# The high-water and low-water marks of a write buffer, in bytes.
cdef struct WriteLimits:
    Py_ssize_t high
    Py_ssize_t low
    bint paused                 # pause_writing() was called, and resume_writing() not yet

# Return whether pause_writing() (here) or resume_writing() (in has_drained()) must be called now.
# If so, record the call in `paused`.
cdef inline bint has_exceeded(WriteLimits *limits, Py_ssize_t pending) noexcept:
    if limits.paused or pending <= limits.high:
        return False
    limits.paused = True
    return True

cdef inline bint has_drained(WriteLimits *limits, Py_ssize_t pending) noexcept:
    if not limits.paused or pending > limits.low:
        return False
    limits.paused = False
    return True

cdef int set_limits(WriteLimits *limits, object high, object low) except -1
cdef int control_flow(str method, object loop, object transport, object protocol,
                      object context) except -1


cdef union Address:
    sockaddr any
    sockaddr_in v4
    sockaddr_in6 v6


cdef class SocketTransport(Watcher):
    cdef dict __dict__          # lets programs and tests replace methods on an instance
    cdef object context         # contextvars.Context; None after connection_lost()
    cdef object protocol
    cdef object server          # the server to detach from after connection_lost(), or None
    cdef object sock            # the Python socket that owns fd, or None until it is needed
    cdef object public_socket   # the TransportSocket that get_extra_info() returned, or None
    cdef object sockname        # local address, or None until it is needed
    cdef object peername        # peer's address, or None until it is needed
    cdef dict extra             # information from the transport's creator, or None
    cdef WriteLimits limits
    cdef uint32_t missed        # events that the kernel reported while reading was paused
    cdef unsigned int conn_lost  # > 0: connection_lost() is scheduled or done
    cdef Address peer           # peer's address of an accepted connection, until peername is made
    cdef int family
    cdef int proto              # protocol number of an accepted socket
    cdef bint paused            # pause_reading() was called
    cdef bint closing
    cdef bint connected         # connection_lost() must be called on the protocol
    cdef bint watched           # registered with epoll
    cdef bint exposed           # other code has the descriptor, so that nothing is deferred
    cdef bint room_on_demand    # register for EPOLLOUT only while data waits, because it is not TCP
    cdef bint awaits_room       # the transport waits for EPOLLOUT
    cdef bint counted           # is included in the number of open connections

    # Methods that the subclasses override.
    cdef Py_ssize_t pending(self) noexcept          # return the bytes that the kernel has not taken
    cdef int flush_pending(self) except -1                 # send the deferred writes
    cdef void drop_queue(self) noexcept             # discard the write buffer
    cdef int connection_ended(self) except -1       # clean up after connection_lost()
    cdef int leave_tls(self) except -1              # clear the TLS protocol's pointer to self
    cdef mgl_connections *counters(self) noexcept   # return the counters of the connection's kind

    cdef int adopt(self, LoopCore loop, int fd, object protocol, object context) except -1
    cdef int adopt_socket(self, LoopCore loop, object sock, object protocol, object waiter,
                          dict extra, object server, object context) except -1
    cdef int use_protocol(self, object protocol) except -1
    cdef int attach(self, object server) except -1
    cdef int abandon(self) except -1
    cdef int start(self, object connection_made) except -1
    cdef int flush_for_outsider(self, bint for_good) except -1
    cdef uint32_t interest(self) noexcept
    cdef int watch_self(self) except -1
    cdef int await_room(self, bint wanted) except -1
    cdef object call(self, object method, PyObject *arg)
    cdef bint notify(self, object method, PyObject *arg, str failure) except -1
    cdef int notify_failed(self, str failure) except -1
    cdef warn_conn_lost(self)
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
    cdef report(self, str message, exc)
    cdef int fatal_error(self, object exc, str message) except -1
    cdef int force_close(self, object exc) except -1
    cdef int end(self, object exc) except -1
    cdef int let_go(self) except -1
    cdef object local_name(self)
    cdef object make_socket(self)
    cdef int close_descriptor(self) except -1


cdef object new_context(object given)
# Return the index of a stream socket's address family in mgl_counters.connections.
cdef int kind_of(int family) noexcept
cdef object address_tuple(Address *address)
