# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The read side of a TLS connection: from ciphertext to the application.

The semantics are those of asyncio.sslproto, its limits, get_buffer() and eof_received() included.
It is native because it runs per packet.

Data is delivered in three ways: the usual one, straight from the arrival buffer, as long as
nothing is left from before and the application takes bytes and is not paused; else from the
incoming BIO, as bytes or into the application's own buffer. SystemExit and KeyboardInterrupt out
of a callback end run_forever(): whoever calls in here then has again() see to the rest, which the
engine still knows (`carry`, `ended`).
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from mgloop.tls._buffers cimport LoopBuffers
from mgloop.tls._states cimport APP_CON_MADE, APP_EOF, Connection, ON_MORE, READ, reaction
from mgloop.tls._writing cimport Writing

from asyncio import constants, sslproto
from asyncio.log import logger

from .. import _stdlib

cdef object flow_control_limits = sslproto.add_flowcontrol_defaults
cdef object HIGH_WATER_READ = constants.FLOW_CONTROL_HIGH_WATER_SSL_READ


@cython.nonecheck(True)
cdef class Reading(Writing):
    """The half of a connection that decrypts."""

    def _set_app_protocol(self, app_protocol):
        """Deliver to *app_protocol* from now on."""
        self._app_protocol = app_protocol
        if isinstance(app_protocol, Connection):
            (<Connection>app_protocol).context = self.context      # TLS in TLS
        if _stdlib.is_buffered(app_protocol):
            self.app_get_buffer = app_protocol.get_buffer
            self.app_buffer_updated = app_protocol.buffer_updated
            self.app_is_buffered = True
        else:
            # The methods stay: it may be the old protocol's get_buffer() that sets the new one.
            self.app_is_buffered = False

    cdef int forget_application(self) except -1:
        self._app_protocol = None
        self.app_get_buffer = self.app_buffer_updated = None
        self.app_is_buffered = False
        return 0

    cdef bint read_arrival(self, char* data, Py_ssize_t size) except -1:
        """The usual case of do_read(): nothing is left from before, and nobody is paused."""
        cdef bint failed = False
        try:
            plain = self.tls.decrypt_arrival(data, size)
            if plain is not None:
                self.deliver(self._app_protocol.data_received, plain)
            if self.tls.ended:
                self.end_of_stream()
            self.end_of_callback()
            self.control_ssl_reading()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
            failed = True
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        # Not TLS, or compressed: there is more to read, or an error.
        return not failed and self.tls.carry and not self.tls.ended

    def _do_read(self):
        try:
            self.do_read()
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise

    cdef bint do_read(self) except -1:
        """Deliver what is in the incoming BIO and in OpenSSL."""
        cdef bint cut_short = False
        if reaction(ON_MORE, self.state) != READ:
            return False
        try:
            if not self._app_reading_paused:
                if self.tls.ended:
                    self.end_of_stream()
                elif not self.tls.drained():
                    if self.app_is_buffered:
                        cut_short = self.read_buffered()
                    else:
                        self.read_copied()
            # Even to one who is paused: the peer may wait for the end of our handshake.
            self.end_of_callback()
            self.control_ssl_reading()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return cut_short

    cdef int read_copied(self) except -1:
        plain = self.tls.decrypt_fed()
        if plain is not None:
            self.deliver(self._app_protocol.data_received, plain)
        if self.tls.ended:
            self.end_of_stream()
        elif not self.tls.drained() and self.tls.raw:
            self.put_off(self._do_read)
        return 0

    cdef bint read_buffered(self) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t filled
        cdef bint cut_short = False
        room = self.app_get_buffer(self.read_buffer_size())
        try:
            PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
        except BufferError:
            # In the words of the ssl module.
            raise TypeError("read() argument 2 must be read-write bytes-like object, "
                            f"not {type(room).__name__}") from None
        try:
            if view.len == 0:
                raise RuntimeError('get_buffer() returned an empty buffer')
            filled = self.tls.decrypt_into(<char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        if filled == view.len and not self.tls.drained():
            cut_short = True
            self.put_off(self._do_read)
        if filled > 0:
            self.deliver(self.app_buffer_updated, filled)
        if self.tls.ended:
            self.end_of_stream()
        return cut_short

    cdef int end_of_stream(self) except -1:
        """The peer's closing alert has been reached: each step is taken once, however often this
        is called."""
        self.call_eof_received()
        return self.start_shutdown()

    cdef int deliver(self, object callback, object data) except -1:
        cdef LoopBuffers buffers = self.buffers
        # Within itself, if what it writes comes back before write() returns.
        cdef bint within = self.delivering
        self.gathering = not self.exposed
        if not within:
            self.delivering = True
            self.outer = buffers.delivering
            buffers.delivering = <void *>self
        try:
            callback(data)
        except BaseException:
            # What it wrote before it failed is sent, as asyncio would have done at once.
            if not within:
                self.delivered(buffers)
            self.gathering = False
            try:
                self.end_of_callback()
            except Exception as exc:
                self.fatal_error(exc, 'Fatal error on SSL protocol')
            raise
        if not within:
            self.delivered(buffers)
        self.gathering = False
        return self.flush_record()

    cdef void delivered(self, LoopBuffers buffers) noexcept:
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
            self.put_off(self._resume)
        return 0

    cdef object read_buffer_size(self):
        # The beginning of an incomplete record does not count: more input is what it needs.
        return self.tls.stored() if self.tls.carry or self._app_reading_paused else 0

    def _get_read_buffer_size(self):
        return self.read_buffer_size()

    def _set_read_buffer_limits(self, high=None, low=None):
        self._incoming_high_water, self._incoming_low_water = flow_control_limits(
            high, low, HIGH_WATER_READ)

    cdef int control_ssl_reading(self) except -1:
        if self._transport is None:
            return 0
        if not self._ssl_reading_paused:
            if not self.tls.carry and not self._app_reading_paused:
                return 0
            size = self.read_buffer_size()
            if size >= self._incoming_high_water and size > 0:
                self._ssl_reading_paused = True
                self._transport.pause_reading()
        elif self.read_buffer_size() <= self._incoming_low_water:
            self._ssl_reading_paused = False
            self._transport.resume_reading()
        return 0
