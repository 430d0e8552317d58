# SPDX-License-Identifier: GPL-2.0-only
"""Declare the memory that all TLS connections of a loop share."""


cdef enum:
    RECEIVE_SIZE = 256 * 1024
    RECORD_PLAIN_MAX = 16 * 1024
    CIPHER_SIZE = 128 * 1024


cdef class LoopBuffers:
    # The pointers to connections are borrowed.
    cdef object receive_view        # memoryview for ciphertext that is received
    cdef Py_buffer receive_export   # an export of the same memory, which keeps it in place
    cdef object record              # bytearray that collects small writes into one record
    cdef Py_ssize_t record_used     # bytes in `record`
    cdef void* record_owner         # the connection that is filling `record`, or NULL
    cdef char* cipher               # ciphertext to send, or NULL before the first use
    cdef void* cipher_owner         # the connection whose ciphertext is in `cipher`, or NULL
    cdef void* delivering           # the innermost connection inside data_received(), or NULL

    # Return the memory for ciphertext that is received, and its size in bytes. Raise MemoryError.
    cdef char* receive_buffer(self, Py_ssize_t* size) except NULL
    # Return the memory for ciphertext to send, of CIPHER_SIZE bytes. Raise MemoryError.
    cdef char* cipher_buffer(self) except NULL


# Return the buffers of a loop, which are created at the first call. For a loop that is not
# mgloop's, return new ones at each call.
cdef LoopBuffers buffers_for(object loop)
# Return the buffers of a loop, or None if they have not been created.
cdef LoopBuffers known_buffers(object loop)
