# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The write side of a TLS connection: from the application to ciphertext.

The semantics are those of asyncio.sslproto, including its limits and pause_writing(). The module is
native because it runs per write, on the thread of the loop. _protocol.pyx describes the lifetime.

Plaintext is the application's data, and ciphertext is its encrypted form. The outgoing BIO is a
memory buffer into which OpenSSL writes ciphertext, unless the loop's buffer for it is attached to
the engine. TLS encrypts data in records of up to 16 KiB, and each record costs time and about 22
bytes, so small writes are put together.

It differs from asyncio.sslproto in two points, for speed and memory:

* Data that the application writes in a callback that delivers data is sent when the callback
  returns. Small writes leave in one record, and all records in one write to the transport below.
* While the transport below has paused writing, plaintext is kept here, by reference if it is bytes.
  asyncio encrypts it immediately into a BIO, which never frees its memory.

A write takes one of four ways (ON_WRITE in the table, then encrypt_or_queue_memory()):

    the connection is closing                   dropped, with a warning after several writes
    handshake, non-empty backlog, or
    the transport below has paused writing      into the backlog: a copy, or a reference to bytes
    small, and inside a callback                into the loop's record buffer, until its end
    otherwise                                   encrypted and sent

So the data in the record buffer is younger than all encrypted data, and older than all data in the
backlog. While the backlog is not empty, this connection does not hold the record buffer. The
application's pause_writing() and resume_writing() are called only when the state is consistent,
because they may raise any exception.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.string cimport memcpy

from mgloop._loop cimport mgl_count
from mgloop.tls._buffers cimport LoopBuffers, RECORD_PLAIN_MAX, known_buffers
from mgloop.tls._engine cimport Engine
from mgloop.tls._states cimport (
    Connection, ENCRYPT, IGNORE, ON_WRITABLE, ON_WRITE, REFUSE, SEND_BACKLOG, WRAPPED, reaction,
)

import collections
import os

from asyncio import constants, events, sslproto
from asyncio.log import logger

cdef object deque = collections.deque
cdef object flow_control_limits = sslproto.add_flowcontrol_defaults
cdef Py_ssize_t WRITES_BEFORE_WARNING = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
cdef object HIGH_WATER_WRITE = constants.FLOW_CONTROL_HIGH_WATER_SSL_WRITE

cdef enum:
    # Bytes of plaintext in the outgoing BIO at which it is flushed. A BIO never frees memory. Seven
    # full records with their headers stay below 128 KiB, from which on malloc() maps pages.
    FLUSH_SIZE = 7 * 16 * 1024
    # Writes up to this size (in bytes) are collected into one record, because copying them costs
    # less than a record of their own.
    SMALL_WRITE = 4096


cdef inline Py_ssize_t bytes_in(object data) except -1:
    if type(data) is bytes or type(data) is bytearray:
        return len(data)
    return memoryview(data).nbytes


cdef object without_prefix(object data, Py_ssize_t done):
    """Return *data* without its first *done* bytes, as an object that its owner cannot change."""
    if done == 0 and type(data) is bytes:
        return data
    view = memoryview(data).cast('B')
    return view[done:] if type(view.obj) is bytes else bytes(view[done:])


cdef inline bint can_encrypt_now(Writing self) noexcept:
    """Return whether a write can be encrypted now.

    Otherwise it has to wait for the handshake, for the backlog, or for the transport below.
    """
    return (reaction(ON_WRITE, self.state) == ENCRYPT and self._write_buffer_size == 0
            and not self._ssl_writing_paused)


