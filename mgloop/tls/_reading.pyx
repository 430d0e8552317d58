# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The read side of a TLS connection: from ciphertext to the application.

The semantics are those of asyncio.sslproto, including its limits and its use of get_buffer() and
eof_received(). The module is native because it runs per packet, on the thread of the loop.
_protocol.pyx describes the lifetime.

Plaintext is the application's data, and ciphertext is its encrypted form. The incoming BIO is a
memory buffer from which OpenSSL reads ciphertext, and into which the engine puts it.

Data is delivered in one of three ways. The usual one decrypts it directly from the buffer of
received ciphertext: if no earlier data is left, the application's protocol is not a
BufferedProtocol, and the application has not paused reading. Otherwise the ciphertext goes through
the incoming BIO, and is decrypted into bytes or into the buffer of a BufferedProtocol.

SystemExit and KeyboardInterrupt of a callback end run_forever(). The functions here that catch them
call resume_later(), which continues when the loop runs again. Until then the engine keeps the rest,
in its flags `readable` and `ended`, and in its BIO.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._engine cimport Engine
from mgloop.tls._states cimport APP_CON_MADE, APP_EOF, Connection, ON_MORE, READ, reaction
from mgloop.tls._writing cimport Writing

from asyncio import constants, sslproto
from asyncio.log import logger

from .. import _stdlib

cdef object flow_control_limits = sslproto.add_flowcontrol_defaults
cdef object HIGH_WATER_READ = constants.FLOW_CONTROL_HIGH_WATER_SSL_READ


