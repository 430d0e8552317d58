# SPDX-License-Identifier: GPL-2.0-only
"""Declare the engine that calls OpenSSL directly, and the choice of the engine."""

from mgloop.tls._engine cimport Engine
from mgloop.tls._module_engine cimport ModuleEngine
from mgloop.tls._openssl cimport mgl_pipe, mgl_ssl


cdef class DirectEngine(Engine):
    cdef ModuleEngine module        # repeats calls that do not return data, and can take over
    cdef object inner               # the `_ssl` object, which keeps the session alive
    cdef mgl_ssl* session
    cdef mgl_pipe* pipe             # the BIO between the session and its memory BIOs
    cdef Py_ssize_t overhead        # bytes by which recent records exceeded their plaintext

    cdef ModuleEngine through_module(self)


# Create the SSLObject of a connection and its engine. The arguments are those of
# ssl.SSLContext.wrap_bio(), which may raise any exception.
cdef Engine create_engine(object sslcontext, bint server_side, object server_hostname)
