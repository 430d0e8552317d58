# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The engine below mgloop.tls._protocol: one `ssl.SSLObject` between two `ssl.MemoryBIO`s.

The engine converts received ciphertext to plaintext, and plaintext to ciphertext to send. It knows
records and OpenSSL, but not loops, transports or protocols. It is native because it runs per
record. The cryptography is that of the `ssl` module, so contexts, session tickets, SNI and ALPN
callbacks and key logs are those of the standard library.

asyncio.sslproto calls SSLObject.read() until it raises. The engine is faster for these reasons:

* It splits the received bytes into TLS records by their headers, so it knows how many reads return
  data. A read without data costs an SSLWantReadError with a formatted message: 1.1 us, as much as
  decrypting 1 KiB.
* It decrypts all records of one read from the socket into one bytes object of about the right
  size. This saves the join and a 256 KiB allocation per read (uvloop #726).
* It calls OpenSSL directly if _openssl.pyx has shown that this is safe. OpenSSL then reads records
  from the memory that recv() has filled, and writes them to the memory that send() reads. If a
  direct call returns anything but data (the end of the stream, an error, an exception of a
  callback), the engine repeats the call through the `ssl` module. That finds OpenSSL in the same
  state, and raises the exception that Python code expects.
* If it cannot call OpenSSL directly, it binds the methods of the `_ssl` object once and calls
  those. SSLObject.read() and .write() are Python functions, and cost a frame per record.

An engine is used on the thread of its loop, and its connection keeps it alive. `_ssl` releases the
GIL while it encrypts or decrypts, but a direct call does not (16 KiB take 4 us). So other threads
can run during a call, and the memory that is passed to it must belong to this engine's loop.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from mgloop.tls._openssl cimport (
    MGL_WANT_READ, MGL_WANT_WRITE, insert_pipe, mgl_openssl, mgl_pipe, mgl_pipe_keep_in,
    mgl_pipe_keep_out, mgl_pipe_lend_in, mgl_ssl, mgl_stored, session_of,
)

import _ssl
import ssl

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject* bytes_alloc "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int bytes_resize "_PyBytes_Resize"(PyObject**, Py_ssize_t) except -1
    char* bytes_data "PyBytes_AS_STRING"(PyObject*) noexcept
    void Py_CLEAR(PyObject*)

cdef object SSLContext = ssl.SSLContext
cdef object SSLObject = ssl.SSLObject
# These are read at import. If a tracing tool or a test replaces them later, use() notices that they
# differ, and calls the replacements.
cdef object ORIGINAL_READ = SSLObject.read
cdef object ORIGINAL_WRITE = SSLObject.write
cdef object ORIGINAL_PENDING = SSLObject.pending
cdef object RawObject = _ssl._SSLSocket
cdef object MemoryBIO = ssl.MemoryBIO
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)

cdef enum:
    HEADER_SIZE = 5
    FIRST_CONTENT_TYPE = 20         # change_cipher_spec
    LAST_CONTENT_TYPE = 24          # heartbeat
    RECORD_PLAIN_MAX = 16 * 1024
    RECORD_BODY_MAX = 16 * 1024 + 2048
    READ_SIZE = 256 * 1024          # the size in asyncio.sslproto's calls of SSLObject.read()
    # Most bytes of ciphertext in the incoming BIO at a time. A BIO never frees memory, so this
    # limits the memory that a connection keeps after a burst. 16 to 256 KiB were equally fast.
    FEED_SIZE = 64 * 1024
    LARGEST_INT = 0x7fffffff


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
    cdef Span piece = Span.__new__(Span)
    piece.start = start
    piece.size = size
    return piece