@cython.nonecheck(True)
cdef class Reading(Writing):
    """Decrypt the data of a connection and deliver it to the application."""

    def _set_app_protocol(self, app_protocol):
        """Deliver data and events to *app_protocol* from now on."""
        self._app_protocol = app_protocol
        if isinstance(app_protocol, Connection):
            (<Connection>app_protocol).context = self.context      # TLS in TLS
        if _stdlib.is_buffered(app_protocol):
            self.app_get_buffer = app_protocol.get_buffer
            self.app_buffer_updated = app_protocol.buffer_updated
            self.app_is_buffered = True
        else:
            # Keep app_get_buffer and app_buffer_updated: the old protocol's get_buffer() may have
            # called this, and read_buffered() still uses them then.
            self.app_is_buffered = False

    cdef int forget_application(self) except -1:
        self._app_protocol = None
        self.app_get_buffer = self.app_buffer_updated = None
        self.app_is_buffered = False
        return 0

    cdef bint read_received(self, char* data, Py_ssize_t size) except -1:
        """Decrypt and deliver data[:size], if no earlier data is left and reading is not paused.

        Return True if the caller has to call advance(), because data or an error is left.
        """
        cdef Engine tls = self.tls
        cdef bint failed = False
        try:
            plain = tls.decrypt_received(data, size)
            if plain is not None:
                self.deliver(self._app_protocol.data_received, plain)
            if tls.ended:
                self.end_of_stream()
            self.end_of_callback()
            self.control_ssl_reading()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
            failed = True
        except (KeyboardInterrupt, SystemExit):
            self.resume_later()
            raise
        # If the data was compressed, more is left to read. If it was not TLS, OpenSSL reports the
        # error at the next read.
        return not failed and tls.readable and not tls.ended

    def _do_read(self):
        try:
            self.do_read()
        except (KeyboardInterrupt, SystemExit):
            self.resume_later()
            raise

    cdef bint do_read(self) except -1:
        """Deliver the data in the incoming BIO and in OpenSSL, unless reading is paused.

        Return True if the application's own buffer was too small for all of it.
        """
        cdef Engine tls = self.tls
        cdef bint cut_short = False
        if reaction(ON_MORE, self.state) != READ:
            return False
        try:
            if not self._app_reading_paused:
                if tls.ended:
                    self.end_of_stream()
                elif not tls.drained():
                    if self.app_is_buffered:
                        cut_short = self.read_buffered()
                    else:
                        self.read_copied()
            # Send even if the application has paused reading: the peer may wait for the last
            # message of the handshake.
            self.end_of_callback()
            self.control_ssl_reading()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return cut_short

    cdef int read_copied(self) except -1:
        cdef Engine tls = self.tls
        plain = tls.decrypt_stored()
        if plain is not None:
            self.deliver(self._app_protocol.data_received, plain)
        if tls.ended:
            self.end_of_stream()
        elif not tls.drained():
            self.defer(self._do_read)
        return 0

    cdef bint read_buffered(self) except -1:
        cdef Engine tls = self.tls
        cdef Py_buffer view
        cdef Py_ssize_t filled
        cdef bint cut_short = False
        buffer = self.app_get_buffer(self.read_buffer_size())
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except BufferError:
            # The ssl module raises the same error.
            raise TypeError("read() argument 2 must be read-write bytes-like object, "
                            f"not {type(buffer).__name__}") from None
        try:
            if view.len == 0:
                raise RuntimeError('get_buffer() returned an empty buffer')
            filled = tls.decrypt_into(<char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        if filled == view.len and not tls.drained():
            cut_short = True
            self.defer(self._do_read)
        if filled > 0:
            self.deliver(self.app_buffer_updated, filled)
        if tls.ended:
            self.end_of_stream()
        return cut_short

    cdef int end_of_stream(self) except -1:
        """Handle the peer's close_notify; repeated calls do not repeat any step."""
        self.call_eof_received()
        return self.start_shutdown()

    cdef int deliver(self, object callback, object data) except -1:
        cdef LoopBuffers buffers = self.buffers
        # True if this call is nested in another one of this connection: a peer in the same loop can
        # answer before the application's write() returns.
        cdef bint nested = self.delivering
        self.coalescing = not self.exposed
        if not nested:
            self.delivering = True
            self.outer = buffers.delivering
            buffers.delivering = <void *>self
        try:
            callback(data)
        except BaseException:
            # Send the data that the callback wrote before it failed, because asyncio would have
            # sent it already.
            if not nested:
                self.end_delivery(buffers)
            self.coalescing = False
            try:
                self.end_of_callback()
            except Exception as exc:
                self.fatal_error(exc, 'Fatal error on SSL protocol')
            raise
        if not nested:
            self.end_delivery(buffers)
        self.coalescing = False
        return self.flush_record()

    cdef void end_delivery(self, LoopBuffers buffers) noexcept:
        self.delivering = False
        buffers.delivering = self.outer

    cdef int call_eof_received(self) except -1:
        try:
            if self.app_state == APP_CON_MADE:
                self.app_state = APP_EOF
                if self._app_protocol.eof_received():
                    logger.warning('returning true from eof_received() '
                                   'has no effect when using ssl')
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self.fatal_error(exc, 'Error calling eof_received()')
        return 0

    # Flow control.

    cdef int resume_reading(self) except -1:
        if self._app_reading_paused:
            self._app_reading_paused = False
            self.defer(self._resume)
        return 0

    cdef object read_buffer_size(self):
        # The beginning of an incomplete record does not count, because pausing the transport below
        # would keep the rest of the record from arriving.
        return self.tls.stored() if self.tls.readable or self._app_reading_paused else 0

    def _get_read_buffer_size(self):
        return self.read_buffer_size()

    def _set_read_buffer_limits(self, high=None, low=None):
        self._incoming_high_water, self._incoming_low_water = flow_control_limits(
            high, low, HIGH_WATER_READ)

    cdef int control_ssl_reading(self) except -1:
        if self._transport is None:
            return 0
        if not self._ssl_reading_paused:
            if not self.tls.readable and not self._app_reading_paused:
                return 0
            size = self.read_buffer_size()
            if size >= self._incoming_high_water and size > 0:
                self._ssl_reading_paused = True
                self._transport.pause_reading()
        elif self.read_buffer_size() <= self._incoming_low_water:
            self._ssl_reading_paused = False
            self._transport.resume_reading()
        return 0
