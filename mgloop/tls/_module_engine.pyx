# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The engines that encrypt and decrypt through the `ssl` module of the standard library.

ModuleEngine binds the methods of the `_ssl` object in an `ssl.SSLObject` once, and calls those.
SSLObject.read() and .write() are Python functions that only call them, and cost a frame per record.
Only the methods of `_ssl` are known to return bytes, and to write only inside the memory that they
are given. So only they are given memory.

A context may create objects of another class, or a program may have replaced methods of SSLObject.
ObjectEngine calls the documented methods of such an object, and shares no memory with it.

Both raise the exceptions of the `ssl` module. SSLWantReadError is not an error: it means that
OpenSSL needs more ciphertext. _engine.pyx describes threads and lifetime.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._engine cimport (
    Engine, Py_CLEAR, PyObject, RECORD_HEADER_SIZE, Records, bytes_alloc, bytes_data, shortened,
)

import _ssl
import ssl

cdef object SSLObject = ssl.SSLObject
# These are read at import. If a tracing tool or a test replaces them later, create_module_engine()
# notices that they differ, and returns an ObjectEngine, which calls the replacements.
cdef object ORIGINAL_READ = SSLObject.read
cdef object ORIGINAL_WRITE = SSLObject.write
cdef object ORIGINAL_PENDING = SSLObject.pending
cdef object RawObject = _ssl._SSLSocket
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)

cdef enum:
    READ_SIZE = 256 * 1024          # the size in asyncio.sslproto's calls of SSLObject.read()
    # Most bytes of ciphertext in the incoming BIO at a time. A BIO never frees memory, so this
    # limits the memory that a connection keeps after a burst. 16 to 256 KiB were equally fast.
    FEED_SIZE = 64 * 1024


@cython.final
@cython.freelist(8)
cdef class Span:
    """Export memory to a method of `_ssl` by the buffer protocol, for the duration of one call.

    It costs half as much as a slice of a memoryview. Use it only for methods that do not keep a
    reference to it.
    """

    cdef char* start
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, 0, flags)


cdef inline Span span(char* start, Py_ssize_t size):
    cdef Span result = Span.__new__(Span)
    result.start = start
    result.size = size
    return result


cdef class ModuleEngine(Engine):
    """Encrypt and decrypt through the methods of an `_ssl._SSLSocket`."""

    cdef str name(self):
        return 'ssl'

    cdef Engine after_handshake(self):
        return self

    cdef Engine with_sslobj(self, object sslobj):
        cdef ModuleEngine engine = create_module_engine(sslobj, self.incoming, self.outgoing)
        engine.continue_from(self)
        return engine

    cdef Engine with_outgoing(self, object bio):
        self.outgoing = bio
        self.outgoing_read = bio.read
        return self

    cdef Engine release(self):
        self.sslobj = self.sslobj_read = self.sslobj_write = self.sslobj_pending = None
        return self

    # Decrypting.

    cdef object decrypt_records(self, char* data, const Records* records):
        """Decrypt the records one after the other.

        The memory of a single record's plaintext is allocated by `_ssl`. The plaintext of several
        records is put into one bytes object.
        """
        cdef Py_ssize_t at = 0, end = records.first_end, filled = 0, count = 1
        cdef const unsigned char* header
        cdef PyObject* plain
        if records.count == 1:
            self.store(data, records.end)
            return self.decrypt_one(records.capacity)
        plain = bytes_alloc(NULL, records.capacity)
        try:
            while True:
                while end < records.end and end - at < FEED_SIZE:
                    header = <const unsigned char*>data + end
                    end += RECORD_HEADER_SIZE + (header[3] << 8 | header[4])
                    count += 1
                self.store(data + at, end - at)
                at = end
                try:
                    while count > 0 and filled < records.capacity:
                        got = <Py_ssize_t>self.sslobj_read(
                            records.capacity - filled,
                            span(bytes_data(plain) + filled, records.capacity - filled))
                        if got == 0:
                            self.ended = True
                            break
                        filled += got
                        count -= 1
                except AGAIN:
                    # Some of the records were for OpenSSL itself: session tickets or key updates.
                    pass
                count = 0
                if at == records.end:
                    break
                if self.ended or filled == records.capacity:
                    self.store(data + at, records.end - at)
                    break
            if filled == records.capacity or self.ended:
                self.readable = True
            return shortened(&plain, filled)
        finally:
            Py_CLEAR(plain)

    cdef object decrypt_one(self, Py_ssize_t capacity):
        """Decrypt the one record in the BIO, which has at most *capacity* bytes of plaintext."""
        cdef bint again = False
        try:
            plain = self.sslobj_read(max(capacity, 1))
        except AGAIN:
            # The record was for OpenSSL itself: a session ticket or a key update.
            again = True
        if again:
            return None
        if not plain:
            self.ended = self.readable = True
            return None
        if PyBytes_GET_SIZE(plain) >= capacity:
            # The plaintext may be longer than the ciphertext (compression). More may be pending.
            self.readable = True
        return plain

    cdef Py_ssize_t read(self, char* buffer, Py_ssize_t size) except -2:
        try:
            return self.sslobj_read(size, span(buffer, size))
        except AGAIN:
            pass
        return -1

    cdef int store(self, char* data, Py_ssize_t size) except -1:
        if size > 0:
            self.incoming_write(span(data, size))
        return 0

    cdef Py_ssize_t stored(self) except -1:
        return self.incoming.pending

    cdef Py_ssize_t pending(self) except -1:
        return self.sslobj_pending()

    # Encrypting.

    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1:
        return self.write_object(data, PyBytes_GET_SIZE(data))

    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1:
        return self.write_object(span(data, size), size)

    cdef Py_ssize_t write_object(self, object data, Py_ssize_t size) except -1:
        """Encrypt *data*, a bytes-like object; return the number of bytes consumed, 0 to *size*.

        The result is clamped, because a user's subclass of SSLObject may return anything.
        """
        try:
            return max(0, min(<Py_ssize_t>self.sslobj_write(data), size))
        except AGAIN:
            pass
        return 0

    # The ciphertext to send. `_ssl` writes into the BIO only.

    cdef bint attach_output(self, LoopBuffers buffers) except -1:
        return False

    cdef int copy_output(self) except -1:
        return 0

    cdef Py_ssize_t detach_output(self) noexcept:
        return 0

    cdef object take_output(self):
        return self.outgoing_read()

    cdef Py_ssize_t output_size(self) except -1:
        return self.outgoing.pending


