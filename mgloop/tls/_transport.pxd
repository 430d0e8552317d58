# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.tls._transport: the transport that the application sees."""

from mgloop.tls._reading cimport Reading


cdef class SSLTransport:
    cdef dict __dict__              # programs and tests put methods of their own over ours
    cdef readonly object _loop
    cdef readonly Reading _ssl_protocol
    cdef public bint _closed
    cdef object __weakref__
