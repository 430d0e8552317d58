# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The engine that calls OpenSSL itself, if _openssl.pyx has shown that this is safe.

OpenSSL then reads records from the memory that recv() has filled, and writes them to the memory
that send() reads. Calls of the `ssl` module would copy both through memory BIOs. A pipe
(port/openssl.h) is the BIO that makes this possible: it precedes the session's two memory BIOs, and
buffers can be attached to it and detached again.

If a direct call returns anything but data (the end of the stream, an error, an exception of a
callback), the engine repeats the call through a ModuleEngine for the same session. That finds
OpenSSL in the same state, and raises the exception that Python code expects. Handshakes, shutdowns
and the methods of `ssl_object` use the `ssl` module, too. The pipe remains in the session when the
ModuleEngine takes over the connection; without attached buffers it uses only the memory BIOs.

A callback of OpenSSL can run Python code that makes the connection replace this engine during a
call. The caller holds a reference to the engine then, and the engine holds the session.
_engine.pyx describes threads.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from mgloop.tls._buffers cimport CIPHER_SIZE, LoopBuffers
from mgloop.tls._engine cimport (
    Engine, Py_CLEAR, PyObject, Records, bytes_alloc, bytes_data, bytes_resize, shortened,
)
from mgloop.tls._module_engine cimport ModuleEngine, create_module_engine
from mgloop.tls._openssl cimport (
    MGL_WANT_READ, MGL_WANT_WRITE, insert_pipe, mgl_pipe, mgl_pipe_attach_in, mgl_pipe_detach_in,
    mgl_pipe_detach_out, mgl_ssl, mgl_stored, session_of,
)

import ssl

cdef object SSLContext = ssl.SSLContext
cdef object MemoryBIO = ssl.MemoryBIO

cdef enum:
    LARGEST_INT = 0x7fffffff


