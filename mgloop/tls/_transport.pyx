# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The transport of a TLS connection that the application calls: asyncio's `_SSLProtocolTransport`.

A transport owns one flag, whether it is closed. Everything else belongs to the connection. The
transport and the connection hold references to each other, and connection_lost() drops the
connection's. The module is native because write() runs per packet, on the thread of the loop.
"""

cimport cython

from mgloop._loop cimport own_thread
from mgloop.tls._reading cimport Reading
from mgloop.tls._states cimport CLOSED_TWICE

from asyncio import constants, sslproto
from warnings import warn


cdef extern from "attributes.h":
    void mgl_drop_empty_dict(object o)

# __class__ returns the standard library's class, so that isinstance() is true for it and its bases.
# Existing code checks for those: for asyncio.Transport, and in sendfile() for _FlowControlMixin.
cdef object StdTransport = sslproto._SSLProtocolTransport
cdef object FALLBACK = constants._SendfileMode.FALLBACK


@cython.final
@cython.nonecheck(True)
cdef class SSLTransport:
    """Offer the application the methods of `asyncio.Transport`, as `_SSLProtocolTransport` does.

    write_eof() is not supported, because TLS has no half-close that both sides honour.
    """

    _start_tls_compatible = True
    _sendfile_compatible = FALLBACK

    def __cinit__(self):
        mgl_drop_empty_dict(self)
        # __del__() must not warn before __init__() has been called.
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
        """Return the value of *name*, or *default* if it is unknown.

        The names are sslcontext, after the handshake also ssl_object, peercert, cipher, compression
        and tls_engine, and those of the transport below.
        """
        return self._ssl_protocol._get_extra_info(name, default)

    def set_protocol(self, protocol):
        """Set the protocol for further events: a Protocol or a BufferedProtocol."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._set_app_protocol(protocol)

    def get_protocol(self):
        """Return the application's protocol, or None after the connection is lost."""
        return self._ssl_protocol._app_protocol

    def is_closing(self):
        """Return True if this transport or the one below is closing or closed."""
        if self._closed:
            return True
        below = self._ssl_protocol._transport
        return below is not None and below.is_closing()

    def close(self):
        """Send the buffered data and close_notify, then close the transport below.

        Wait for the peer's close_notify for at most ssl_shutdown_timeout seconds.
        """
        own_thread(self._ssl_protocol.core)
        if not self._closed:
            self._closed = True
            self._ssl_protocol.close()
        else:
            self._ssl_protocol.release_engine(CLOSED_TWICE)

    def abort(self):
        """Close the transport below immediately; buffered data is lost."""
        own_thread(self._ssl_protocol.core)
        self._force_close(None)

    def _force_close(self, exc):
        self._closed = True
        self._ssl_protocol.abort(exc)

    def is_reading(self):
        """Return False after pause_reading()."""
        return not self._ssl_protocol._app_reading_paused

    def pause_reading(self):
        """Stop the delivery of data.

        Ciphertext is buffered up to the read limit, and then the transport below is paused, too.
        The method may be called in any state and more than once.
        """
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._app_reading_paused = True

    def resume_reading(self):
        """Resume the delivery of data; buffered data is delivered in the next iteration."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol.resume_reading()

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the sizes in bytes at which pause_writing() and resume_writing() are called.

        The defaults are 512 KiB, and a quarter of the high limit. Raise ValueError unless
        high >= low >= 0.
        """
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol._set_write_buffer_limits(high, low)
        self._ssl_protocol.control_app_writing()

    def get_write_buffer_limits(self):
        """Return (low, high) in bytes."""
        return (self._ssl_protocol._outgoing_low_water, self._ssl_protocol._outgoing_high_water)

    def get_write_buffer_size(self):
        """Return the number of bytes buffered here, without those in the transport below."""
        return self._ssl_protocol.write_buffer_size()

    def set_read_buffer_limits(self, high=None, low=None):
        """Set the sizes of buffered ciphertext at which the transport below is paused and resumed.

        The sizes are in bytes. The defaults are 256 KiB, and a quarter of the high limit. Raise
        ValueError unless high >= low >= 0.
        """
        self._ssl_protocol._set_read_buffer_limits(high, low)
        self._ssl_protocol.control_ssl_reading()

    def get_read_buffer_limits(self):
        """Return (low, high) in bytes."""
        return (self._ssl_protocol._incoming_low_water, self._ssl_protocol._incoming_high_water)

    def get_read_buffer_size(self):
        """Return the number of bytes of ciphertext that have been received and not delivered."""
        return self._ssl_protocol.read_buffer_size()

    @property
    def _protocol_paused(self):
        # The fallback of loop.sendfile() reads this attribute of every transport.
        return self._ssl_protocol._app_writing_paused

    def write(self, data):
        """Encrypt and send *data* without blocking; raise TypeError unless it is bytes-like."""
        own_thread(self._ssl_protocol.core)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f'data: expecting a bytes-like instance, got {type(data).__name__}')
        if data:
            self._ssl_protocol.write_one(data)

    def writelines(self, list_of_data):
        """Encrypt and send an iterable of bytes-like objects, in as few records as possible."""
        own_thread(self._ssl_protocol.core)
        self._ssl_protocol.write_many(list_of_data)

    def write_eof(self):
        """Raise NotImplementedError."""
        own_thread(self._ssl_protocol.core)
        raise NotImplementedError

    def can_write_eof(self):
        """Return False, because write_eof() is not supported."""
        return False

    def _test__append_write_backlog(self, data):
        # CPython's test_ssl calls this to fill the backlog.
        self._ssl_protocol.append(data)