@cython.final
cdef class ObjectEngine(ModuleEngine):
    """Encrypt and decrypt through the documented methods of an object that is like SSLObject.

    It calls read() until that raises SSLWantReadError, as asyncio does, because nothing is known
    about the reads that return data. So it does not follow records: `framed` is always false.
    """

    cdef bint drained(self) except -1:
        return not self.readable

    cdef object decrypt_stored(self):
        chunks = []
        try:
            while True:
                chunk = self.sslobj_read(READ_SIZE)
                if not chunk:
                    self.ended = True
                    break
                chunks.append(chunk)
        except AGAIN:
            self.readable = False
        return b''.join(chunks) if chunks else None

    cdef Py_ssize_t decrypt_into(self, char* buffer, Py_ssize_t size) except -1:
        cdef Py_ssize_t filled = 0, got
        try:
            while filled < size:
                chunk = bytes(memoryview(self.sslobj_read(size - filled)))
                got = min(PyBytes_GET_SIZE(chunk), size - filled)
                memcpy(buffer + filled, PyBytes_AS_STRING(chunk), got)
                if got == 0:
                    self.ended = True
                    break
                filled += got
        except AGAIN:
            self.readable = False
        return filled

    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1:
        return self.write_object(PyBytes_FromStringAndSize(data, size), size)


cdef ModuleEngine create_module_engine(object sslobj, object incoming, object outgoing):
    cdef ModuleEngine engine
    kind = type(sslobj)
    inner = getattr(sslobj, '_sslobj', None)
    if (type(inner) is RawObject and issubclass(kind, SSLObject)
            and kind.read is ORIGINAL_READ and kind.write is ORIGINAL_WRITE
            and kind.pending is ORIGINAL_PENDING):
        engine = ModuleEngine.__new__(ModuleEngine)
        engine.framed = True
        engine.sslobj_read = inner.read
        engine.sslobj_write = inner.write
        engine.sslobj_pending = inner.pending
    else:
        engine = ObjectEngine.__new__(ObjectEngine)
        engine.sslobj_read = sslobj.read
        engine.sslobj_write = sslobj.write
    engine.sslobj = sslobj
    engine.incoming = incoming
    engine.outgoing = outgoing
    engine.incoming_write = incoming.write
    engine.outgoing_read = outgoing.read
    return engine
