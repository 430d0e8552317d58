# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.tls._engine: records in, plaintext out, and back; nothing of asyncio."""

from mgloop.tls._openssl cimport mgl_pipe, mgl_ssl


cdef class Engine:
    cdef object sslobj              # what the user's SSLContext made
    cdef object incoming
    cdef object outgoing
    cdef bint raw                   # read and write are those of _ssl itself
    cdef object sslobj_read
    cdef object sslobj_write
    cdef object sslobj_pending
    cdef object incoming_write
    cdef object outgoing_read

    # OpenSSL called directly, if `session` is not NULL: then `inner` keeps it.
    cdef object inner
    cdef mgl_ssl* session
    cdef mgl_pipe* pipe
    cdef Py_ssize_t overhead        # bytes of a record's body that were no plaintext, lately

    # Framing of the arriving records: what is known about the one that is incomplete.
    cdef bint framed                # every byte so far made sense as TLS records
    cdef bint carry                 # OpenSSL may have something to give without further input
    cdef bint ended                 # the peer's closing alert was met: nothing can follow
    cdef int header_seen
    cdef unsigned char header[5]
    cdef Py_ssize_t record_size
    cdef Py_ssize_t body_missing

    cdef int use(self, object sslobj) except -1
    cdef int call_directly(self) except -1
    cdef int indirectly(self) except -1
    cdef int look_at_context(self) except -1
    cdef str name(self)
    cdef int forget(self) except -1
    cdef int recount(self) except -1
    cdef int tampered(self) except -1

    # Ciphertext in, plaintext out.
    cdef int feed(self, char* data, Py_ssize_t size) except -1
    cdef bint drained(self) except -1
    cdef object decrypt_arrival(self, char* data, Py_ssize_t size)
    cdef object decrypt_fed(self)
    cdef Py_ssize_t decrypt_into(self, char* room, Py_ssize_t size) except -1

    # Ciphertext that is to be sent: all of it, as bytes; and how much that is.
    cdef object take(self)
    cdef Py_ssize_t unsent(self) except -1
    # Memory for it instead of the outgoing BIO, until it is taken, kept or given back (which says
    # how much is in it). False: not now.
    cdef bint lend(self, char* room, Py_ssize_t size) noexcept
    cdef int keep(self) except -1
    cdef Py_ssize_t give_back(self) noexcept

    # Plaintext in. The number of bytes taken: 0 if OpenSSL has to read first.
    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1
    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1

    cdef Py_ssize_t frame(self, const unsigned char* data, Py_ssize_t size) noexcept
    cdef Py_ssize_t partial_size(self) noexcept
    cdef int store(self, char* data, Py_ssize_t size) except -1
    cdef Py_ssize_t stored(self) except -1
    cdef Py_ssize_t pending(self) except -1
    cdef Py_ssize_t pull(self, char* room, Py_ssize_t size) except -2
    cdef Py_ssize_t push(self, char* data, Py_ssize_t size) except -1
    cdef Py_ssize_t offer(self, object data, Py_ssize_t size) except -1
    cdef object decrypt_lent(self, char* data, Py_ssize_t whole, Py_ssize_t room,
                             Py_ssize_t records)
    cdef object decrypt_one(self, Py_ssize_t room)
    cdef object decrypt_many(self, char* data, Py_ssize_t first, Py_ssize_t whole,
                             Py_ssize_t room)
    cdef object read_all(self)
    cdef object read_until_again(self)
    cdef Py_ssize_t read_into(self, char* room, Py_ssize_t size) except -1