@cython.nonecheck(True)
cdef class Writing(Connection):
    """Encrypt the data that the application writes, and pass it to the transport below."""

    def __del__(self):
        # The loop's buffers refer to their owner by its address. Clear it, because another object
        # may get the same address.
        cdef LoopBuffers buffers = self.buffers
        if buffers is None:
            return
        if buffers.record_owner == <void*>self:
            buffers.record_owner = NULL
        if buffers.cipher_owner == <void*>self:
            buffers.cipher_owner = NULL

    @property
    def _outgoing(self):
        return self.tls.outgoing

    @_outgoing.setter
    def _outgoing(self, bio):
        cdef Engine tls = self.tls
        self.release_cipher_buffer()
        self.tls = tls.with_outgoing(bio)

    @property
    def _write_backlog(self):
        if self.backlog is None:
            self.backlog = deque()
        return self.backlog

    cdef bint refuse_write(self) except -1:
        """Return True if the connection is closing or closed; log after several writes."""
        if reaction(ON_WRITE, self.state) != REFUSE:
            return False
        if self._conn_lost >= WRITES_BEFORE_WARNING:
            logger.warning('SSL connection is closed')
        self._conn_lost += 1
        return True

    cdef int write_one(self, object data) except -1:
        if self.refuse_write():
            return 0
        try:
            self.encrypt_or_queue(data)
            if not self.coalescing:
                self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int write_many(self, object list_of_data) except -1:
        cdef bint was_coalescing = self.coalescing
        cdef list chunks = []
        if self.refuse_write():
            return 0
        try:
            for chunk in list_of_data:
                if bytes_in(chunk) > 0:
                    chunks.append(chunk)
        except BaseException:
            # The chunks before the failure wait in the backlog for the next write, as with asyncio.
            self.flush_record()
            for chunk in chunks:
                self.append(chunk)
            raise
        try:
            self.coalescing = True
            try:
                for chunk in chunks:
                    self.encrypt_or_queue(chunk)
            finally:
                self.coalescing = was_coalescing
                if not was_coalescing:
                    self.flush_record()
            if not was_coalescing:
                self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int encrypt_or_queue(self, object data) except -1:
        """Encrypt *data* if that is possible now, else put it into the backlog.

        One export of its buffer is held during that time, and its size is taken from that. So
        neither another thread nor a user-defined `__buffer__` can shrink the memory that is copied.
        """
        cdef Py_buffer view
        if PyBytes_CheckExact(data):
            return self.encrypt_or_queue_memory(
                data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.encrypt_or_queue_memory(data, <char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int encrypt_or_queue_memory(self, object data, char* start, Py_ssize_t size) except -1:
        """Do the work of encrypt_or_queue() for start[:size], the memory of *data*."""
        cdef LoopBuffers buffers = self.buffers
        cdef Engine tls = self.tls
        cdef Py_ssize_t done
        if size == 0:
            return 0
        if (self.coalescing and size <= SMALL_WRITE and can_encrypt_now(self)
                and self.claim_record(buffers, size)):
            memcpy(PyByteArray_AS_STRING(buffers.record) + buffers.record_used, start, size)
            buffers.record_used += size
            return 0
        if buffers.record_owner == <void*>self:
            self.flush_record()
        if not can_encrypt_now(self):
            return self.enqueue(data, start, size)
        if size < FLUSH_SIZE and PyBytes_CheckExact(data):
            self.claim_cipher_buffer()
            done = tls.encrypt_bytes(data)
            self.unsent += done
            if self.unsent >= FLUSH_SIZE:
                self.send_outgoing()
        else:
            done = self.encrypt(start, size)
        if done < size and self._transport is not None:
            self.enqueue(data, start + done, size - done)
        return 0

    cdef bint claim_record(self, LoopBuffers buffers, Py_ssize_t size) except -1:
        """Acquire the loop's record buffer, with space for *size* bytes.

        Return False if another connection holds it, or if writes cannot be encrypted now.
        """
        if buffers.record_owner == <void*>self and buffers.record_used + size > RECORD_PLAIN_MAX:
            self.flush_record()
            if not can_encrypt_now(self):
                return False
        if buffers.record_owner == NULL:
            buffers.record_owner = <void*>self
            buffers.record_used = 0
        return buffers.record_owner == <void*>self

    cdef int claim_cipher_buffer(self) except -1:
        """Let OpenSSL write into the loop's memory, unless another connection holds it."""
        cdef LoopBuffers buffers = self.buffers
        if (buffers.cipher_owner is NULL and not self._ssl_writing_paused
                and self.tls.attach_output(buffers)):
            buffers.cipher_owner = <void*>self
        return 0

    cdef int release_cipher_buffer(self) except -1:
        """Release the loop's memory; move the ciphertext in it into the outgoing BIO."""
        if self.buffers.cipher_owner == <void*>self:
            self.buffers.cipher_owner = NULL
            self.tls.copy_output()
        return 0

    cdef int fatal_error(self, object exc, object message) except -1:
        self.release_cipher_buffer()
        return Connection.fatal_error(self, exc, message)

    cdef int append(self, object data) except -1:
        """Put *data* into the backlog, in any state."""
        data = without_prefix(data, 0)
        return self.enqueue(data, NULL, len(data))

    cdef int drop_writes(self) except -1:
        """Drop all data that has not been sent, because the connection is lost."""
        cdef Engine tls = self.tls
        self.backlog = None
        self._write_buffer_size = 0
        if self.buffers.record_owner == <void*>self:
            self.buffers.record_owner = NULL
        self.release_cipher_buffer()
        tls.take_output()
        return 0

    cdef int enqueue(self, object data, char* start, Py_ssize_t size) except -1:
        """Put start[:size], the end of the memory of *data*, into the backlog.

        Keep a reference if the memory belongs to a bytes object, else a copy.
        """
        if PyBytes_CheckExact(data):
            data = without_prefix(data, PyBytes_GET_SIZE(data) - size)
        elif type(data) is memoryview and type(data.obj) is bytes:
            data = without_prefix(data, data.nbytes - size)
        else:
            data = PyBytes_FromStringAndSize(start, size)
        if self.backlog is None:
            self.backlog = deque()
        self.backlog.append(data)
        self._write_buffer_size += size
        return 0

    cdef Py_ssize_t encrypt(self, char* start, Py_ssize_t size) except -1:
        """Encrypt start[:size] into the outgoing BIO, and flush that whenever it is full.

        Return the number of bytes consumed. It is less than *size* if OpenSSL has to read first
        (for a renegotiation), or if the transport below has paused writing.
        """
        cdef Engine tls = self.tls
        cdef Py_ssize_t done = 0, got
        while True:
            self.claim_cipher_buffer()
            got = tls.encrypt(start + done, min(size - done, <Py_ssize_t>FLUSH_SIZE))
            done += got
            self.unsent += got
            if self.unsent >= FLUSH_SIZE:
                self.send_outgoing()
            if (got == 0 or done >= size or self._transport is None
                    or (self._ssl_writing_paused and self.state == WRAPPED)):
                return done

    cdef int flush_record(self) except -1:
        """Encrypt the small writes in the record buffer, if this connection holds it."""
        cdef LoopBuffers buffers = self.buffers
        cdef Engine tls = self.tls
        cdef char* record
        cdef Py_ssize_t done = 0, got
        if buffers.record_owner != <void*>self:
            return 0
        record = PyByteArray_AS_STRING(buffers.record)
        try:
            self.claim_cipher_buffer()
            # A user's subclass of SSLObject may consume a part only.
            while done < buffers.record_used:
                got = tls.encrypt(record + done, buffers.record_used - done)
                if got == 0:
                    self.enqueue(None, record + done, buffers.record_used - done)
                    break
                done += got
            self.unsent += done
        finally:
            buffers.record_owner = NULL
        return 0

    cdef int flush_pending(self) except -1:
        """Pass the data that the present callback has written to the transport below."""
        try:
            self.flush_record()
            self.send_outgoing()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int send_backlog(self, bint everything) except -1:
        """Encrypt and send the backlog, until the transport below pauses writing.

        *everything*: send all of it even then.
        """
        cdef Py_buffer view
        cdef Py_ssize_t size, done
        while self._write_buffer_size > 0 and (everything or not self._ssl_writing_paused):
            data = self.backlog.popleft()
            size = len(data)
            if size <= SMALL_WRITE and self.backlog:
                chunks = [data]
                while self.backlog and size + len(self.backlog[0]) <= RECORD_PLAIN_MAX:
                    data = self.backlog.popleft()
                    chunks.append(data)
                    size += len(data)
                data = b''.join(chunks)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                done = self.encrypt(<char*>view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
            if self.backlog is None:
                return 0
            self._write_buffer_size -= done
            if done < size:
                self.backlog.appendleft(without_prefix(data, done))
                break
        return self.process_outgoing()

    cdef int end_of_callback(self) except -1:
        """Send the data written since the last flush, and OpenSSL's own records."""
        cdef int action
        self.flush_record()
        action = reaction(ON_WRITABLE, self.state)
        if action == IGNORE:
            return 0
        if action == SEND_BACKLOG and self._write_buffer_size > 0:
            return self.send_backlog(False)
        return self.process_outgoing()

    cdef int send_outgoing(self) except -1:
        cdef Engine tls = self.tls
        self.unsent = 0
        if self._ssl_writing_paused or self._transport is None:
            return self.release_cipher_buffer()
        if self.buffers.cipher_owner == <void*>self:
            return self.send_cipher_buffer()
        data = tls.take_output()
        if data:
            self._transport.write(data)
        return 0

    cdef int send_cipher_buffer(self) except -1:
        """Send the ciphertext in the loop's memory, without a copy if possible."""
        cdef LoopBuffers buffers = self.buffers
        cdef Engine tls = self.tls
        cdef Py_ssize_t size
        if self.below != <void*>self._transport:
            data = tls.take_output()
            buffers.cipher_owner = NULL
            if data:
                self._transport.write(data)
            return 0
        # The connection holds the memory until it is sent. Ciphertext that is created during the
        # call, even by this connection, goes into a BIO.
        size = tls.detach_output()
        try:
            if size > 0:
                self.write_below(self.below, buffers.cipher, size)
        finally:
            buffers.cipher_owner = NULL
        return 0

    cdef int process_outgoing(self) except -1:
        """Send the ciphertext, and pause or resume the application's writing.

        The application's callbacks may raise, so the state must be consistent before the call.
        """
        self.send_outgoing()
        if self._write_buffer_size > 0 or self._ssl_writing_paused or self._app_writing_paused:
            self.control_app_writing()
        return 0

    # Flow control.

    cdef object write_buffer_size(self):
        cdef Engine tls = self.tls
        if not self._ssl_writing_paused:
            return self._write_buffer_size
        return self._write_buffer_size + tls.output_size()

    def _get_write_buffer_size(self):
        return self.write_buffer_size()

    def _set_write_buffer_limits(self, high=None, low=None):
        self._outgoing_high_water, self._outgoing_low_water = flow_control_limits(
            high, low, HIGH_WATER_WRITE)

    cdef int control_app_writing(self) except -1:
        if self._app_protocol is None:
            return 0
        size = self.write_buffer_size()
        # An empty buffer never pauses. With asyncio.sslproto, a high limit of 0 pauses even then.
        if not self._app_writing_paused and size >= self._outgoing_high_water and size > 0:
            self._app_writing_paused = True
            if self.core is not None:
                mgl_count(&self.core.count.pauses, 1)
            call, name = self._app_protocol.pause_writing, 'pause_writing'
        elif self._app_writing_paused and size <= self._outgoing_low_water:
            self._app_writing_paused = False
            call, name = self._app_protocol.resume_writing, 'resume_writing'
        else:
            return 0
        try:
            call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler({
                'message': f'protocol.{name}() failed',
                'exception': exc,
                'transport': self._app_transport,
                'protocol': self,
            })
        return 0


def _flush_before_fork():
    """Pass the data that the present callbacks have written to the transports below, before a fork.

    The transport below sends it before the fork. Otherwise both the parent and the child would send
    it. With TLS over TLS the transport below is itself inside a callback. So this starts with the
    innermost connection and continues outwards.
    """
    cdef LoopBuffers buffers = known_buffers(events._get_running_loop())
    cdef void* delivering = NULL if buffers is None else buffers.delivering
    cdef Writing connection
    while delivering is not NULL:
        connection = <Writing>delivering
        connection.flush_pending()
        delivering = connection.outer


# Functions registered with `before` are called in reverse order of registration. So the loop's own
# function, which flushes the transports below, runs after this one.
os.register_at_fork(before=_flush_before_fork)
