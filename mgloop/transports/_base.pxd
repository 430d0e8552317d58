# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.transports._base: what the socket transports have in common."""

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
    # Among the events of a watcher; no kernel reports it. A read has met EAGAIN although the kernel
    # had called the descriptor readable, which it will not say again: look once more, no oftener.
    SECOND_LOOK = EPOLLMSG


# How much may wait to be sent before the protocol is asked to pause, and until it may go on.
cdef struct WriteLimits:
    Py_ssize_t high
    Py_ssize_t low
    bint paused                 # pause_writing() was called, resume_writing() not yet

# True if the protocol is to be told now, which is noted.
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
    cdef dict __dict__          # programs and tests put methods of their own over ours
    cdef object context         # contextvars.Context; None once connection_lost() was called
    cdef object protocol
    cdef object server          # to be told when the transport is gone, or None
    cdef object sock            # owner of fd once it exists; accepted ones get it when asked for
    cdef object public_socket   # the TransportSocket given out
    cdef object sockname        # None = not asked for yet
    cdef object peername
    cdef dict extra             # what the creator knows, or None
    cdef WriteLimits limits
    cdef uint32_t missed        # events that came while reading was paused
    cdef unsigned int conn_lost  # > 0: connection_lost() is scheduled or done
    cdef Address peer           # of an accepted connection, until peername is asked for
    cdef int family
    cdef int proto              # of an accepted connection
    cdef bint paused
    cdef bint closing
    cdef bint connected         # the protocol is to hear of connection_lost()
    cdef bint watched
    cdef bint exposed           # somebody has the bare descriptor: nothing is deferred any more
    cdef bint room_on_demand    # not TCP: EPOLLOUT is asked for while something waits, not always
    cdef bint awaits_room       # ... and is now
    cdef bint counted           # among the open connections

    # For the kinds of transport to fill in.
    cdef Py_ssize_t pending(self) noexcept          # bytes not taken by the kernel
    cdef int settle(self) except -1                 # send what was deferred
    cdef void drop_queue(self) noexcept
    cdef int connection_ended(self) except -1       # after connection_lost()
    cdef int leave_tls(self) except -1              # where the TLS protocol knows its address
    cdef mgl_connections *counters(self) noexcept   # of its kind of connection

    cdef int adopt(self, LoopCore loop, int fd, object protocol, object context) except -1
    cdef int adopt_socket(self, LoopCore loop, object sock, object protocol, object waiter,
                          dict extra, object server, object context) except -1
    cdef int use_protocol(self, object protocol) except -1
    cdef int attach(self, object server) except -1
    cdef int abandon(self) except -1
    cdef int start(self, object connection_made) except -1
    cdef int settle_for_outsider(self, bint for_good) except -1
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
# Of a stream socket, among mgl_counters.connections.
cdef int kind_of(int family) noexcept
cdef object address_tuple(Address *address)
