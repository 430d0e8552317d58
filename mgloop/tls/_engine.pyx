# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The interface of the engines, and the framing of TLS records, which all engines share.

TLS sends application data in records. A record is a header of 5 bytes and an encrypted body of at
most 16 KiB of plaintext. OpenSSL can decrypt a record only after its last byte has arrived, and TCP
may cut the stream anywhere. Some records are for OpenSSL itself: those of the handshake, which
agrees on the keys, later session tickets and new keys, and at the end the alert close_notify, with
which the peer announces that no data will follow.

An engine converts received ciphertext to plaintext, and plaintext to ciphertext to send. It knows
records and OpenSSL, but not transports or protocols. OpenSSL reads ciphertext from one BIO
(OpenSSL's interface to the bytes below TLS) and writes ciphertext into another one. Both are
`ssl.MemoryBIO`s. There are these engines:

    Engine (here)                     the framing of records
      +- ModuleEngine (_module_engine)     calls the `_ssl` object of the standard library
      |    +- ObjectEngine                 calls the methods of a user's own kind of SSLObject
      +- DirectEngine (_direct_engine)     calls OpenSSL itself

The cryptography is that of the `ssl` module in each case, so contexts, session tickets, SNI and
ALPN callbacks and key logs are those of the standard library. create_engine() in _direct_engine.pyx
chooses the engine. A connection replaces its engine if the program traces TLS messages, or replaces
the SSLObject or a BIO, and when the connection has ended.

asyncio.sslproto calls SSLObject.read() until it raises. An engine is faster for these reasons:

* It splits the received bytes into TLS records by their headers, so it knows how many reads return
  data. A read without data costs an SSLWantReadError with a formatted message: 1.1 us, as much as
  decrypting 1 KiB.
* It decrypts all records of one read from the socket into one bytes object of about the right
  size. This saves the join and a 256 KiB allocation per read (uvloop #726).

The modules of the engines are native because they run per record. An engine is used on the thread
of its loop, and its connection keeps it alive. `_ssl` releases the GIL while it encrypts or
decrypts, but a direct call of OpenSSL does not (16 KiB take 4 us). So other threads can run during
a call, and the memory that is passed to it must belong to this engine's loop.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

from mgloop.tls._buffers cimport LoopBuffers, RECORD_PLAIN_MAX

cdef enum:
    FIRST_CONTENT_TYPE = 20         # change_cipher_spec
    LAST_CONTENT_TYPE = 24          # heartbeat
    RECORD_BODY_MAX = 16 * 1024 + 2048


cdef inline Py_ssize_t follow_record(
        Engine self, const unsigned char* data, Py_ssize_t size) noexcept:
    """Follow the present record through *data*, up to its end.

    Return the number of its bytes in *data*. `header_received` is 0 afterwards if the record is
    complete. Clear `framed` if the data is not TLS (or is an SSLv2 hello). OpenSSL decides then.
    """
    cdef Py_ssize_t used = 0, step
    while self.header_received < RECORD_HEADER_SIZE:
        if used == size:
            return used
        self.header[self.header_received] = data[used]
        self.header_received += 1
        used += 1
        if self.header_received == RECORD_HEADER_SIZE:
            self.body_size = self.body_missing = self.header[3] << 8 | self.header[4]
            if (self.header[0] < FIRST_CONTENT_TYPE or self.header[0] > LAST_CONTENT_TYPE
                    or self.header[1] != 3 or self.body_size > RECORD_BODY_MAX):
                self.framed = False
    step = min(self.body_missing, size - used)
    self.body_missing -= step
    if self.body_missing == 0:
        self.header_received = 0
    return used + step


cdef class Engine:
    """Follow the records of one TLS connection; subclasses decrypt and encrypt them.

    Invariant: while `framed` is true and `readable` is false, the incoming BIO holds no complete
    record, and OpenSSL holds no decrypted bytes. A read would not return anything then.
    """

    cdef int feed(self, char* data, Py_ssize_t size) except -1:
        """Put ciphertext into the incoming BIO, to be decrypted later or by the handshake."""
        cdef Py_ssize_t at = 0
        while at < size and self.framed:
            at += follow_record(self, <unsigned char*>data + at, size - at)
            if self.header_received == 0:
                self.readable = True
        if not self.framed:
            self.readable = True
        return self.store(data, size)

    cdef int feed_early_data(self) except -1:
        """Follow the records in data that was written to the BIO before the first feed()."""
        early = self.incoming.read()
        if early:
            self.feed(PyBytes_AS_STRING(early), PyBytes_GET_SIZE(early))
        return 0

    cdef int stop_framing(self) except -1:
        """Stop following records, because data may be written to the BIO directly.

        From now on only OpenSSL knows where a record begins.
        """
        self.framed = False
        self.readable = True
        return 0

    cdef int continue_from(self, Engine previous) except -1:
        """Take over the framing of the connection's previous engine.

        That engine may be in the middle of a call. So this one assumes that data is left.
        """
        self.framed = self.framed and previous.framed
        self.readable = True
        self.ended = previous.ended
        self.header_received = previous.header_received
        memcpy(self.header, previous.header, RECORD_HEADER_SIZE)
        self.body_size = previous.body_size
        self.body_missing = previous.body_missing
        return 0

    cdef Py_ssize_t partial_size(self) noexcept:
        """Return the number of bytes of the incomplete record that are in the BIO."""
        if self.header_received < RECORD_HEADER_SIZE:
            return self.header_received
        return RECORD_HEADER_SIZE + self.body_size - self.body_missing

    cdef object decrypt_received(self, char* data, Py_ssize_t size):
        """Decrypt the complete records of *data*, and store the beginning of the next one.

        Call it only if `framed` is true and `readable` is false. Return bytes, or None if the
        records contain no plaintext. Nothing refers to *data* after the return.
        """
        cdef Records records
        cdef Py_ssize_t at = 0
        records.count = records.first_end = records.end = records.capacity = 0
        while at < size:
            at += follow_record(self, <unsigned char*>data + at, size - at)
            if not self.framed:
                self.readable = True
                self.store(data, size)
                return None
            if self.header_received == 0:
                records.end = at
                records.capacity += self.body_size
                records.count += 1
                if records.count == 1:
                    records.first_end = at
        if records.count == 0:
            self.store(data, size)
            return None
        try:
            return self.decrypt_records(data, &records)
        finally:
            self.store(data + records.end, size - records.end)

    cdef bint drained(self) except -1:
        if not self.readable:
            return True
        if self.stored() > (self.partial_size() if self.framed else 0):
            return False
        if self.pending():
            return False
        if self.framed:
            self.readable = False
        return True

    cdef object decrypt_stored(self):
        # OpenSSL may already have read most of a record, of which only the end is in the BIO.
        cdef Py_ssize_t capacity = max(self.stored() + self.pending(), RECORD_PLAIN_MAX)
        cdef Py_ssize_t filled = 0
        cdef PyObject* plain = bytes_alloc(NULL, capacity)
        try:
            filled = self.decrypt_into(bytes_data(plain), capacity)
            return shortened(&plain, filled)
        finally:
            Py_CLEAR(plain)

    cdef Py_ssize_t decrypt_into(self, char* buffer, Py_ssize_t size) except -1:
        cdef Py_ssize_t filled = 0, got
        while filled < size:
            got = self.read(buffer + filled, size - filled)
            if got < 0:
                self.readable = not self.framed
                break
            if got == 0:
                self.ended = True
                break
            filled += got
            if self.drained():
                break
        return filled

    # The rest is implemented by the subclasses.

    cdef str name(self):
        raise NotImplementedError

    cdef Engine after_handshake(self):
        raise NotImplementedError

    cdef Engine with_sslobj(self, object sslobj):
        raise NotImplementedError

    cdef Engine with_outgoing(self, object bio):
        raise NotImplementedError

    cdef Engine release(self):
        raise NotImplementedError

    cdef object decrypt_records(self, char* data, const Records* records):
        raise NotImplementedError

    cdef Py_ssize_t read(self, char* buffer, Py_ssize_t size) except -2:
        raise NotImplementedError

    cdef int store(self, char* data, Py_ssize_t size) except -1:
        raise NotImplementedError

    cdef Py_ssize_t stored(self) except -1:
        raise NotImplementedError

    cdef Py_ssize_t pending(self) except -1:
        raise NotImplementedError

    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1:
        raise NotImplementedError

    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1:
        raise NotImplementedError

    cdef bint attach_output(self, LoopBuffers buffers) except -1:
        raise NotImplementedError

    cdef int copy_output(self) except -1:
        raise NotImplementedError

    cdef Py_ssize_t detach_output(self) noexcept:
        return 0

    cdef object take_output(self):
        raise NotImplementedError

    cdef Py_ssize_t output_size(self) except -1:
        raise NotImplementedError
