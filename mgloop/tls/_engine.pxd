# SPDX-License-Identifier: GPL-2.0-only
"""Declare the engine, which converts TLS records to plaintext and back, without asyncio."""

from mgloop.tls._openssl cimport mgl_pipe, mgl_ssl


cdef class Engine:
    cdef object sslobj              # the SSLObject that the user's SSLContext has created
    cdef object incoming            # the MemoryBIO for received ciphertext
    cdef object outgoing            # the MemoryBIO for ciphertext to send
    cdef bint raw                   # the methods below are those of the `_ssl` object in `sslobj`
    cdef object sslobj_read
    cdef object sslobj_write
    cdef object sslobj_pending
    cdef object incoming_write
    cdef object outgoing_read

    # OpenSSL is called directly if `session` is not NULL.
    cdef object inner               # the `_ssl` object, which keeps the session alive, or None
    cdef mgl_ssl* session
    cdef mgl_pipe* pipe             # the BIO between the session and its memory BIOs
    cdef Py_ssize_t overhead        # bytes by which recent records exceeded their plaintext

    # The framing of received records, and the header of the one that is incomplete.
    cdef bint framed                # all bytes received so far form TLS records
    cdef bint carry                 # OpenSSL may return data without further input
    cdef bint ended                 # the close_notify of the peer has been read: no data can follow
    cdef int header_seen            # bytes in `header`
    cdef unsigned char header[5]
    cdef Py_ssize_t record_size     # bytes of the record's body, as its header announces
    cdef Py_ssize_t body_missing    # bytes of the body that have not been received

    cdef int use(self, object sslobj) except -1
    cdef int call_directly(self) except -1
    cdef int indirectly(self) except -1
    cdef int check_context(self) except -1
    cdef str name(self)
    cdef int forget(self) except -1
    cdef int recount(self) except -1
    cdef int tampered(self) except -1

    # From ciphertext to plaintext.
    cdef int feed(self, char* data, Py_ssize_t size) except -1
    cdef bint drained(self) except -1
    cdef object decrypt_arrival(self, char* data, Py_ssize_t size)
    cdef object decrypt_fed(self)
    cdef Py_ssize_t decrypt_into(self, char* room, Py_ssize_t size) except -1

    # Return all ciphertext that has to be sent, as bytes, and forget it.
    cdef object take(self)
    # Return the number of bytes of that ciphertext.
    cdef Py_ssize_t unsent(self) except -1
    # Let OpenSSL write ciphertext into room[:size] instead of the outgoing BIO. This holds until
    # take(), keep() or give_back(). Return False if it is not possible at present.
    cdef bint lend(self, char* room, Py_ssize_t size) noexcept
    # Copy the ciphertext in the lent memory into the outgoing BIO, and no longer use the memory.
    cdef int keep(self) except -1
    # No longer use the lent memory, and return the number of bytes of ciphertext in it.
    cdef Py_ssize_t give_back(self) noexcept

    # Encrypt plaintext. Return the number of bytes consumed, 0 if OpenSSL has to read first.
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
