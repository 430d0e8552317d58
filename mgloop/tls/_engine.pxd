# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.tls._engine: records in, plaintext out, and back; nothing of asyncio."""


cdef class Engine:
    cdef object sslobj              # what the user's SSLContext made
    cdef object incoming
    cdef object outgoing
    cdef bint raw                   # read and write are those of _ssl itself
    cdef object sslobj_read
    cdef object sslobj_write
    cdef object sslobj_pending
    cdef object incoming_write
    cdef object take                # outgoing.read: everything that is to be sent, as bytes

    # Framing of the arriving records: what is known about the one that is incomplete.
    cdef bint framed                # every byte so far made sense as TLS records
    cdef bint carry                 # OpenSSL may have something to give without further input
    cdef bint ended                 # the peer's closing alert was met: nothing can follow
    cdef int header_seen
    cdef unsigned char header[5]
    cdef Py_ssize_t record_size
    cdef Py_ssize_t body_missing

    cdef int use(self, object sslobj) except -1
    cdef int forget(self) except -1
    cdef int recount(self) except -1
    cdef int tampered(self) except -1

    # Ciphertext in, plaintext out.
    cdef int feed(self, char* data, Py_ssize_t size) except -1
    cdef bint drained(self) except -1
    cdef object decrypt_arrival(self, char* data, Py_ssize_t size)
    cdef object decrypt_fed(self)
    cdef Py_ssize_t decrypt_into(self, char* room, Py_ssize_t size) except -1

    # Plaintext in. The number of bytes taken: 0 if OpenSSL has to read first.
    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1
    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1

    cdef Py_ssize_t frame(self, const unsigned char* data, Py_ssize_t size) noexcept
    cdef Py_ssize_t partial_size(self) noexcept
    cdef object decrypt_one(self, Py_ssize_t room)
    cdef object decrypt_many(self, char* data, Py_ssize_t first, Py_ssize_t whole,
                             Py_ssize_t room)
    cdef object read_all(self)
    cdef object read_until_again(self)
