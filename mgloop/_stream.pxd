# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._stream: the stream transport and the listener."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._loop cimport LoopCore, Watcher


cdef extern from "writequeue.h":
    ctypedef struct mgl_queue:
        uint32_t len
        size_t offset
        size_t size


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


cdef union Address:
    sockaddr any
    sockaddr_in v4
    sockaddr_in6 v6


cdef class Stream(Watcher):
    cdef dict __dict__          # programs and tests put methods of their own over ours
    cdef PyObject *context
    cdef object protocol
    cdef object server          # to be told when the transport is gone, or None
    cdef object sock            # owner of fd once it exists; accepted ones get it when asked for
    cdef object public_socket   # the TransportSocket given out
    cdef object sockname        # None = not asked for yet
    cdef object peername
    cdef dict extra             # what the creator knows, or None
    cdef object empty_waiter
    cdef mgl_queue queue
    cdef Py_ssize_t high
    cdef Py_ssize_t low
    cdef uint32_t hint          # how much the next read may bring
    cdef uint32_t missed        # events that came while reading was paused
    cdef unsigned int conn_lost # > 0: connection_lost() is scheduled or done
    cdef Address peer           # of an accepted connection, until peername is asked for
    cdef int family
    cdef bint buffered          # the protocol is a BufferedProtocol
    cdef bint paused
    cdef bint closing
    cdef bint eof               # write_eof() was called
    cdef bint read_eof          # the peer has shut down its side
    cdef bint blocked           # the kernel's buffer is full: wait for EPOLLOUT
    cdef bint protocol_paused   # pause_writing() was called
    cdef bint connected         # the protocol is to hear of connection_lost()
    cdef bint watched

    cdef int adopt(self, LoopCore loop, int fd, object protocol, PyObject *context) except -1
    cdef int use_protocol(self, object protocol) except -1
    cdef int start(self) except -1
    cdef int read(self, uint32_t events) except -1
    cdef object receive(self, Py_ssize_t *asked)
    cdef Py_ssize_t receive_into(self, Py_ssize_t *asked) except -2
    cdef int on_read_error(self, int error) except -1
    cdef int on_eof(self) except -1
    cdef object call(self, object method, PyObject *arg)
    cdef int send_queue(self) except -1
    cdef _write(self, object data, const char *start, Py_ssize_t n)
    cdef warn_conn_lost(self)
    cdef report(self, str message, exc)
    cdef int write_bytes(self, object data, const char *start, Py_ssize_t n) except -1
    cdef int write_failed(self, int error) except -1
    cdef int after_send(self) except -1
    cdef int settle(self) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
    cdef int control_flow(self, str method) except -1
    cdef int fatal_error(self, object exc, str message) except -1
    cdef int force_close(self, object exc) except -1
    cdef int shutdown_write(self) except -1
    cdef object make_socket(self)
    cdef int close_descriptor(self) except -1


cdef class Listener(Watcher):
    cdef PyObject *context
    cdef object protocol_factory
    cdef object sock
    cdef object sslcontext
    cdef object server
    cdef int backlog
    cdef object handshake_timeout
    cdef object shutdown_timeout
    cdef object sockname        # of every accepted connection, or None: the listener is a wildcard
    cdef object retry           # timer of the pause after EMFILE
    cdef int family
    cdef bint stopped

    cdef int accept(self, int fd, Address *peer) except -1
    cdef int accept_cold(self, int fd) except -1
    cdef int out_of_resources(self, int error) except -1
    cdef report(self, str message, exc)