@cython.final
cdef class Engine:
    """Hold the SSLObject of one TLS connection and its two buffers.

    Invariant: while `framed` is true and `carry` is false, the incoming BIO holds no complete
    record, and OpenSSL holds no decrypted bytes. A read would not return anything then.
    """

    def __init__(self, sslcontext, bint server_side, server_hostname):
        self.framed = True
        self.incoming = MemoryBIO()
        self.outgoing = MemoryBIO()
        self.incoming_write = self.incoming.write
        self.outgoing_read = self.outgoing.read
        self.use(sslcontext.wrap_bio(self.incoming, self.outgoing, server_side=server_side,
                                     server_hostname=server_hostname))
        # If a program traces the messages of the context (_msg_callback), only the ssl module
        # reports all of them.
        if (self.raw and isinstance(sslcontext, SSLContext)
                and sslcontext._msg_callback is None):
            self.call_directly()

    cdef int use(self, object sslobj) except -1:
        self.indirectly()
        self.sslobj = sslobj
        kind = type(sslobj)
        inner = getattr(sslobj, '_sslobj', None)
        # An SSLContext may name a subclass of SSLObject that overrides these methods. Only the
        # methods of _ssl are known to return bytes, and to write only inside the memory that they
        # are given. So only they are given memory.
        self.raw = (type(inner) is RawObject and issubclass(kind, SSLObject)
                    and kind.read is ORIGINAL_READ and kind.write is ORIGINAL_WRITE
                    and kind.pending is ORIGINAL_PENDING)
        if self.raw:
            sslobj = inner
        self.sslobj_read = sslobj.read
        self.sslobj_write = sslobj.write
        self.sslobj_pending = getattr(sslobj, 'pending', None)
        return 0

    cdef int call_directly(self) except -1:
        cdef mgl_ssl *session
        inner = self.sslobj._sslobj
        session = session_of(inner)
        if session is not NULL:
            self.pipe = insert_pipe(session)
            self.session = session
            self.inner = inner
        return 0

    cdef int indirectly(self) except -1:
        """Call the ssl module from now on; a pipe, if there is one, stays below it."""
        if self.session is not NULL:
            self.keep()
            self.session = NULL
            self.pipe = NULL
            self.inner = None
        return 0

    cdef int check_context(self) except -1:
        """Call the ssl module if a server-name callback has chosen a context that is traced.

        Only the ssl module reports exceptions of that callback.
        """
        if self.session is not NULL and self.inner.context._msg_callback is not None:
            self.indirectly()
        return 0

    cdef str name(self):
        """Return the name of the engine: 'openssl' if it is called directly, else 'ssl'."""
        return 'ssl' if self.session is NULL else 'openssl'

    cdef int forget(self) except -1:
        """Release OpenSSL's objects; nothing may be encrypted or decrypted after this."""
        self.indirectly()
        self.sslobj = self.sslobj_read = self.sslobj_write = self.sslobj_pending = None
        return 0

    cdef int recount(self) except -1:
        """Follow the records in data that was written to the BIO before the first feed()."""
        early = self.incoming.read()
        if early:
            self.feed(PyBytes_AS_STRING(early), PyBytes_GET_SIZE(early))
        return 0

    cdef int tampered(self) except -1:
        """Stop following records, because data may be written to the BIO directly.

        From now on only OpenSSL knows where a record begins.
        """
        self.framed = False
        self.carry = True
        return 0

    # Decrypting.

    cdef Py_ssize_t frame(self, const unsigned char* data, Py_ssize_t size) noexcept:
        """Follow the present record through *data*, up to its end.

        Return the number of its bytes in *data*. `header_seen` is 0 afterwards if the record is
        complete. Clear `framed` if the data is not TLS (or is an SSLv2 hello). OpenSSL decides
        then.
        """
        cdef Py_ssize_t used = 0, step
        while self.header_seen < HEADER_SIZE:
            if used == size:
                return used
            self.header[self.header_seen] = data[used]
            self.header_seen += 1
            used += 1
            if self.header_seen == HEADER_SIZE:
                self.record_size = self.body_missing = self.header[3] << 8 | self.header[4]
                if (self.header[0] < FIRST_CONTENT_TYPE or self.header[0] > LAST_CONTENT_TYPE
                        or self.header[1] != 3 or self.record_size > RECORD_BODY_MAX):
                    self.framed = False
        step = min(self.body_missing, size - used)
        self.body_missing -= step
        if self.body_missing == 0:
            self.header_seen = 0
        return used + step

    cdef Py_ssize_t partial_size(self) noexcept:
        """Return the number of bytes of the incomplete record that are in the BIO."""
        if self.header_seen < HEADER_SIZE:
            return self.header_seen
        return HEADER_SIZE + self.record_size - self.body_missing

    cdef int feed(self, char* data, Py_ssize_t size) except -1:
        """Put ciphertext into the incoming BIO, to be decrypted later or by the handshake."""
        cdef Py_ssize_t at = 0
        while at < size and self.framed:
            at += self.frame(<unsigned char*>data + at, size - at)
            if self.header_seen == 0:
                self.carry = True
        if not self.framed:
            self.carry = True
        return self.store(data, size)

    cdef bint drained(self) except -1:
        """Return True if OpenSSL cannot return data without more ciphertext."""
        if not self.carry:
            return True
        if not self.raw:
            return False
        if self.stored() > (self.partial_size() if self.framed else 0):
            return False
        if self.pending():
            return False
        if self.framed:
            self.carry = False
        return True

    cdef object decrypt_arrival(self, char* data, Py_ssize_t size):
        """Decrypt the complete records of *data*, and store the beginning of the next one.

        Call it only if `raw` and `framed` are true and `carry` is false. Return bytes, or None if
        they contain no plaintext. Nothing refers to *data* after the return.
        """
        cdef Py_ssize_t at = 0, first = 0, whole = 0, room = 0, records = 0
        while at < size:
            at += self.frame(<unsigned char*>data + at, size - at)
            if not self.framed:
                self.carry = True
                self.store(data, size)
                return None
            if self.header_seen == 0:
                whole = at
                room += self.record_size
                records += 1
                if records == 1:
                    first = at
        if records and self.session is not NULL:
            try:
                return self.decrypt_lent(data, whole, room, records)
            finally:
                self.store(data + whole, size - whole)
        if records > 1:
            try:
                return self.decrypt_many(data, first, whole, room)
            finally:
                self.store(data + whole, size - whole)
        self.store(data, size)
        return self.decrypt_one(room) if records else None

    cdef object decrypt_lent(self, char* data, Py_ssize_t whole, Py_ssize_t room,
                             Py_ssize_t records):
        """Decrypt the *records* in data[:whole] without copying them into the BIO.

        The beginning of the first one may be in the BIO already. Return bytes, or None if the
        records contained no application data.
        """
        cdef object _inner = self.inner      # callbacks of OpenSSL may call forget()
        cdef mgl_pipe *pipe = self.pipe
        cdef Py_ssize_t guess = max(room - records * self.overhead, 1)
        cdef Py_ssize_t size = guess, filled = 0, got
        cdef PyObject* plain = bytes_alloc(NULL, size)
        mgl_pipe_lend_in(pipe, data, whole)
        try:
            while True:
                got = self.pull(bytes_data(plain) + filled, size - filled)
                if got <= 0:
                    self.ended = got == 0
                    break
                filled += got
                if filled < size:
                    if pipe.in_left == 0:
                        break
                elif pipe.in_left == 0 and not self.pending():
                    break
                elif size < room:
                    size = room
                    bytes_resize(&plain, size)
                else:
                    # The plaintext is longer than the ciphertext: compression. Read the rest later.
                    self.carry = True
                    break
            if self.ended:
                self.carry = True
            if filled == 0:
                return None
            if filled != guess:
                self.overhead = max((room - filled) // records, 0)
            if filled < size:
                bytes_resize(&plain, filled)
            result = <object>plain
            return result
        finally:
            Py_CLEAR(plain)
            if not mgl_pipe_keep_in(pipe):
                raise MemoryError

    cdef object decrypt_one(self, Py_ssize_t room):
        cdef bint again = False
        try:
            plain = self.sslobj_read(max(room, 1))
        except AGAIN:
            # The record was for OpenSSL itself: a session ticket or a key update.
            again = True
        if again:
            return None
        if not plain:
            self.ended = self.carry = True
            return None
        if PyBytes_GET_SIZE(plain) >= room:
            # The plaintext may be longer than the ciphertext (compression). More may be pending.
            self.carry = True
        return plain

    cdef object decrypt_many(self, char* data, Py_ssize_t first, Py_ssize_t whole,
                             Py_ssize_t room):
        """Decrypt the records in data[:whole] one after the other into one bytes object.

        *first* is the end of the first record in *data*; its header may have been received earlier.
        Return None if the records contained no application data.
        """
        cdef Py_ssize_t at = 0, end = first, filled = 0, count = 1
        cdef const unsigned char* header
        cdef PyObject* plain = bytes_alloc(NULL, room)
        try:
            while True:
                while end < whole and end - at < FEED_SIZE:
                    header = <const unsigned char*>data + end
                    end += HEADER_SIZE + (header[3] << 8 | header[4])
                    count += 1
                self.incoming_write(span(data + at, end - at))
                at = end
                try:
                    while count > 0 and filled < room:
                        got = <Py_ssize_t>self.sslobj_read(
                            room - filled, span(bytes_data(plain) + filled, room - filled))
                        if got == 0:
                            self.ended = True
                            break
                        filled += got
                        count -= 1
                except AGAIN:
                    # Some of the records were for OpenSSL itself: session tickets or key updates.
                    pass
                count = 0
                if at == whole:
                    break
                if self.ended or filled == room:
                    self.incoming_write(span(data + at, whole - at))
                    break
            if filled == room or self.ended:
                self.carry = True
            if filled == 0:
                return None
            bytes_resize(&plain, filled)
            result = <object>plain
            return result
        finally:
            Py_CLEAR(plain)

    cdef object decrypt_fed(self):
        """Decrypt the data in the BIO and return bytes, or None without plaintext.

        `carry` stays set if OpenSSL may return more data.
        """
        return self.read_all() if self.raw else self.read_until_again()

    cdef object read_all(self):
        # OpenSSL may already have read most of a record, of which only the end is in the BIO.
        cdef Py_ssize_t room = max(self.stored() + self.pending(), RECORD_PLAIN_MAX)
        cdef Py_ssize_t filled = 0
        cdef PyObject* plain = bytes_alloc(NULL, room)
        try:
            filled = self.decrypt_into(bytes_data(plain), room)
            if filled == 0:
                return None
            bytes_resize(&plain, filled)
            result = <object>plain
            return result
        finally:
            Py_CLEAR(plain)

    cdef object read_until_again(self):
        """Read from a user's subclass of SSLObject by its documented methods.

        Memory is not shared with it.
        """
        chunks = []
        try:
            while True:
                chunk = self.sslobj_read(READ_SIZE)
                if not chunk:
                    self.ended = True
                    break
                chunks.append(chunk)
        except AGAIN:
            pass
        return b''.join(chunks) if chunks else None

    cdef Py_ssize_t decrypt_into(self, char* room, Py_ssize_t size) except -1:
        """Decrypt data of the BIO into room[:size], which is not empty.

        Return the number of bytes.
        """
        cdef Py_ssize_t filled = 0, got
        if not self.raw:
            return self.read_into(room, size)
        while filled < size:
            got = self.pull(room + filled, size - filled)
            if got < 0:
                self.carry = not self.framed
                break
            if got == 0:
                self.ended = True
                break
            filled += got
            if self.drained():
                break
        return filled

    cdef Py_ssize_t read_into(self, char* room, Py_ssize_t size) except -1:
        """Do the work of decrypt_into() for a user's subclass of SSLObject."""
        cdef Py_ssize_t filled = 0, got
        try:
            while filled < size:
                chunk = bytes(memoryview(self.sslobj_read(size - filled)))
                got = min(PyBytes_GET_SIZE(chunk), size - filled)
                memcpy(room + filled, PyBytes_AS_STRING(chunk), got)
                if got == 0:
                    self.ended = True
                    break
                filled += got
        except AGAIN:
            self.carry = True
        return filled

    # Calls of OpenSSL, directly or through the ssl module.

    cdef int store(self, char* data, Py_ssize_t size) except -1:
        """Put ciphertext into the incoming BIO."""
        if size <= 0:
            return 0
        if self.session is NULL:
            self.incoming_write(span(data, size))
        elif self.pipe.lib.BIO_write(self.pipe.stored_in, data, <int>size) != size:
            raise MemoryError
        return 0

    cdef Py_ssize_t stored(self) except -1:
        """Return the number of bytes of ciphertext in the incoming BIO."""
        if self.session is NULL:
            return self.incoming.pending
        return mgl_stored(self.pipe.lib, self.pipe.stored_in)

    cdef Py_ssize_t pending(self) except -1:
        """Return the number of bytes that OpenSSL has decrypted and not returned yet."""
        if self.session is NULL:
            return self.sslobj_pending()
        return self.pipe.lib.SSL_pending(self.session)

    cdef Py_ssize_t pull(self, char* room, Py_ssize_t size) except -2:
        """Decrypt the rest of a record, or the next record, into room[:size].

        Return the number of bytes, 0 at the end of the stream, or -1 if OpenSSL needs more
        ciphertext. Call it only if `raw` is true.
        """
        cdef object _inner = self.inner      # callbacks of OpenSSL may call forget()
        cdef mgl_ssl *session = self.session
        cdef const mgl_openssl *lib
        cdef int got
        if session is not NULL:
            lib = self.pipe.lib
            got = lib.SSL_read(session, room, <int>min(size, LARGEST_INT))
            if got > 0:
                return got
            if lib.SSL_get_error(session, got) == MGL_WANT_READ:
                return -1
        try:
            return self.sslobj_read(size, span(room, size))
        except AGAIN:
            pass
        return -1

    cdef Py_ssize_t push(self, char* data, Py_ssize_t size) except -1:
        """Encrypt data[:size]; return the number of bytes consumed. Requires `raw`."""
        cdef object _inner = self.inner
        cdef mgl_ssl *session = self.session
        cdef const mgl_openssl *lib
        cdef int done
        if session is not NULL:
            lib = self.pipe.lib
            done = lib.SSL_write(session, data, <int>min(size, LARGEST_INT))
            if done > 0:
                return done
            done = lib.SSL_get_error(session, done)
            if done == MGL_WANT_READ or done == MGL_WANT_WRITE:
                return 0
        return self.offer(span(data, size), size)

    cdef Py_ssize_t offer(self, object data, Py_ssize_t size) except -1:
        """Encrypt *data* through the ssl module; return the number of bytes consumed, 0 to *size*.

        The result is clamped, because a user's subclass of SSLObject may return anything.
        """
        try:
            return max(0, min(<Py_ssize_t>self.sslobj_write(data), size))
        except AGAIN:
            pass
        return 0

    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1:
        """Encrypt *data*, which is not empty, as encrypt() does but without creating a Span."""
        if self.session is not NULL:
            return self.push(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return self.offer(data, PyBytes_GET_SIZE(data))

    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1:
        """Encrypt data[:size], which is not empty."""
        if self.raw:
            return self.push(data, size)
        return self.offer(PyBytes_FromStringAndSize(data, size), size)

    cdef bint lend(self, char* room, Py_ssize_t size) noexcept:
        if self.session is NULL or mgl_stored(self.pipe.lib, self.pipe.stored_out) > 0:
            return False
        self.pipe.out = room
        self.pipe.out_size = size
        self.pipe.out_used = 0
        return True

    cdef int keep(self) except -1:
        if self.session is not NULL and not mgl_pipe_keep_out(self.pipe):
            raise MemoryError
        return 0

    cdef Py_ssize_t give_back(self) noexcept:
        cdef Py_ssize_t used
        if self.session is NULL:
            return 0
        used = self.pipe.out_used
        self.pipe.out = NULL
        self.pipe.out_used = 0
        return used

    cdef Py_ssize_t unsent(self) except -1:
        if self.session is NULL:
            return self.outgoing.pending
        return self.pipe.out_used + mgl_stored(self.pipe.lib, self.pipe.stored_out)

    cdef object take(self):
        cdef mgl_pipe *pipe = self.pipe
        cdef Py_ssize_t size
        if self.session is NULL:
            return self.outgoing_read()
        if pipe.out is not NULL:
            data = PyBytes_FromStringAndSize(pipe.out, pipe.out_used)
            self.give_back()
            return data
        size = mgl_stored(pipe.lib, pipe.stored_out)
        data = PyBytes_FromStringAndSize(NULL, size)
        if size and pipe.lib.BIO_read(pipe.stored_out, PyBytes_AS_STRING(data), size) != size:
            raise MemoryError
        return data
