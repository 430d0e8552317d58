# SPDX-License-Identifier: GPL-2.0-only
"""Implement the datagram transport, for UDP and UNIX datagram sockets.

The module is native because its code runs once per packet. The semantics are those of
asyncio.selector_events. Only the loop's thread may use a transport. Its lifetime is described in
_socket. All transports of a loop share the receive buffers, RecvmmsgBuffers, and a cache of
addresses, AddressCache. The loop and the transports hold references to them.

One recvmmsg() receives a batch of datagrams. If it returns fewer than it could, the socket is
empty, and the edge-triggered registration needs no second call that would only return EAGAIN. The
whole batch is turned into Python objects before the first datagram is delivered, because delivery
runs Python code, in which another transport of the loop may use the same buffers. If the protocol
pauses reading, the transport keeps the rest of the batch.

Because of the cache, a reply to the sender of a datagram needs no parsing of the address. A
datagram is sent immediately. If the kernel does not accept it, it is queued and counts towards the
write limits.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from mgloop._loop cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, LoopCore, MGL_DATAGRAM, mgl_connections, mgl_count,
    mgl_count_read, mgl_count_write, os_error, own_thread,
)
from mgloop.transports._base cimport SECOND_READ, SocketTransport
from mgloop.transports._socket cimport Address, address_tuple, sockaddr

from asyncio import transports
from collections import deque

from .. import _stdlib


cdef extern from *:
    """
    #include <netinet/in.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    """
    ctypedef unsigned int socklen_t
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    int recvmmsg(int fd, mmsghdr *messages, unsigned int n, int flags, void *timeout)
    ssize_t send(int fd, const void *buf, size_t n, int flags)
    ssize_t sendto(int fd, const void *buf, size_t n, int flags, const sockaddr *to, socklen_t size)
    enum:
        AF_INET
        AF_INET6
        MSG_NOSIGNAL
        MSG_DONTWAIT


cdef extern from "Python.h":
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    void PyErr_Clear()


cdef enum:
    BATCH = 16                  # datagrams per recvmmsg()
    DATAGRAM = 64 * 1024        # bytes; UDP datagrams are never longer
    LONGEST = 256 * 1024        # bytes: asyncio's max_size; longer datagrams are truncated
    HEADER = 8                  # bytes that are counted per queued datagram, as in asyncio
    # Number of addresses in the cache, a power of two. With 256 a third of 100 peers would share
    # their entry with another one.
    CACHE = 1024

cdef object AsyncioDatagramTransport = _stdlib.DatagramTransport


cdef struct Buffers:
    char data[BATCH][DATAGRAM]
    Address names[BATCH]
    iovec vectors[BATCH]
    mmsghdr messages[BATCH]


cdef struct CachedAddress:
    Address name
    socklen_t size
    PyObject *tuple             # owned reference, or NULL


cdef struct AddressTables:
    # The cache is direct-mapped: a hash of the sockaddr is the only possible index of its entry.
    CachedAddress entries[CACHE]
    # Maps a hash of the tuple's address in memory to the index of its entry.
    int by_tuple[CACHE]


# ------------------------------------------------------------------ memory of a loop ----

@cython.final
@cython.no_gc
cdef class RecvmmsgBuffers:
    """The receive buffers of recvmmsg(), which all datagram transports of a loop share.

    They are in use only until the received data is copied. The kernel allocates the memory pages
    when they are first written, so that buffers without datagrams cost no memory.
    """

    def __cinit__(self):
        self.memory = PyMem_RawCalloc(1, sizeof(Buffers))
        if self.memory is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    cdef int receive(self, int fd) noexcept:
        """Receive up to BATCH datagrams. Return their number, or -1 with errno."""
        cdef Buffers *buffers = <Buffers *>self.memory
        cdef msghdr *header
        cdef int i
        for i in range(BATCH):
            buffers.vectors[i].iov_base = &buffers.data[i][0]
            buffers.vectors[i].iov_len = DATAGRAM
            memset(&buffers.messages[i], 0, sizeof(mmsghdr))
            header = &buffers.messages[i].msg_hdr
            header.msg_name = &buffers.names[i]
            header.msg_namelen = sizeof(Address)
            header.msg_iov = &buffers.vectors[i]
            header.msg_iovlen = 1
        return recvmmsg(fd, buffers.messages, BATCH, MSG_DONTWAIT, NULL)


