# SPDX-License-Identifier: GPL-2.0-only
"""Declare Engine, the interface of the objects that convert TLS records to plaintext and back."""

from mgloop.tls._buffers cimport LoopBuffers

cdef extern from "Python.h":
    # A bytes object that its creator fills and shortens. CPython permits this while the creator has
    # the only reference.
    ctypedef struct PyObject
    PyObject* bytes_alloc "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int bytes_resize "_PyBytes_Resize"(PyObject**, Py_ssize_t) except -1
    char* bytes_data "PyBytes_AS_STRING"(PyObject*) noexcept
    void Py_CLEAR(PyObject*)

# Shorten *plain* to *filled* bytes and return that object, or return None if *filled* is 0. The
# caller keeps its reference. *plain* is NULL after a MemoryError.
cdef inline object shortened(PyObject** plain, Py_ssize_t filled):
    if filled == 0:
        return None
    bytes_resize(plain, filled)
    return <object>plain[0]

cdef enum:
    RECORD_HEADER_SIZE = 5          # content type (1 byte), version (2), length of the body (2)

# The complete records in received data. The beginning of the first one may have arrived earlier.
cdef struct Records:
    Py_ssize_t count
    Py_ssize_t first_end            # offset of the end of the first record
    Py_ssize_t end                  # offset of the end of the last record
    Py_ssize_t capacity             # bytes of all bodies; their plaintext is normally shorter


cdef class Engine:
    cdef object sslobj              # the SSLObject that the user's SSLContext has created, or None
    cdef object incoming            # the MemoryBIO for received ciphertext
    cdef object outgoing            # the MemoryBIO for ciphertext to send

    # The framing of received records, and the header of the one that is incomplete.
    cdef bint framed                # all bytes received so far form TLS records
    cdef bint readable              # OpenSSL may return data without further ciphertext
    cdef bint ended                 # the close_notify of the peer has been read: no data can follow
    cdef int header_received        # bytes in `header`
    cdef unsigned char header[RECORD_HEADER_SIZE]
    cdef Py_ssize_t body_size       # bytes of the record's body, as its header announces
    cdef Py_ssize_t body_missing    # bytes of the body that have not been received

    # These methods are the same for all engines.
    cdef int feed(self, char* data, Py_ssize_t size) except -1
    cdef int feed_early_data(self) except -1
    cdef int stop_framing(self) except -1
    cdef int continue_from(self, Engine previous) except -1
    cdef Py_ssize_t partial_size(self) noexcept
    cdef object decrypt_received(self, char* data, Py_ssize_t size)

    # The methods below differ between the engines.

    # Return the name of the engine: 'openssl' if it is called directly, else 'ssl'.
    cdef str name(self)
    # Return the engine that takes over the connection: this one or another one. The caller holds a
    # reference to this engine until the call returns.
    cdef Engine after_handshake(self)
    cdef Engine with_sslobj(self, object sslobj)
    cdef Engine with_outgoing(self, object bio)
    # Release OpenSSL's objects. The engine that is returned cannot encrypt or decrypt.
    cdef Engine release(self)

    # From ciphertext to plaintext. Return True if OpenSSL cannot return data without more
    # ciphertext.
    cdef bint drained(self) except -1
    # Decrypt the complete records in *data*. Return bytes, or None if they have no plaintext.
    cdef object decrypt_records(self, char* data, const Records* records)
    # Decrypt the data in the incoming BIO. Return bytes, or None if it has no plaintext.
    # `readable` stays set if OpenSSL may return more.
    cdef object decrypt_stored(self)
    # Decrypt data of the incoming BIO into buffer[:size], which is not empty. Return the number of
    # bytes.
    cdef Py_ssize_t decrypt_into(self, char* buffer, Py_ssize_t size) except -1
    # Decrypt the rest of a record, or the next record, into buffer[:size]. Return the number of
    # bytes, 0 at the end of the stream, or -1 if OpenSSL needs more ciphertext.
    cdef Py_ssize_t read(self, char* buffer, Py_ssize_t size) except -2
    # Put ciphertext into the incoming BIO.
    cdef int store(self, char* data, Py_ssize_t size) except -1
    # Return the number of bytes of ciphertext in the incoming BIO.
    cdef Py_ssize_t stored(self) except -1
    # Return the number of bytes that OpenSSL has decrypted and not returned yet.
    cdef Py_ssize_t pending(self) except -1

    # From plaintext to ciphertext. Encrypt *data*, which is not empty. Return the number of bytes
    # consumed, 0 if OpenSSL has to read first.
    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1
    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1

    # The ciphertext to send is in the outgoing BIO, or in the loop's buffer while it is attached.
    # Let OpenSSL write into that buffer instead of the BIO. Return False if this is not possible at
    # present. It holds until take_output(), copy_output() or detach_output().
    cdef bint attach_output(self, LoopBuffers buffers) except -1
    # Detach the buffer, and copy the ciphertext in it into the outgoing BIO.
    cdef int copy_output(self) except -1
    # Detach the buffer, and return the number of bytes of ciphertext in it.
    cdef Py_ssize_t detach_output(self) noexcept
    # Return all ciphertext that has to be sent, as bytes, and forget it.
    cdef object take_output(self)
    # Return the number of bytes of that ciphertext.
    cdef Py_ssize_t output_size(self) except -1
