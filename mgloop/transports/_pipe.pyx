# SPDX-License-Identifier: GPL-2.0-only
"""Implement the pipe transports, for FIFOs, sockets, terminals and other character devices.

    Pipe                the user's file object, the protocol, and closing
      +- ReadPipe       asyncio.ReadTransport
      +- WritePipe      asyncio.WriteTransport

The module is native because a program that communicates with its child processes runs this code
once per packet. The semantics, including the order of the scheduled callbacks, are those of
asyncio.unix_events. Only the loop's thread may use a transport.

Unlike the socket transports these classes are not watchers. They use the level-triggered
registration of add_reader() and add_writer(), for three reasons. First, a pipe may be in packet
mode and a terminal in line mode. A short read then does not mean that the pipe is empty, so that
edge-triggered polling would need a second read() after each successful one, which would usually
return EAGAIN. Second, a reading and a writing transport may share a descriptor, for example that of
a terminal. Third, the callbacks then run as handles, in the same context and with the same error
reports as in asyncio.

pause_reading() only sets a flag. The registration is removed when an event arrives while reading is
paused. A protocol that pauses and resumes for each message therefore costs no system calls.

Non-blocking system calls on pipes and sockets keep the GIL, because they take less time than
releasing and acquiring it may take. On devices the GIL is released, because a driver may be slow,
and a driver in user space may even be a thread of this process.

The handle of add_reader() or add_writer() holds a reference to a transport that is watched. The
descriptor belongs to the file object, which the transport closes after connection_lost().
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport uint32_t

from mgloop._loop cimport (
    LoopCore, MGL_PIPE, SCRATCH, mgl_count, mgl_count_read, mgl_count_write, os_error, own_thread,
)
from mgloop.transports._common cimport (
    chunks_of, count_lost_write, pause_above_limit, report_fatal, resume_below_limit, set_limits,
)
from mgloop.transports._writequeue cimport (
    iovec, mgl_queue_clear, mgl_queue_consume, mgl_queue_iov, mgl_queue_push,
)

import os
import stat
import warnings
from asyncio import transports
from asyncio.log import logger

from .. import _stdlib


cdef extern from *:
    """
    #include <sys/uio.h>
    #include <unistd.h>
    """
    ssize_t read(int fd, void *buf, size_t n) nogil
    ssize_t write(int fd, const void *buf, size_t n) nogil
    ssize_t writev(int fd, const iovec *iov, int count) nogil


cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **data, Py_ssize_t n) except -1
    PyObject *PyBytes_New "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t n) except NULL


cdef extern from "attributes.h":
    void mgl_drop_empty_dict(object o)


cdef enum:
    # If the expected size of a read is below this, it uses the scratch buffer and copies the data.
    SMALL_READ = 4 * 1024
    # Bytes per read, as in asyncio. A datagram must fit, because the rest would be lost.
    MAX_READ = 256 * 1024
    MAX_WRITES = 8              # writev() calls per time slice
    MAX_IOV = 64                # objects per writev()

cdef object set_result_unless_cancelled = _stdlib.set_result_unless_cancelled
cdef object AsyncioReadPipe = _stdlib.UnixReadPipeTransport
cdef object AsyncioWritePipe = _stdlib.UnixWritePipeTransport


cdef class Pipe:
    """The common part of the reading and the writing transport."""

    def __cinit__(self):
        mgl_drop_empty_dict(self)
        # A transport without a pipe behaves like one that is closed.
        self.fd = -1
        self.closing = self.ending = True

    cdef int adopt(self, LoopCore loop, object pipe, object protocol, dict extra,
                   str refusal) except -1:
        """Take over an open file. Raise ValueError(refusal) if the file cannot be polled."""
        self.fd = pipe.fileno()
        mode = os.fstat(self.fd).st_mode
        self.device = stat.S_ISCHR(mode)
        self.fifo = stat.S_ISFIFO(mode)
        if not self.device and not self.fifo and not stat.S_ISSOCK(mode):
            raise ValueError(refusal)
        loop._ensure_fd_no_transport(self.fd)
        os.set_blocking(self.fd, False)
        self.loop = loop
        self.protocol = protocol
        self.extra = {} if extra is None else extra
        self.extra["pipe"] = pipe
        self.pipe = pipe
        self.closing = self.ending = False
        return 0

    def __del__(self):
        if self.pipe is None:
            return
        try:
            warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
        finally:
            self.pipe.close()   # even if the warning raises, because a filter made it an error

    cdef int end(self, object exc) except -1:
        """Unregister the descriptor, and schedule connection_lost() unless it was scheduled before.
        """
        self.closing = True
        if self.ending:
            return 0
        self.loop._remove_reader(self.fd)
        self.loop.call_soon(self._call_connection_lost, exc)
        self.ending = True
        return 0

    def _call_connection_lost(self, exc):
        if self.loop is not None:
            mgl_count(&self.loop.count.connections[MGL_PIPE].closed, 1)
        try:
            self.protocol.connection_lost(exc)
        finally:
            pipe = self.pipe
            self.pipe = None
            self.protocol = None
            self.loop = None
            pipe.close()

    cdef int stop(self, object exc) except -1:
        """End without sending more data."""
        return self.end(exc)

    cdef int fail(self, object exc, str message, bint expected) except -1:
        """Report an exception, and end."""
        if self.loop is None:
            return 0
        report_fatal(self.loop, self, self.protocol, message, exc, expected)
        return self.stop(exc)

    cdef bint polling(self):
        """Return whether the loop waits until this transport can read or write, respectively."""
        return False

    def set_protocol(self, protocol):
        """Set the protocol that is called from now on. Its connection_made() is not called."""
        own_thread(self.loop)
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        """Return whether the transport is closing or closed."""
        return self.closing

    def get_extra_info(self, name, default=None):
        """Return 'pipe', the file object, or an item that the transport's creator added.

        Return *default* if the name is unknown.
        """
        return self.extra.get(name, default)

    @property
    def _extra(self):
        return self.extra

    @property
    def _loop(self):
        return self.loop

    @property
    def _protocol(self):
        return self.protocol

    @property
    def _fileno(self):
        return self.fd

    @property
    def _pipe(self):
        return self.pipe

    @_pipe.setter
    def _pipe(self, pipe):
        self.pipe = pipe

    def __repr__(self):
        info = [f"mgloop.{type(self).__name__}"]
        if self.pipe is None:
            info.append("closed")
        elif self.closing:
            info.append("closing")
        info.append(f"fd={self.fd}")
        if self.pipe is None:
            info.append("closed")
        elif self.loop is None or self.loop._closed:
            info.append("open")
        else:
            info.append("polling" if self.polling() else "idle")
            if isinstance(self, WritePipe):
                info.append(f"bufsize={self.get_write_buffer_size()}")
        return f"<{' '.join(info)}>"


# ------------------------------------------------------------------ reading ----

@cython.final
cdef class ReadPipe(Pipe):
    """An asyncio.ReadTransport over the reading end of a pipe; see loop.connect_read_pipe()."""

    def __init__(self, LoopCore loop, pipe, protocol, waiter=None, dict extra=None):
        self.adopt(loop, pipe, protocol, extra, "Pipe transport is for pipes/sockets only.")
        loop.call_soon(protocol.connection_made, self)
        mgl_count(&loop.count.connections[MGL_PIPE].opened, 1)
        loop.call_soon(self._start)
        if waiter is not None:
            loop.call_soon(set_result_unless_cancelled, waiter, None)

    def _start(self):
        if self.is_reading():
            self.watch()

    cdef int watch(self) except -1:
        self.loop._add_reader(self.fd, self._read_ready)
        self.watched = True
        return 0

    cdef bint polling(self):
        return self.watched and self.is_reading()

    def is_reading(self):
        """Return whether received data is delivered, that is neither paused nor closing."""
        return not self.paused and not self.closing

    def pause_reading(self):
        """Stop calling data_received() until resume_reading()."""
        own_thread(self.loop)
        if not self.is_reading():
            return
        self.paused = True
        if self.loop._debug:
            logger.debug("%r pauses reading", self)

    def resume_reading(self):
        """Deliver data again after pause_reading(). Raise RuntimeError if the loop is closed."""
        own_thread(self.loop)
        if self.closing or not self.paused:
            return
        self.paused = False
        self.loop.check_open()
        if not self.watched:
            self.watch()
        if self.loop._debug:
            logger.debug("%r resumes reading", self)

    def _read_ready(self):
        if self.closing:
            return
        if self.paused:
            self.watched = False
            self.loop._remove_reader(self.fd)
            return
        data = self.receive()
        if data is None:
            return
        if data:
            self.protocol.data_received(data)
            return
        if self.loop._debug:
            logger.info("%r was closed by peer", self)
        self.closing = True
        self.loop.call_soon(self.protocol.eof_received)
        self.end(None)

    cdef object receive(self):
        """Return the next bytes, b"" at the end of the file, or None.

        None means that no data is available now or that the read has failed.
        """
        cdef PyObject *data = NULL
        cdef ssize_t n
        cdef uint32_t hint = self.hint
        cdef int fd = self.fd, error
        cdef char *start
        if self.fifo and hint < SMALL_READ:
            n = read(fd, self.loop.scratch, SCRATCH)
        else:
            data = PyBytes_New(NULL, MAX_READ)
            start = PyBytes_AS_STRING(<object>data)
            if self.device:
                with nogil:
                    n = read(fd, start, MAX_READ)
            else:
                n = read(fd, start, MAX_READ)
        if self.loop is not None:
            mgl_count_read(&self.loop.count, n)
        if n < 0:
            error = errno
            if data is not NULL:
                Py_DECREF(<object>data)
            if error != EAGAIN and error != EINTR:
                self._fatal_error(os_error(error), "Fatal read error on pipe transport")
            return None
        # The expected size rises immediately, and falls by an eighth of the difference per read.
        self.hint = <uint32_t>n if n > <ssize_t>hint else hint - ((hint - <uint32_t>n) >> 3)
        try:
            if data is NULL:
                result = PyBytes_FromStringAndSize(self.loop.scratch, n)
            else:
                _PyBytes_Resize(&data, n)
                result = <object>data
                Py_DECREF(result)
        except MemoryError as exc:
            # The bytes of this read are lost. End the connection, so that the protocol does not
            # mistake later bytes for those that follow.
            self._fatal_error(exc, "Fatal read error on pipe transport")
            result = None
        return result

    def close(self):
        """Close the pipe without reading the remaining data; connection_lost(None) is called later.
        """
        own_thread(self.loop)
        if not self.closing:
            self.end(None)

    def _fatal_error(self, exc, message="Fatal error on pipe transport"):
        # A terminal returns EIO when its other end is closed.
        self.fail(exc, message, isinstance(exc, OSError) and exc.errno == EIO)

    @property
    def __class__(self):
        return AsyncioReadPipe


# ------------------------------------------------------------------ writing ----

@cython.final
cdef class WritePipe(Pipe):
    """An asyncio.WriteTransport over the writing end of a pipe; see loop.connect_write_pipe()."""

    def __init__(self, LoopCore loop, pipe, protocol, waiter=None, dict extra=None):
        self.adopt(loop, pipe, protocol, extra,
                   "Pipe transport is only for pipes, sockets and character devices")
        set_limits(&self.limits, None, None)
        loop.call_soon(protocol.connection_made, self)
        mgl_count(&loop.count.connections[MGL_PIPE].opened, 1)
        if not self.device:
            # epoll reports the writing end as readable when the reading end is closed.
            loop.call_soon(self._start)
        if waiter is not None:
            loop.call_soon(set_result_unless_cancelled, waiter, None)

    def __dealloc__(self):
        mgl_queue_clear(&self.queue)

    def _start(self):
        if not self.ending:
            self.loop._add_reader(self.fd, self._read_ready)

    cdef bint polling(self):
        return self.blocked

    def _read_ready(self):
        if self.ending:
            return
        if self.loop._debug:
            logger.info("%r was closed by peer", self)
        self.stop(BrokenPipeError() if self.queue.size > 0 else None)

    def write(self, data):
        """Send bytes now, or later if the pipe is full.

        A mutable buffer is copied if it has to wait. Data is discarded after close(), and after
        the reading end was closed.
        """
        cdef Py_buffer view
        cdef ssize_t sent = 0
        cdef Py_ssize_t done
        own_thread(self.loop)
        assert isinstance(data, (bytes, bytearray, memoryview)), repr(data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len == 0 or self.refuses():
                return
            if self.queue.size == 0:
                sent = self.write_some(<const char *>view.buf, view.len)
                if sent == view.len:
                    return
                if sent < 0:
                    if errno != EAGAIN and errno != EINTR:
                        self.write_failed(errno)
                        return
                    sent = 0
                self.block()
            done = sent
            if not PyBytes_CheckExact(data):
                data = PyBytes_FromStringAndSize(<const char *>view.buf + done, view.len - done)
                done = 0
            mgl_queue_push(&self.queue, <PyObject *>data, done)
        finally:
            PyBuffer_Release(&view)
        self.pause_protocol()

    def writelines(self, list_of_data):
        """Send several bytes-like objects through writev(), without joining them."""
        cdef list chunks
        own_thread(self.loop)
        chunks = chunks_of(list_of_data)
        if not chunks or self.refuses():
            return
        if self.loop._closed:
            # write() raises instead of queueing data that the closed loop cannot send.
            self.write(b"".join(chunks))
            return
        for data in chunks:
            mgl_queue_push(&self.queue, <PyObject *>data, 0)
        if not self.blocked:
            self.send_queue()
        self.pause_protocol()

    # asyncio's transport inherits these methods, which raise NotImplementedError.
    is_reading = transports.ReadTransport.is_reading
    pause_reading = transports.ReadTransport.pause_reading
    resume_reading = transports.ReadTransport.resume_reading

    cdef bint refuses(self) except -1:
        """Return whether the pipe can no longer be written; log a warning after repeated writes."""
        if not self.conn_lost and not self.closing:
            return False
        count_lost_write(
            &self.conn_lost, "pipe closed by peer or os.write(pipe, data) raised exception.")
        return True

    cdef int count_write(self, ssize_t sent) noexcept:
        if self.loop is not None:
            mgl_count_write(&self.loop.count, sent)
        return 0

    cdef ssize_t write_some(self, const char *start, Py_ssize_t n) except -2:
        cdef ssize_t sent
        cdef int fd = self.fd
        if self.device:
            with nogil:
                sent = write(fd, start, n)
        else:
            sent = write(fd, start, n)
        self.count_write(sent)
        return sent

    cdef ssize_t write_queued(self) except -2:
        cdef iovec iov[MAX_IOV]
        cdef ssize_t sent
        cdef int fd = self.fd
        cdef int count = mgl_queue_iov(&self.queue, iov, MAX_IOV)
        if self.device:
            with nogil:
                sent = writev(fd, iov, count)
        else:
            sent = writev(fd, iov, count)
        self.count_write(sent)
        return sent

    cdef int send_queue(self) except -1:
        """Send until the queue is empty, the pipe is full, or the time slice is over."""
        cdef ssize_t sent
        cdef int _i
        for _i in range(MAX_WRITES):
            sent = self.write_queued()
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    break
                return self.write_failed(errno)
            mgl_queue_consume(&self.queue, sent)
            if self.queue.size == 0:
                break
        if self.queue.size > 0:
            self.block()
        else:
            self.unblock()
        try:
            self.resume_protocol()
        finally:
            if self.queue.size == 0 and self.closing:
                self.end(None)
        return 0

    def _write_ready(self):
        if self.queue.size > 0:
            self.send_queue()

    cdef int block(self) except -1:
        """Register the descriptor, so that _write_ready() is called when the pipe accepts data."""
        if not self.blocked:
            self.loop._add_writer(self.fd, self._write_ready)
            self.blocked = True
        return 0

    cdef int unblock(self) except -1:
        if self.blocked:
            self.blocked = False
            self.loop._remove_writer(self.fd)
        return 0

    cdef int write_failed(self, int error) except -1:
        self.conn_lost += 1
        self._fatal_error(os_error(error), "Fatal write error on pipe transport")
        return 0

    def can_write_eof(self):
        return True

    def write_eof(self):
        """Close the pipe after everything is sent, because only that signals the end of the file.
        """
        own_thread(self.loop)
        if self.closing:
            return
        self.closing = True
        if self.queue.size == 0:
            self.end(None)

    def close(self):
        """Send the write buffer, then close. The loop calls connection_lost(None) later."""
        own_thread(self.loop)
        self.write_eof()

    def abort(self):
        """Discard the write buffer and close."""
        own_thread(self.loop)
        self.stop(None)

    cdef int stop(self, object exc) except -1:
        if self.ending:
            return 0
        mgl_queue_clear(&self.queue)
        self.unblock()
        return self.end(exc)

    def _fatal_error(self, exc, message="Fatal error on pipe transport"):
        self.fail(exc, message, isinstance(exc, OSError))

    # -------------------------------------------------------------- flow control ----

    def get_write_buffer_size(self):
        """Return the number of bytes that the kernel has not accepted yet."""
        return self.queue.size

    def get_write_buffer_limits(self):
        """Return (low, high), the marks of the write buffer in bytes."""
        return self.limits.low, self.limits.high

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the high-water and low-water marks of the write buffer, in bytes.

        pause_writing() is called above *high*, and resume_writing() at or below *low*. Raise
        ValueError unless high >= low >= 0.
        """
        own_thread(self.loop)
        set_limits(&self.limits, high, low)
        self.pause_protocol()

    cdef int pause_protocol(self) except -1:
        return pause_above_limit(&self.limits, self.queue.size, self.loop, self, self.protocol,
                                 None)

    cdef int resume_protocol(self) except -1:
        return resume_below_limit(&self.limits, self.queue.size, self.loop, self, self.protocol,
                                  None)

    @property
    def _protocol_paused(self):
        return self.limits.paused

    @property
    def __class__(self):
        return AsyncioWritePipe
