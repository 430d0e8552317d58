# SPDX-License-Identifier: GPL-2.0-only
"""Implement the reading half of the stream transport.

The module is native because its code runs once per packet. ReceivingStream receives from the
socket and passes the data to the protocol. Stream in _stream derives from it and adds writing. Only
the loop's thread may use a transport. Its lifetime is described in _socket.

Reading is edge-triggered: epoll reports that the socket has become readable, not that it still is.
The transport is registered once per connection, and needs no epoll_ctl() to pause or resume. The
transport must therefore read until the socket is empty. A read that returns fewer bytes than
requested has usually emptied the socket, so that a further read, which would only return EAGAIN, is
saved. There are two exceptions. If the kernel has reported that the peer is gone, the end of the
stream follows, and is read after the callbacks that the data has scheduled. A read also ends early
before urgent data, and on UNIX sockets after passed descriptors. After MAX_READS reads the
transport goes to the end of the ready queue, so that other callbacks can run. Small reads go to a
scratch buffer, from which a bytes object of the exact size is made. Large reads go to a bytes
object of the expected size, which is then shrunk.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport memset

from mgloop._loop cimport EPOLLIN, EPOLLPRI, LoopCore, SCRATCH, mgl_count_read, os_error
from mgloop.tls._protocol cimport SSLProtocol
from mgloop.transports._base cimport SECOND_READ, SocketTransport

from asyncio.log import logger

from .. import _stdlib


cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    static void mgl_prime_malloc(void) {
        /* Without `volatile` the compiler would remove both calls. */
        void *volatile block = malloc(4 * 1024 * 1024);
        free(block);
    }

    /* A loop in another thread may read the pointer while mgloop._compiled is imported. */
    #define mgl_load_pointer(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
    #define mgl_store_pointer(p, value) __atomic_store_n(&(p), value, __ATOMIC_RELEASE)

    /* Receive up to `size` bytes. If the result is less than *requested, the socket is empty or has
     * only urgent data left.
     *
     * On a UNIX socket a read ends after passed descriptors and, with SO_PASSCRED, at data from
     * another process. The kernel then reports MSG_CTRUNC because this call receives no control
     * data. More data may follow, whatever the number of bytes. *requested is then the result. */
    static ssize_t mgl_receive(int fd, void *buf, size_t size, int is_unix, Py_ssize_t *requested) {
        struct iovec vector = {.iov_base = buf, .iov_len = size};
        struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
        *requested = size;
        if (!is_unix) return recv(fd, buf, size, MSG_DONTWAIT);
        ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
        if (n > 0 && message.msg_flags & MSG_CTRUNC) *requested = n;
        return n;
    }
    """
    void mgl_prime_malloc()
    CompiledCalls *mgl_load_pointer(CompiledCalls *p) noexcept
    void mgl_store_pointer(CompiledCalls *p, CompiledCalls *value) noexcept
    ssize_t mgl_receive(int fd, void *buf, size_t size, bint is_unix, Py_ssize_t *requested)


cdef extern from "Python.h":
    int PyContext_Enter(PyObject *context) except -1
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    int try_exit "PyContext_Exit"(PyObject *context)
    int _PyBytes_Resize(PyObject **data, Py_ssize_t n) except -1
    PyObject *PyBytes_New "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t n) except NULL


cdef enum:
    # The expected size decides where a read puts its data: below SMALL_READ into the scratch
    # buffer, below MIDDLE_READ into a bytes object of the next power of two, else into one of
    # LARGE_READ bytes, which is asyncio's max_size.
    SMALL_READ = 4 * 1024
    MIDDLE_READ = 32 * 1024
    LARGE_READ = 256 * 1024
    MAX_READS = 4               # reads per time slice
    # In debug mode, the buffer of a compiled protocol is filled with this byte after the call.
    INVALID = 0xDD

cdef object MINUS_ONE = -1
cdef CompiledCalls *compiled = NULL

# glibc's malloc() maps blocks of 128 KiB and more with mmap(), and unmaps them when they are shrunk
# or freed. A read of 100 KiB then takes 78 us instead of 16 us. Freeing one mapped block raises the
# threshold to the size of that block.
mgl_prime_malloc()


cdef void set_compiled(CompiledCalls *calls) noexcept:
    mgl_store_pointer(compiled, calls)


