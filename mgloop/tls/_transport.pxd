# SPDX-License-Identifier: GPL-2.0-only
"""Declare SSLTransport, the transport of a TLS connection that the application calls."""

from mgloop.tls._reading cimport Reading


cdef class SSLTransport:
    cdef dict __dict__              # programs and tests override methods on the instance
    cdef readonly object _loop
    cdef readonly Reading _ssl_protocol
    cdef public bint _closed
    cdef object __weakref__
