# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""What the application sees of a TLS connection: asyncio's `_SSLProtocolTransport`.

It has no state but whether it is closed; everything else is asked of the connection, which it
holds, and which lets go of it in connection_lost(). It is native because write() runs per packet.
"""

cimport cython

from mgloop._loop cimport own_thread
from mgloop.tls._reading cimport Reading
from mgloop.tls._states cimport UNWANTED

from asyncio import constants, sslproto
from warnings import warn


cdef extern from "attributes.h":
    void mgl_drop_empty_dict(object o)

# isinstance() answers for the standard library's class, and with it for those that code in the
# wild asks about (asyncio.Transport, the _FlowControlMixin that loop.sendfile() wants).
cdef object StdTransport = sslproto._SSLProtocolTransport
cdef object FALLBACK = constants._SendfileMode.FALLBACK


@cython.final
@cython.nonecheck(True)
cdef class SSLTransport:
    """The transport that the application sees: asyncio's `_SSLProtocolTransport`.

    All methods are those of `asyncio.Transport`. write_eof() is not supported, as TLS has no
    half-close that both sides would honour.
    """

    _start_tls_compatible = True
    _sendfile_compatible = FALLBACK

    def __cinit__(self):
        mgl_drop_empty_dict(self)
        # Nothing to warn about before there is a connection.
        self._closed = True

    def __init__(self, loop, Reading ssl_protocol not None):
        if self._ssl_protocol is not None:
            raise RuntimeError('SSLTransport.__init__() called twice')
        self._loop = loop
        self._ssl_protocol = ssl_protocol
        self._closed = False

    @property
    def __class__(self):
        return StdTransport

    def __del__(self):
        if not self._closed:
            self._closed = True
            warn('unclosed transport <asyncio._SSLProtocolTransport object>', ResourceWarning)

    def get_extra_info(self, name, default=None):
        """Look up *name*; besides the names of the transport below: sslcontext, ssl_object,
        peercert, cipher, compression (the last four from the end of the handshake on)."""
        return self._ssl_protocol._get_extra_info(name, default)

    def set_protocol(self, protocol):
        """Hand further events to *protocol*, a Protocol or BufferedProtocol."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._set_app_protocol(protocol)

    def get_protocol(self):
        """Return the application's protocol, None once the connection is lost."""
        return self._ssl_protocol._app_protocol

    def is_closing(self):
        """Return True if this transport or the one below is closing or closed."""
        if self._closed:
            return True
        below = self._ssl_protocol._transport
        return below is not None and below.is_closing()

    def close(self):
        """Send what is buffered and the closing alert, then close the transport below.

        Waits for the peer's closing alert for ssl_shutdown_timeout seconds at most.
        """
        own_thread(self._ssl_protocol.core)
        if not self._closed:
            self._closed = True
            self._ssl_protocol.close()
        else:
            self._ssl_protocol.hold_no_more(UNWANTED)

    def abort(self):
        """Close the transport below at once; what is buffered is lost."""
        own_thread(self._ssl_protocol.core)
        self._force_close(None)

    def _force_close(self, exc):
        self._closed = True
        self._ssl_protocol.abort(exc)

    def is_reading(self):
        """Return False after pause_reading()."""
        return not self._ssl_protocol._app_reading_paused

    def pause_reading(self):
        """Stop data_received(); ciphertext is buffered up to the read limit, then the transport
        below is paused too. May be called in any state and more than once."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._app_reading_paused = True

    def resume_reading(self):
        """Undo pause_reading(); what was buffered is delivered in the next iteration."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol.resume_reading()

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the sizes in bytes at which pause_writing() and resume_writing() are called.

        Default 512 KiB and a quarter of the high limit. ValueError unless high >= low >= 0.
        """
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._set_write_buffer_limits(high, low)
        self._ssl_protocol.control_app_writing()

    def get_write_buffer_limits(self):
        """Return (low, high) in bytes."""
        return (self._ssl_protocol._outgoing_low_water, self._ssl_protocol._outgoing_high_water)

    def get_write_buffer_size(self):
        """Return the bytes that wait here; those in the transport below do not count."""
        return self._ssl_protocol.write_buffer_size()

    def set_read_buffer_limits(self, high=None, low=None):
        """Set the sizes in bytes of buffered ciphertext at which the transport below is paused
        and resumed. Default 256 KiB and a quarter. ValueError unless high >= low >= 0."""
        self._ssl_protocol._set_read_buffer_limits(high, low)
        self._ssl_protocol.control_ssl_reading()

    def get_read_buffer_limits(self):
        """Return (low, high) in bytes."""
        return (self._ssl_protocol._incoming_low_water, self._ssl_protocol._incoming_high_water)

    def get_read_buffer_size(self):
        """Return the bytes of ciphertext received and not yet delivered."""
        return self._ssl_protocol.read_buffer_size()

    @property
    def _protocol_paused(self):
        # What loop.sendfile()'s fall-back asks of every transport.
        return self._ssl_protocol._app_writing_paused

    def write(self, data):
        """Encrypt and send *data*, a bytes, bytearray or memoryview; never blocks."""
        own_thread(self._ssl_protocol.core)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f'data: expecting a bytes-like instance, got {type(data).__name__}')
        if data:
            self._ssl_protocol.write_one(data)

    def writelines(self, list_of_data):
        """Send all of an iterable of bytes-like objects, in as few records as they need."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol.write_many(list_of_data)

    def write_eof(self):
        """Always raises NotImplementedError."""
        own_thread(self._ssl_protocol.core)
        raise NotImplementedError

    def can_write_eof(self):
        """Return False."""
        return False

    def _test__append_write_backlog(self, data):
        # CPython's test_ssl fills the backlog through this.
        self._ssl_protocol.append(data)