cdef int delivery_to(object protocol) except -1:
    cdef CompiledCalls *calls = mgl_load_pointer(compiled)
    if calls is not NULL and calls.accepts(protocol):
        return COMPILED
    return BUFFERED if _stdlib.is_buffered(protocol) else BYTES


cdef class ReceivingStream(SocketTransport):
    """The part of a stream transport that receives and calls the protocol with the data."""

    cdef int read(self, uint32_t events) except -1:
        cdef object data
        cdef Py_ssize_t requested = 0, got
        cdef int _i
        for _i in range(MAX_READS):
            if self.tls is not None:
                got = self.receive_tls(events, &requested)
                if got < 0:
                    return 0
                if got == 0:
                    return self.on_eof()
            elif self.delivery != BYTES:
                if self.delivery == COMPILED:
                    got = receive_compiled(self, events, &requested)
                else:
                    got = self.receive_into(events, &requested)
                if got < 0:
                    return 0
                if got == 0:
                    return self.on_eof()
            else:
                data = self.receive(events, &requested)
                if data is None:
                    return 0
                got = PyBytes_GET_SIZE(data)
                if got == 0:
                    return self.on_eof()
                if not self.notify("data_received", <PyObject *>data,
                                   "Fatal error: protocol.data_received() call failed."):
                    return 0
            if self.closing or self.conn_lost:
                return 0
            if self.paused:
                self.missed |= EPOLLIN | events & (GONE | EPOLLPRI)
                return 0
            if got < requested:
                if not events & (GONE | EPOLLPRI):
                    return 0
                if not events & GONE:
                    # A read stops before urgent data. Register again, so that the kernel reports
                    # whether data follows it. Another read instead would drop the urgent byte,
                    # which the program may want to receive itself.
                    if self.watched:
                        self.loop.rearm(self, self.interest())
                    return 0
                # The end of the stream follows. Run the callbacks that the data has scheduled
                # first, as asyncio does because it reads once per iteration.
                break
        return self.loop.mark_ready(self, EPOLLIN | events & (GONE | EPOLLPRI))

    cdef object receive(self, uint32_t events, Py_ssize_t *requested):
        """Return the next bytes, b"" at the end of the stream, or None.

        None means that no data is available now or that the read has failed.
        """
        cdef PyObject *data
        cdef Py_ssize_t n, size
        cdef uint32_t hint = self.hint
        cdef int error
        if hint < SMALL_READ:
            size = SCRATCH
            data = NULL
            n = mgl_receive(self.fd, self.loop.scratch, size, self.epollout_on_demand, requested)
        else:
            size = LARGE_READ
            if hint < MIDDLE_READ:
                size = SMALL_READ
                while size <= <Py_ssize_t>hint:
                    size *= 2
            data = PyBytes_New(NULL, size)
            n = mgl_receive(self.fd, PyBytes_AS_STRING(<object>data), size, self.epollout_on_demand,
                            requested)
        mgl_count_read(&self.loop.count, n)
        if n < 0:
            error = errno
            if data is not NULL:
                Py_DECREF(<object>data)
            self.on_read_error(error, events)
            return None
        # The expected size rises immediately, and falls by an eighth of the difference per read.
        self.hint = <uint32_t>n if n > <Py_ssize_t>hint else hint - ((hint - <uint32_t>n) >> 3)
        if data is NULL:
            return PyBytes_FromStringAndSize(self.loop.scratch, n)
        _PyBytes_Resize(&data, n)
        result = <object>data
        Py_DECREF(result)
        return result

    cdef Py_ssize_t receive_into(self, uint32_t events, Py_ssize_t *requested) except -2:
        """Receive into the protocol's own buffer, notify it, and return the number of bytes.

        Return 0 at the end of the stream, and -1 if no data is available now or the read or the
        protocol has failed.
        """
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef int error
        cdef object buf, count
        cdef bint failed = False
        try:
            buf = self.call("get_buffer", <PyObject *>MINUS_ONE)
            if len(buf) == 0:
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.get_buffer() call failed.")
            failed = True
        if failed:
            return -1
        try:
            PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:
            # Use the message of socket.recv_into().
            self.fatal_error(
                TypeError("recv_into() argument 1 must be read-write bytes-like object, "
                          f"not {type(buf).__name__}"),
                "Fatal read error on socket transport")
            failed = True
        if failed:
            return -1
        n = mgl_receive(self.fd, view.buf, view.len, self.epollout_on_demand, requested)
        mgl_count_read(&self.loop.count, n)
        error = errno
        PyBuffer_Release(&view)
        if n < 0:
            self.on_read_error(error, events)
            return -1
        if n > 0:
            count = n
            if not self.notify("buffer_updated", <PyObject *>count,
                               "Fatal error: protocol.buffer_updated() call failed."):
                return -1
        return n

    cdef Py_ssize_t receive_tls(self, uint32_t events, Py_ssize_t *requested) except -2:
        """Receive for mgloop's own TLS protocol; return as receive_into() does.

        This saves a buffer object and two method calls.
        """
        cdef SSLProtocol tls = self.tls
        cdef object context = self.context
        cdef Py_ssize_t n
        cdef int error = 0
        cdef char *buffer
        cdef bint failed = False
        try:
            PyContext_Enter(<PyObject *>context)
            try:
                buffer = tls.read_buffer(requested)
                n = mgl_receive(self.fd, buffer, requested[0], self.epollout_on_demand, requested)
                mgl_count_read(&self.loop.count, n)
                error = errno
                if n > 0:
                    tls.data_arrived(n)
                    return n
            finally:
                PyContext_Exit(<PyObject *>context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.buffer_updated() call failed.")
            failed = True
        if failed:
            return -1
        if n < 0:
            self.on_read_error(error, events)
            return -1
        return 0

    cdef int on_read_error(self, int error, uint32_t events) except -1:
        if error == EINTR:
            return self.loop.mark_ready(self, events)
        if error == EAGAIN:
            # The kernel has just reported the socket readable or its peer gone, and an
            # edge-triggered registration does not report that again. Try once more.
            if not events & SECOND_READ:
                return self.loop.mark_ready(self, events | SECOND_READ)
            return 0
        return self.fatal_error(os_error(error), "Fatal read error on socket transport")

    cdef int on_eof(self) except -1:
        if self.loop._debug:
            logger.debug("%r received EOF", self)
        try:
            keep_open = self.call("eof_received", NULL)
            if keep_open:
                # The protocol may still write, but nothing is left to read.
                self.read_eof = True
                return 0
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal_error(exc, "Fatal error: protocol.eof_received() call failed.")
        # This does nothing after a fatal error.
        self.close()
        return 0


cdef char *take_buffer(LoopCore loop) except NULL:
    """Return a buffer of LARGE_READ bytes for a compiled protocol, the loop's if it is not in use.

    data_received() may run code that reads for another protocol.
    """
    cdef char *buffer = loop.compiled_buffer
    loop.compiled_buffer = NULL
    if buffer is NULL:
        buffer = <char *>PyMem_RawMalloc(LARGE_READ)
    if buffer is NULL:
        raise MemoryError
    return buffer


cdef void put_back(LoopCore loop, char *buffer) noexcept:
    if loop.compiled_buffer is NULL:
        loop.compiled_buffer = buffer
    else:
        PyMem_RawFree(buffer)


cdef Py_ssize_t receive_compiled(ReceivingStream self, uint32_t events,
                                 Py_ssize_t *requested) except -2:
    """Receive and call the C function of a compiled protocol; return as receive_into() does."""
    cdef LoopCore loop = self.loop
    cdef object protocol = self.protocol
    cdef object context = self.context
    cdef char *buffer = take_buffer(loop)
    cdef Py_ssize_t n
    cdef int error
    cdef bint failed = False
    n = mgl_receive(self.fd, buffer, LARGE_READ, self.epollout_on_demand, requested)
    error = errno
    mgl_count_read(&loop.count, n)
    if n > 0:
        failed = try_enter(<PyObject *>context) != 0
        if not failed:
            failed = compiled.deliver(<PyObject *>protocol, buffer, n) == -1
            if try_exit(<PyObject *>context) != 0:
                failed = True
        if loop._debug:
            memset(buffer, INVALID, n)
    put_back(loop, buffer)
    if n < 0:
        self.on_read_error(error, events)
        return -1
    if failed:
        self.notify_failed("Fatal error: protocol.data_received() call failed.")
        return -1
    return n
