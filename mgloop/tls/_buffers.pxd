# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.tls._buffers: the memory that all TLS connections of a loop share."""


cdef enum:
    ARRIVAL_SIZE = 256 * 1024
    RECORD_PLAIN_MAX = 16 * 1024
    CIPHER_SIZE = 128 * 1024


cdef class LoopBuffers:
    cdef object arrival_view        # memoryview: ciphertext as it comes from the socket
    cdef Py_buffer pin              # the same memory, kept in place
    cdef object record              # bytearray: small writes on their way into one record
    cdef Py_ssize_t record_used
    cdef void* record_owner         # connection that is filling `record`, not referenced
    cdef char* cipher               # what is encrypted and not sent, of connections called directly
    cdef void* cipher_owner         # connection whose that is, not referenced
    cdef void* delivering           # innermost connection inside data_received(), not referenced

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL
    cdef char* cipher_space(self) except NULL


cdef LoopBuffers buffers_for(object loop)
# Those of a loop that has any, or None.
cdef LoopBuffers known_buffers(object loop)