# The collector does not clear the object, because it must not release `inner` before the engine:
# `session` would point to freed memory. Each cycle contains the connection, which it does clear.
@cython.final
@cython.no_gc_clear
cdef class DirectEngine(Engine):
    """Encrypt and decrypt by calls of OpenSSL."""

    cdef str name(self):
        return 'openssl'

    cdef ModuleEngine through_module(self):
        """Return the ModuleEngine, which takes over the connection."""
        self.copy_output()
        self.module.continue_from(self)
        return self.module

    cdef Engine after_handshake(self):
        # A server-name callback may have chosen another context. If a program traces the messages
        # of that context (_msg_callback), only the ssl module reports exceptions of its callback.
        if self.inner.context._msg_callback is not None:
            return self.through_module()
        return self

    cdef Engine with_sslobj(self, object sslobj):
        return self.through_module().with_sslobj(sslobj)

    cdef Engine with_outgoing(self, object bio):
        return self.through_module().with_outgoing(bio)

    cdef Engine release(self):
        return self.through_module().release()

    # Decrypting.

    cdef object decrypt_records(self, char* data, const Records* records):
        """Decrypt the records without copying them into the BIO, which may hold the first bytes.

        The size of the plaintext is not known before. The engine assumes that the records exceed
        their plaintext by as much as the previous ones (padding and the authentication tag), and
        enlarges the bytes object if it is too small.
        """
        cdef mgl_pipe *pipe = self.pipe
        cdef Py_ssize_t expected = max(records.capacity - records.count * self.overhead, 1)
        cdef Py_ssize_t size = expected, filled = 0, got
        cdef PyObject* plain = bytes_alloc(NULL, size)
        mgl_pipe_attach_in(pipe, data, records.end)
        try:
            while True:
                got = self.read(bytes_data(plain) + filled, size - filled)
                if got <= 0:
                    self.ended = got == 0
                    break
                filled += got
                if filled < size:
                    if pipe.in_left == 0:
                        break
                elif pipe.in_left == 0 and not self.pending():
                    break
                elif size < records.capacity:
                    size = records.capacity
                    bytes_resize(&plain, size)
                else:
                    # The plaintext is longer than the ciphertext: compression. Read the rest later.
                    self.readable = True
                    break
            if self.ended:
                self.readable = True
            if filled not in (0, expected):
                self.overhead = max((records.capacity - filled) // records.count, 0)
            return shortened(&plain, filled)
        finally:
            Py_CLEAR(plain)
            if not mgl_pipe_detach_in(pipe):
                raise MemoryError

    cdef Py_ssize_t read(self, char* buffer, Py_ssize_t size) except -2:
        cdef int got = self.pipe.lib.SSL_read(self.session, buffer, <int>min(size, LARGEST_INT))
        if got > 0:
            return got
        if self.pipe.lib.SSL_get_error(self.session, got) == MGL_WANT_READ:
            return -1
        return self.module.read(buffer, size)

    cdef int store(self, char* data, Py_ssize_t size) except -1:
        if size > 0 and self.pipe.lib.BIO_write(self.pipe.stored_in, data, <int>size) != size:
            raise MemoryError
        return 0

    cdef Py_ssize_t stored(self) except -1:
        return mgl_stored(self.pipe.lib, self.pipe.stored_in)

    cdef Py_ssize_t pending(self) except -1:
        return self.pipe.lib.SSL_pending(self.session)

    # Encrypting.

    cdef Py_ssize_t encrypt_bytes(self, bytes data) except -1:
        return self.encrypt(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef Py_ssize_t encrypt(self, char* data, Py_ssize_t size) except -1:
        cdef int done = self.pipe.lib.SSL_write(self.session, data, <int>min(size, LARGEST_INT))
        if done > 0:
            return done
        done = self.pipe.lib.SSL_get_error(self.session, done)
        if done == MGL_WANT_READ or done == MGL_WANT_WRITE:
            return 0
        return self.module.encrypt(data, size)

    # The ciphertext to send.

    cdef bint attach_output(self, LoopBuffers buffers) except -1:
        # Ciphertext in the BIO has to be sent before.
        if mgl_stored(self.pipe.lib, self.pipe.stored_out) > 0:
            return False
        self.pipe.out = buffers.cipher_buffer()
        self.pipe.out_size = CIPHER_SIZE
        self.pipe.out_used = 0
        return True

    cdef int copy_output(self) except -1:
        if not mgl_pipe_detach_out(self.pipe):
            raise MemoryError
        return 0

    cdef Py_ssize_t detach_output(self) noexcept:
        cdef Py_ssize_t used = self.pipe.out_used
        self.pipe.out = NULL
        self.pipe.out_used = 0
        return used

    cdef object take_output(self):
        cdef mgl_pipe *pipe = self.pipe
        cdef Py_ssize_t size
        if pipe.out is not NULL:
            data = PyBytes_FromStringAndSize(pipe.out, pipe.out_used)
            self.detach_output()
            return data
        size = mgl_stored(pipe.lib, pipe.stored_out)
        data = PyBytes_FromStringAndSize(NULL, size)
        if size and pipe.lib.BIO_read(pipe.stored_out, PyBytes_AS_STRING(data), size) != size:
            raise MemoryError
        return data

    cdef Py_ssize_t output_size(self) except -1:
        return self.pipe.out_used + mgl_stored(self.pipe.lib, self.pipe.stored_out)


cdef Engine create_engine(object sslcontext, bint server_side, object server_hostname):
    cdef DirectEngine engine
    cdef mgl_ssl *session
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    sslobj = sslcontext.wrap_bio(incoming, outgoing, server_side=server_side,
                                 server_hostname=server_hostname)
    module = create_module_engine(sslobj, incoming, outgoing)
    # If a program traces the messages of the context (_msg_callback), only the ssl module reports
    # all of them.
    if (type(module) is not ModuleEngine or not isinstance(sslcontext, SSLContext)
            or sslcontext._msg_callback is not None):
        return module
    inner = sslobj._sslobj
    session = session_of(inner)
    if session is NULL:
        return module
    engine = DirectEngine.__new__(DirectEngine)
    engine.pipe = insert_pipe(session)
    engine.session = session
    engine.inner = inner
    engine.module = module
    engine.sslobj = sslobj
    engine.incoming = incoming
    engine.outgoing = outgoing
    engine.framed = True
    return engine