@cython.final
@cython.no_gc
cdef class AddressCache:
    """A cache that maps a sockaddr to its address tuple, and that tuple object to the sockaddr.

    All datagram transports of a loop share it. It pays because inet_ntop() and the sendto() method
    of a Python socket are slow. Per datagram of its only peer, a UDP echo server needs 3,960
    instructions in user mode, 7,350 if replies go through the Python socket, and 9,700 if received
    addresses are not cached either. With 100 peers it needs 3,630, and 8,240 without the cache.
    """

    def __cinit__(self):
        self.memory = PyMem_RawCalloc(1, sizeof(AddressTables))
        if self.memory is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.memory is not NULL:
            for i in range(CACHE):
                Py_XDECREF((<AddressTables *>self.memory).entries[i].tuple)
            PyMem_RawFree(self.memory)

    cdef object tuple_of(self, Address *name, socklen_t size):
        """Return the tuple for a sockaddr; the same object each time while it is in the cache."""
        cdef AddressTables *tables = <AddressTables *>self.memory
        cdef int i = hash_of_name(name, size)
        cdef CachedAddress *entry = &tables.entries[i]
        cdef PyObject *old
        if entry.tuple is not NULL and entry.size == size and memcmp(&entry.name, name, size) == 0:
            return <object>entry.tuple
        fresh = address_tuple(name)
        old = entry.tuple
        Py_INCREF(fresh)
        entry.tuple = <PyObject *>fresh
        entry.size = size
        memcpy(&entry.name, name, size)
        tables.by_tuple[hash_of_tuple(entry.tuple)] = i
        Py_XDECREF(old)
        return fresh

    cdef CachedAddress *entry_of(self, PyObject *address, int family) noexcept:
        """Return the entry of a tuple that tuple_of() returned for this family, or NULL."""
        cdef AddressTables *tables = <AddressTables *>self.memory
        cdef CachedAddress *entry = &tables.entries[tables.by_tuple[hash_of_tuple(address)]]
        return entry if entry.tuple == address and entry.name.any.sa_family == family else NULL


cdef inline int hash_of_name(Address *name, socklen_t size) noexcept:
    """Return the FNV-1a hash of a sockaddr without its family, modulo CACHE."""
    cdef uint8_t *p = <uint8_t *>name
    cdef uint32_t h = 2166136261u
    cdef socklen_t i
    for i in range(2, size):
        h = (h ^ p[i]) * 16777619u
    return <int>((h ^ (h >> 15)) & (CACHE - 1))


cdef inline int hash_of_tuple(PyObject *address) noexcept:
    return <int>((<uintptr_t>address >> 4) & (CACHE - 1))


cdef inline ssize_t total_of(const mmsghdr *messages, int n) noexcept:
    """Return the number of bytes in the first n messages, or n if it is negative (an error)."""
    cdef ssize_t total = 0
    cdef int i
    if n < 0:
        return n
    for i in range(n):
        total += messages[i].msg_len
    return total


# ------------------------------------------------------------------ the transport ----

