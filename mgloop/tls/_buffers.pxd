# SPDX-License-Identifier: GPL-2.0-only
"""Declare the memory that all TLS connections of a loop share."""


cdef enum:
    ARRIVAL_SIZE = 256 * 1024
    RECORD_PLAIN_MAX = 16 * 1024
    CIPHER_SIZE = 128 * 1024


cdef class LoopBuffers:
    # The pointers to connections are borrowed.
    cdef object arrival_view        # memoryview for ciphertext that is received
    cdef Py_buffer pin              # an export of the same memory, which keeps it in place
    cdef object record              # bytearray that collects small writes into one record
    cdef Py_ssize_t record_used     # bytes in `record`
    cdef void* record_owner         # the connection that is filling `record`, or NULL
    cdef char* cipher               # ciphertext to send, or NULL before the first use
    cdef void* cipher_owner         # the connection whose ciphertext is in `cipher`, or NULL
    cdef void* delivering           # the innermost connection inside data_received(), or NULL

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL
    cdef char* cipher_space(self) except NULL


# Return the buffers of a loop, which are created at the first call. For a loop that is not
# mgloop's, return new ones at each call.
cdef LoopBuffers buffers_for(object loop)
# Return the buffers of a loop, or None if they have not been created.
cdef LoopBuffers known_buffers(object loop)