@cython.final
cdef class Datagram(SocketTransport):
    """An asyncio.DatagramTransport over a bound or connected datagram socket."""

    def __init__(self, LoopCore loop, sock, protocol, address=None, waiter=None, dict extra=None):
        self.address = address
        self.queue = deque()
        self.epollout_on_demand = True
        self.by_address = sock.family in (AF_INET, AF_INET6)
        if loop.datagram_buffers is None:
            loop.datagram_buffers = RecvmmsgBuffers()
        if loop.datagram_addresses is None:
            loop.datagram_addresses = AddressCache()
        self.buffers = loop.datagram_buffers
        self.addresses = loop.datagram_addresses
        self.adopt_socket(loop, sock, protocol, waiter, extra, None, None)
        self.connected_socket = bool(self.peername)
        self.nameless_peer = self.peername is not None and not self.connected_socket

    cdef Py_ssize_t pending(self) noexcept:
        return self.queued_bytes

    cdef void drop_queue(self) noexcept:
        self.queue.clear()
        self.queued_bytes = 0

    cdef mgl_connections *counters(self) noexcept:
        return &self.loop.count.connections[MGL_DATAGRAM]

    # -------------------------------------------------------------- receiving ----

    cdef int on_ready(self, uint32_t events) except -1:
        if self.conn_lost or self.fd < 0:
            return 0
        if events & (EPOLLOUT | EPOLLERR | EPOLLHUP) and self.queued_bytes > 0:
            self.send_queue()
            if self.conn_lost:
                return 0
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP) and not self.closing:
            if self.paused:
                self.missed |= events
                return 0
            if self.undelivered is not None:
                batch = self.undelivered
                self.undelivered = None
                self.deliver(batch)
                if self.paused or self.closing or self.conn_lost:
                    self.missed |= EPOLLIN
                    return 0
            if self.by_address:
                return self.read_batch(events)
            return self.read_one(events)
        return 0

    cdef int read_batch(self, uint32_t events) except -1:
        cdef int i, n, error = 0
        cdef socklen_t sizes[BATCH]
        cdef Address senders[BATCH]
        cdef list batch = []
        cdef Buffers *buffers = <Buffers *>self.buffers.memory
        n = self.buffers.receive(self.fd)
        mgl_count_read(&self.loop.count, total_of(buffers.messages, n))
        if n < 0:
            error = errno
            if error == EAGAIN:
                if not events & SECOND_READ:
                    return self.loop.mark_ready(self, events | SECOND_READ)
                return 0
            if error != EINTR:
                self.on_read_error(os_error(error))
            # The kernel reports a pending error once, and datagrams may follow it.
            return self.loop.mark_ready(self, EPOLLIN)
        # Copy everything out of the shared buffers first. Up to Python 3.11, making a tuple may
        # start the garbage collector, which may run user code and other threads. Making bytes
        # objects and appending to a list cannot. The list frees the datagrams if memory runs out.
        for i in range(n):
            sizes[i] = buffers.messages[i].msg_hdr.msg_namelen
            senders[i] = buffers.names[i]
            batch.append(
                PyBytes_FromStringAndSize(&buffers.data[i][0], buffers.messages[i].msg_len))
        for i in range(n):
            batch[i] = (
                batch[i],
                self.addresses.tuple_of(&senders[i], sizes[i]) if sizes[i] else None)
        self.deliver(batch)
        if n == BATCH or events & (EPOLLERR | EPOLLHUP):
            # The socket may not be empty. Continue after the entries that are in the ready queue
            # now.
            if self.paused:
                self.missed |= EPOLLIN
            elif not self.closing and not self.conn_lost:
                self.loop.mark_ready(self, EPOLLIN)
        return 0

    cdef int read_one(self, uint32_t events) except -1:
        """Receive one datagram of another family; the socket module makes its address."""
        cdef bint drained = False
        mgl_count(&self.loop.count.reads, 1)
        try:
            item = self.sock.recvfrom(LONGEST)
            mgl_count(&self.loop.count.bytes_received, len(item[0]))
        except BlockingIOError:
            mgl_count(&self.loop.count.reads_blocked, 1)
            drained = True
        except InterruptedError:
            drained = True
        except OSError as exc:
            self.on_read_error(exc)
        else:
            self.deliver([item])
        if drained:
            return 0
        if self.paused:
            self.missed |= EPOLLIN
        elif not self.closing and not self.conn_lost:
            self.loop.mark_ready(self, EPOLLIN)
        return 0

    cdef int deliver(self, list batch) except -1:
        cdef Py_ssize_t i, n = len(batch)
        cdef object context = self.context
        for i in range(n):
            data, address = batch[i]
            PyContext_Enter(<PyObject *>context)
            try:
                self.protocol.datagram_received(data, address)
            except (SystemExit, KeyboardInterrupt):
                if i + 1 < n:
                    self.undelivered = batch[i + 1:]
                raise
            except BaseException as exc:
                self.report("Exception in callback datagram_received()", exc)
            finally:
                PyContext_Exit(<PyObject *>context)
            if self.closing or self.conn_lost:
                return 0
            if self.paused and i + 1 < n:
                self.undelivered = batch[i + 1:]
                self.missed |= EPOLLIN
                return 0
        return 0

    cdef int on_error(self, object exc) except -1:
        """Call error_received() in the transport's context, which may already be entered."""
        cdef object context = self.context
        cdef bint entered = try_enter(<PyObject *>context) == 0
        if not entered:
            PyErr_Clear()
        try:
            self.protocol.error_received(exc)
        finally:
            if entered:
                PyContext_Exit(<PyObject *>context)
        return 0

    cdef int on_read_error(self, object exc) except -1:
        """Call error_received() from on_ready(), and report its exceptions."""
        try:
            self.on_error(exc)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as failure:
            self.report("Exception in callback error_received()", failure)
        return 0

    # -------------------------------------------------------------- sending ----

    def sendto(self, data, addr=None):
        """Send a datagram, which may be empty; as asyncio.DatagramTransport.sendto.

        Raise TypeError if *data* is not bytes-like, and ValueError if *addr* differs from the
        remote address that the endpoint was made with.
        """
        cdef Py_buffer view
        own_thread(self.loop)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self.address:
            if addr is not None and addr != self.address:
                raise ValueError(f"Invalid address: must be None or {self.address}")
            addr = self.address
        if self.conn_lost and self.address or self.fd < 0:
            self.warn_conn_lost()
            return
        if self.queued_bytes == 0:
            if PyBytes_CheckExact(data):
                if self.send_now(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), addr):
                    return
            else:
                PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
                try:
                    if self.send_now(<const char *>view.buf, view.len, addr):
                        return
                finally:
                    PyBuffer_Release(&view)
            self.await_writable(True)
        # Copy the data, because a mutable buffer may change while it is queued.
        data = bytes(data)
        self.queue.append((data, addr))
        self.queued_bytes += PyBytes_GET_SIZE(data) + HEADER
        self.pause_protocol()

    cdef int send_now(self, const char *start, Py_ssize_t n, object address) except -1:
        """Send a datagram, and report an error to the protocol.

        Return 0 if the kernel does not accept the datagram now, else 1.
        """
        cdef ssize_t sent
        cdef CachedAddress *entry
        if self.connected_socket or address is None and self.nameless_peer:
            sent = send(self.fd, start, n, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            entry = NULL
            if self.by_address:
                entry = self.addresses.entry_of(<PyObject *>address, self.family)
            if entry is NULL:
                return self.send_by_python(start, n, address)
            sent = sendto(self.fd, start, n, MSG_NOSIGNAL | MSG_DONTWAIT, &entry.name.any,
                          entry.size)
        mgl_count_write(&self.loop.count, sent)
        if sent >= 0:
            return 1
        if errno == EAGAIN or errno == EINTR:
            return 0
        self.on_error(os_error(errno))
        return 1

    cdef int send_by_python(self, const char *start, Py_ssize_t n, object address) except -1:
        """Send through the socket module, which supports every form of address.

        Return as send_now() does.
        """
        cdef int taken = 1
        mgl_count(&self.loop.count.writes, 1)
        try:
            self.sock.sendto(PyBytes_FromStringAndSize(start, n), address)
            mgl_count(&self.loop.count.bytes_sent, n)
        except BlockingIOError:
            mgl_count(&self.loop.count.writes_blocked, 1)
            taken = 0
        except InterruptedError:
            taken = 0
        except OSError as exc:
            self.on_error(exc)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal write error on datagram transport")
        return taken

    cdef int send_queue(self) except -1:
        cdef bint done
        cdef Py_ssize_t size
        while self.queue:
            data, address = self.queue.popleft()
            size = PyBytes_GET_SIZE(data) + HEADER
            self.queued_bytes -= size
            try:
                done = self.send_now(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), address)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as exc:
                # error_received() has raised. That datagram is lost, the others are not.
                self.report("Exception in callback error_received()", exc)
                done = True
            if self.conn_lost:
                return 0
            if not done:
                self.queue.appendleft((data, address))
                self.queued_bytes += size
                self.await_writable(True)
                break
        try:
            self.resume_protocol()
        finally:
            if self.queued_bytes == 0:
                self.await_writable(False)
                if self.closing:
                    self.end(None)
        return 0

    # asyncio's datagram transport inherits these methods, which raise NotImplementedError.
    write = transports.WriteTransport.write
    writelines = transports.WriteTransport.writelines
    write_eof = transports.WriteTransport.write_eof
    can_write_eof = transports.WriteTransport.can_write_eof

    @property
    def __class__(self):
        return AsyncioDatagramTransport
