# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""TLS over any asyncio transport: `SSLProtocol` and the transport that it gives the application.

Owns what asyncio knows of a TLS connection: the protocol towards the transport below, the
transport towards the application, and the states between them. The semantics are those of
`asyncio.sslproto`: the states and their order, the time-outs, the flow control in both
directions, what is reported and where. It is native because all of it runs per packet; records
and OpenSSL are the business of mgloop.tls._engine.

What is done differently, for speed and memory:

* What the application writes inside data_received leaves when that returns: small writes in one
  record, everything in one write to the transport below.
* Ciphertext arrives in one buffer per loop, not one of 256 KiB per connection.
* When the transport below has enough, plaintext waits here, by reference if it is bytes. asyncio
  encrypts at once, and the BIO that takes it never shrinks again.

Everything runs in the loop's thread with the GIL held. Lifetime: the transport below holds the
protocol, the protocol both transports; connection_lost() cuts all of these.

A callback of the application that raises SystemExit or KeyboardInterrupt ends run_forever(). What
it kept from being done (records that are decrypted and not delivered, the end of the stream, the
end of the handshake) is done when the loop runs again: see again().

Python code can call any method at any time: before __init__(), which makes the engine, from a
finalizer after the collector has cleared the object. So both classes look for None before they
reach into an extension type (nonecheck, AttributeError), which costs a comparison with a constant.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.string cimport memcpy

from mgloop.tls._engine cimport Engine

import collections
import inspect
import ssl
import weakref

from asyncio import constants, exceptions, sslproto
from asyncio.log import logger
from warnings import warn

from .. import _stdlib

# isinstance() answers for the standard library's classes, which code in the wild asks about
# (asyncio.Transport, asyncio.BufferedProtocol, the _FlowControlMixin that loop.sendfile() wants).
# Taken at import, so that replacing asyncio.sslproto.SSLProtocol by ours does not loop.
cdef object StdProtocol = sslproto.SSLProtocol
cdef object StdTransport = sslproto._SSLProtocolTransport
cdef object StdState = sslproto.SSLProtocolState
cdef object create_transport_context = sslproto._create_transport_context
cdef object flow_control_limits = sslproto.add_flowcontrol_defaults
cdef object FALLBACK = constants._SendfileMode.FALLBACK
cdef object HANDSHAKE_TIMEOUT = constants.SSL_HANDSHAKE_TIMEOUT
cdef object SHUTDOWN_TIMEOUT = constants.SSL_SHUTDOWN_TIMEOUT
cdef Py_ssize_t WRITES_BEFORE_WARNING = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
cdef object HIGH_WATER_READ = constants.FLOW_CONTROL_HIGH_WATER_SSL_READ
cdef object HIGH_WATER_WRITE = constants.FLOW_CONTROL_HIGH_WATER_SSL_WRITE

# Earlier versions close the transport below by its public abort() where later ones (3.13) hand
# the reason on.
cdef bint ABORT_IS_PUBLIC = 'exc' not in inspect.signature(StdProtocol._abort).parameters

cdef object SSLError = ssl.SSLError
cdef object CertificateError = ssl.CertificateError
cdef object deque = collections.deque
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)

cdef enum:
    # In the order in which a connection goes through them: each may only be followed by the
    # next, or by UNWRAPPED.
    UNWRAPPED
    DO_HANDSHAKE
    WRAPPED
    FLUSHING
    SHUTDOWN

cdef enum:
    # connection_made, eof_received and connection_lost each reach the application at most once.
    APP_INIT
    APP_CON_MADE
    APP_EOF
    APP_CON_LOST

cdef tuple STATE_NAMES = (
    StdState.UNWRAPPED, StdState.DO_HANDSHAKE, StdState.WRAPPED, StdState.FLUSHING,
    StdState.SHUTDOWN)

cdef enum:
    ARRIVAL_SIZE = 256 * 1024
    RECORD_PLAIN_MAX = 16 * 1024
    # Plaintext that goes into the outgoing BIO between two flushes: a BIO never gives memory
    # back. Seven full records and their headers stay under the 128 KiB from which malloc maps
    # pages.
    FLUSH_SIZE = 7 * 16 * 1024
    # Writes up to this size are gathered into one record: copying them costs less than a record.
    SMALL_WRITE = 4096

# One LoopBuffers per loop, for as long as the loop or one of its TLS connections lives.
cdef object buffers_of_loop = weakref.WeakKeyDictionary()


@cython.final
@cython.no_gc
cdef class LoopBuffers:
    """Memory that all TLS connections of one loop use in turn."""

    def __cinit__(self):
        self.record = bytearray(RECORD_PLAIN_MAX)
        self.record_used = 0
        self.record_owner = NULL

    def __dealloc__(self):
        if self.pin.buf is not NULL:
            PyBuffer_Release(&self.pin)

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL:
        if self.pin.buf is NULL:
            arrival = bytearray(ARRIVAL_SIZE)
            self.arrival_view = memoryview(arrival)
            # For good: who has the view can release it, and could then resize what it shows.
            PyObject_GetBuffer(arrival, &self.pin, PyBUF_WRITABLE)
        size[0] = ARRIVAL_SIZE
        return <char*>self.pin.buf


cdef LoopBuffers buffers_for(object loop):
    try:
        found = buffers_of_loop.get(loop)
        if found is None:
            found = buffers_of_loop[loop] = LoopBuffers()
        return found
    except TypeError:
        return LoopBuffers()


cdef inline Py_ssize_t bytes_in(object data) except -1:
    if type(data) is bytes or type(data) is bytearray:
        return len(data)
    return memoryview(data).nbytes


cdef object without_head(object data, Py_ssize_t done):
    """What is left of *data* after *done* bytes, safe from changes by its owner."""
    if done == 0 and type(data) is bytes:
        return data
    view = memoryview(data).cast('B')
    return view[done:] if type(view.obj) is bytes else bytes(view[done:])


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
        # Nothing to warn about before there is a connection.
        self._closed = True

    def __init__(self, loop, SSLProtocol ssl_protocol not None):
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
        if not self._closed:
            self._closed = True
            self._ssl_protocol.close()
        else:
            self._ssl_protocol.let_go()

    def abort(self):
        """Close the transport below at once; what is buffered is lost."""
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
        self._ssl_protocol._app_reading_paused = True

    def resume_reading(self):
        """Undo pause_reading(); what was buffered is delivered in the next iteration."""
        cdef SSLProtocol proto = self._ssl_protocol
        if proto._app_reading_paused:
            proto._app_reading_paused = False
            proto._loop.call_soon(proto._resume)

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the sizes in bytes at which pause_writing() and resume_writing() are called.

        Default 512 KiB and a quarter of the high limit. ValueError unless high >= low >= 0.
        """
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
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f'data: expecting a bytes-like instance, got {type(data).__name__}')
        if data:
            self._ssl_protocol.write_one(data)

    def writelines(self, list_of_data):
        """Send all of an iterable of bytes-like objects, in as few records as they need."""
        self._ssl_protocol.write_many(list_of_data)

    def write_eof(self):
        """Always raises NotImplementedError."""
        raise NotImplementedError

    def can_write_eof(self):
        """Return False."""
        return False

    def _test__append_write_backlog(self, data):
        # CPython's test_ssl fills the backlog through this.
        data = without_head(data, 0)
        self._ssl_protocol.enqueue(data, NULL, len(data))


@cython.final
@cython.nonecheck(True)
cdef class SSLProtocol:
    """TLS as a BufferedProtocol of the transport below: a drop-in for
    `asyncio.sslproto.SSLProtocol` (same parameters, Python 3.11 to 3.14).

    *waiter*, a future or None, is resolved when the handshake is over. Times are in seconds;
    None means asyncio's 60 for the handshake and 30 for the shutdown. Without
    *call_connection_made* (start_tls) the application's connection_made() is not called.

    Invariants. While the application runs, the shared arrival buffer holds nothing of ours. The
    shared record buffer is only held inside a callback into the application, or writelines().
    """

    max_size = ARRIVAL_SIZE

    def __init__(self, loop, app_protocol, sslcontext, waiter,
                 server_side=False, server_hostname=None,
                 call_connection_made=True,
                 ssl_handshake_timeout=None,
                 ssl_shutdown_timeout=None):
        if sslproto.ssl is None:
            raise RuntimeError('stdlib ssl module not available')
        if self.tls is not None:
            raise RuntimeError('SSLProtocol.__init__() called twice')
        if ssl_handshake_timeout is None:
            ssl_handshake_timeout = HANDSHAKE_TIMEOUT
        elif ssl_handshake_timeout <= 0:
            raise ValueError('ssl_handshake_timeout should be a positive number, '
                             f'got {ssl_handshake_timeout}')
        if ssl_shutdown_timeout is None:
            ssl_shutdown_timeout = SHUTDOWN_TIMEOUT
        elif ssl_shutdown_timeout <= 0:
            raise ValueError('ssl_shutdown_timeout should be a positive number, '
                             f'got {ssl_shutdown_timeout}')
        if not sslcontext:
            sslcontext = create_transport_context(server_side, server_hostname)

        self._loop = loop
        self._waiter = waiter
        self._sslcontext = sslcontext
        self._extra = {'sslcontext': sslcontext}
        self._server_side = bool(server_side)
        self._server_hostname = server_hostname if server_hostname and not server_side else None
        self.handshake_timeout = ssl_handshake_timeout
        self.shutdown_timeout = ssl_shutdown_timeout
        self.state = UNWRAPPED
        self.app_state = APP_INIT if call_connection_made else APP_CON_MADE
        self.buffers = buffers_for(loop)
        self._set_app_protocol(app_protocol)

        self.tls = Engine(sslcontext, self._server_side, self._server_hostname)

        self._set_read_buffer_limits()
        self._set_write_buffer_limits()
        self._get_app_transport()

    @property
    def __class__(self):
        return StdProtocol

    @property
    def _state(self):
        return STATE_NAMES[self.state]

    @property
    def _sslobj(self):
        return self.tls.sslobj

    @_sslobj.setter
    def _sslobj(self, value):
        self.tls.use(value)

    @property
    def _incoming(self):
        # base_events.start_tls() of 3.13.12 and 3.14.3 writes bytes that a StreamReader has
        # already buffered into this BIO. Before the handshake they are counted when it starts;
        # later we can no longer know where a record begins.
        if self.state != UNWRAPPED:
            self.tls.tampered()
        return self.tls.incoming

    @property
    def _outgoing(self):
        return self.tls.outgoing

    @_outgoing.setter
    def _outgoing(self, bio):
        self.tls.outgoing = bio
        self.tls.take = bio.read

    @property
    def _write_backlog(self):
        if self.backlog is None:
            self.backlog = deque()
        return self.backlog

    def _get_app_transport(self):
        """Return the application's transport, which is made once."""
        if self._app_transport is None:
            if self.app_transport_created:
                raise RuntimeError('Creating _SSLProtocolTransport twice')
            self._app_transport = SSLTransport(self._loop, self)
            self.app_transport_created = True
        return self._app_transport

    def _set_app_protocol(self, app_protocol):
        """Deliver to *app_protocol* from now on."""
        self._app_protocol = app_protocol
        if _stdlib.is_buffered(app_protocol):
            self.app_get_buffer = app_protocol.get_buffer
            self.app_buffer_updated = app_protocol.buffer_updated
            self.app_is_buffered = True
        else:
            self.app_get_buffer = self.app_buffer_updated = None
            self.app_is_buffered = False

    def _get_extra_info(self, name, default=None):
        if name in self._extra:
            return self._extra[name]
        if self._transport is not None:
            return self._transport.get_extra_info(name, default)
        return default

    cdef int wakeup_waiter(self, object exc) except -1:
        waiter = self._waiter
        if waiter is None:
            return 0
        self._waiter = None
        if not waiter.cancelled():
            if exc is not None:
                waiter.set_exception(exc)
            else:
                waiter.set_result(None)
        return 0

    cdef int set_state(self, int new_state) except -1:
        if new_state != UNWRAPPED and new_state != self.state + 1:
            raise RuntimeError(f'cannot switch state from {STATE_NAMES[self.state]} '
                               f'to {STATE_NAMES[new_state]}')
        self.state = new_state
        return 0

    # Called by the transport below.

    def connection_made(self, transport):
        """Start the handshake over *transport*."""
        self._transport = transport
        if self._loop.get_debug():
            logger.debug('%r starts SSL handshake', self)
            self.handshake_started = self._loop.time()
        self.set_state(DO_HANDSHAKE)
        self.handshake_timer = self._loop.call_later(
            self.handshake_timeout, self._check_handshake_timeout)
        self.tls.recount()
        self.advance()

    def connection_lost(self, exc):
        """Pass *exc* (None: closed or aborted from here) on to the application, in the next
        iteration, and let go of everything that refers to this connection."""
        cdef SSLTransport app_transport = self._app_transport
        app_protocol = self._app_protocol
        tell = self.state != DO_HANDSHAKE and self.app_state in (APP_CON_MADE, APP_EOF)
        self.backlog = None
        self._write_buffer_size = 0
        if self.buffers.record_owner == <void*>self:
            self.buffers.record_owner = NULL
        self.tls.take()
        self._conn_lost += 1
        if app_transport is not None:
            app_transport._closed = True
        self.state = UNWRAPPED
        self._transport = None
        self._app_transport = None
        self._app_protocol = None
        self.app_get_buffer = self.app_buffer_updated = None
        self.app_is_buffered = False
        if self.shutdown_timer is not None:
            self.shutdown_timer.cancel()
            self.shutdown_timer = None
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None
        self.lost = True
        if self.unwanted:
            self.let_go()
        # Last, for both can fail: the loop may be closed, the protocol no protocol.
        try:
            if tell:
                self.app_state = APP_CON_LOST
                self._loop.call_soon(app_protocol.connection_lost, exc)
        finally:
            self.wakeup_waiter(exc)

    cdef int let_go(self) except -1:
        """close() was called on a transport that is closing: nobody will ask for its extra
        info, so once the connection is lost the context and OpenSSL's objects can go, even while
        the application holds the transport. (asyncio forgets the protocol at this point, and
        with it how to abort().)"""
        self.unwanted = True
        if self.lost:
            self._extra = {}
            self._sslcontext = None
            self.tls.forget()
        return 0

    def get_buffer(self, n):
        """Return room for ciphertext. It is the loop's: fill it and call buffer_updated()
        before anything else runs."""
        cdef Py_ssize_t size
        self.buffers.arrival_space(&size)
        return self.buffers.arrival_view

    def buffer_updated(self, nbytes):
        """*nbytes* of ciphertext are in the buffer."""
        self.data_arrived(nbytes)

    cdef char* read_buffer(self, Py_ssize_t* size) except NULL:
        return self.buffers.arrival_space(size)

    cdef int data_arrived(self, Py_ssize_t nbytes) except -1:
        # A C caller need not hold a reference, and the application may take away the last one.
        cdef SSLProtocol alive = self
        cdef Py_ssize_t size
        cdef char* data = alive.buffers.arrival_space(&size)
        return alive.on_ciphertext(data, max(0, min(nbytes, size)))

    def eof_received(self):
        """The peer has stopped sending, with a closing alert before or (unclean) without.

        Returns True if the transport below must stay open for a reader that is paused.
        """
        self._eof_received = True
        try:
            if self._loop.get_debug():
                logger.debug('%r received EOF', self)
            if self.state == DO_HANDSHAKE:
                self.on_handshake_complete(ConnectionResetError)
            else:
                if self.state == WRAPPED:
                    self.set_state(FLUSHING)
                if self.state == FLUSHING and self._app_reading_paused:
                    return True
                self.proceed()
        except Exception:
            if self._transport is not None:
                self._transport.close()
            raise
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise

    def pause_writing(self):
        """The transport below has more than it wants: what is written now waits here."""
        self._ssl_writing_paused = True

    def resume_writing(self):
        """The transport below has room again."""
        self._ssl_writing_paused = False
        try:
            if self._write_buffer_size and self.state == WRAPPED:
                self.do_write(False)
            else:
                self.process_outgoing()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')

    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1:
        cdef Engine tls = self.tls
        if (self.state == WRAPPED and tls.raw and tls.framed and not tls.carry
                and not self._app_reading_paused and not self.app_is_buffered):
            return self.read_arrival(data, size)
        tls.feed(data, size)
        return self.advance()

    cdef int proceed(self) except -1:
        """Do what the state calls for, with whatever has arrived."""
        if self.state == WRAPPED:
            self.do_read()
        elif self.state == DO_HANDSHAKE:
            self.do_handshake()
        elif self.state == FLUSHING:
            if not self._app_reading_paused:
                self.do_flush()
        elif self.state == SHUTDOWN:
            self.do_shutdown()
        return 0

    cdef int advance(self) except -1:
        try:
            self.proceed()
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        return 0

    cdef int again(self) except -1:
        """SystemExit or KeyboardInterrupt is on its way out of the loop, past what was still to be
        done: do that when the loop runs again."""
        if self.state != UNWRAPPED:
            self._loop.call_soon(self._resume)
        return 0

    # Handshake.

    def _check_handshake_timeout(self):
        if self.state == DO_HANDSHAKE:
            self.fatal_error(ConnectionAbortedError(
                f'SSL handshake is taking longer than {self.handshake_timeout} seconds: '
                'aborting the connection'), 'Fatal error on transport')

    cdef int do_handshake(self) except -1:
        try:
            self.tls.sslobj.do_handshake()
        except AGAIN:
            self.process_outgoing()
            return 0
        except SSLError as exc:
            error = exc
        else:
            error = None
        self.on_handshake_complete(error)
        return 0

    cdef int on_handshake_complete(self, object error) except -1:
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None
        sslobj = self.tls.sslobj
        try:
            if error is not None:
                raise error
            self.set_state(WRAPPED)
            peercert = sslobj.getpeercert()
        except Exception as exc:
            self.set_state(UNWRAPPED)
            if isinstance(exc, CertificateError):
                message = 'SSL handshake failed on verifying the certificate'
            else:
                message = 'SSL handshake failed'
            self.fatal_error(exc, message)
            self.wakeup_waiter(exc)
            return 0
        if self.handshake_started is not None and self._loop.get_debug():
            took = self._loop.time() - self.handshake_started
            logger.debug('%r: SSL handshake took %.1f ms', self, took * 1e3)
        self._extra.update(peercert=peercert, cipher=sslobj.cipher(),
                           compression=sslobj.compression(), ssl_object=sslobj)
        if self.app_state == APP_INIT:
            self.app_state = APP_CON_MADE
            try:
                self._app_protocol.connection_made(self._get_app_transport())
            except (KeyboardInterrupt, SystemExit):
                self.wakeup_waiter(None)
                raise
        self.wakeup_waiter(None)
        # Application data may have come with the last record of the handshake, and writes may
        # have been waiting for its end.
        return self.do_read()

    # Shutdown.

    def _start_shutdown(self):
        self.close()

    cdef int close(self) except -1:
        """start_shutdown() for whoever is not called by us."""
        try:
            self.start_shutdown()
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        return 0

    cdef int start_shutdown(self) except -1:
        cdef SSLTransport app_transport = self._app_transport
        if self.state != DO_HANDSHAKE and self.state != WRAPPED:
            return 0
        if app_transport is not None:
            app_transport._closed = True
        if self.state == DO_HANDSHAKE:
            return self.abort(None)
        self.set_state(FLUSHING)
        self.shutdown_timer = self._loop.call_later(
            self.shutdown_timeout, self._check_shutdown_timeout)
        return self.do_flush()

    def _check_shutdown_timeout(self):
        if self.state in (FLUSHING, SHUTDOWN) and self._transport is not None:
            self._transport._force_close(exceptions.TimeoutError('SSL shutdown timed out'))

    cdef int do_flush(self) except -1:
        self.do_read()
        while self.cut_short and self.state == FLUSHING and not self._app_reading_paused:
            # Nothing is delivered after this, however small the buffers of the application.
            self.do_read()
        # The application may have aborted while it was given its last data.
        if self.state != FLUSHING:
            return 0
        try:
            self.flush_record()
            self.do_write(True)
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        self.set_state(SHUTDOWN)
        return self.do_shutdown()

    cdef int do_shutdown(self) except -1:
        try:
            if not self._eof_received:
                self.tls.sslobj.unwrap()
        except AGAIN:
            self.process_outgoing()
            return 0
        except SSLError as exc:
            error = exc
        else:
            error = None
            self.process_outgoing()
            self.call_eof_received()
        return self.on_shutdown_complete(error)

    cdef int on_shutdown_complete(self, object error) except -1:
        if self.shutdown_timer is not None:
            self.shutdown_timer.cancel()
            self.shutdown_timer = None
        if error is not None:
            self.fatal_error(error, 'Fatal error on transport')
        elif self._transport is not None:
            self._loop.call_soon(self._transport.close)
        return 0

    cdef int abort(self, object exc) except -1:
        if self.deferring and self.state == WRAPPED:
            # Written before the abort, so asyncio would already have sent it.
            try:
                self.flush_record()
                self.send_outgoing()
            except Exception:
                logger.debug('%r: flush before abort failed', self, exc_info=True)
        self.state = UNWRAPPED
        if self._transport is not None:
            if exc is None and ABORT_IS_PUBLIC:
                self._transport.abort()
            else:
                self._transport._force_close(exc)
        return 0

    # Reading: from ciphertext to the application.

    cdef int read_arrival(self, char* data, Py_ssize_t size) except -1:
        """The usual case of do_read(): nothing is left from before, and nobody is paused."""
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
            return 0
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        if self.tls.carry and not self.tls.ended:
            # Not TLS, or compressed: there is more to read, or an error.
            return self.advance()
        return 0

    def _resume(self):
        self.advance()

    def _do_read(self):
        try:
            self.do_read()
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise

    cdef int do_read(self) except -1:
        """Deliver what is in the incoming BIO and in OpenSSL."""
        if self.state != WRAPPED and self.state != FLUSHING:
            return 0
        self.cut_short = False
        try:
            if not self._app_reading_paused:
                if self.tls.ended:
                    self.end_of_stream()
                elif not self.tls.drained():
                    if self.app_is_buffered:
                        self.read_buffered()
                    else:
                        self.read_copied()
            # Even to one who is paused: the peer may wait for the end of our handshake.
            self.end_of_callback()
            self.control_ssl_reading()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int read_copied(self) except -1:
        plain = self.tls.decrypt_fed()
        if plain is not None:
            self.deliver(self._app_protocol.data_received, plain)
        if self.tls.ended:
            self.end_of_stream()
        elif not self.tls.drained() and self.tls.raw:
            self._loop.call_soon(self._do_read)
        return 0

    cdef int read_buffered(self) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t filled
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
            self.cut_short = True
            self._loop.call_soon(self._do_read)
        if filled > 0:
            self.deliver(self.app_buffer_updated, filled)
        if self.tls.ended:
            self.end_of_stream()
        return 0

    cdef int end_of_stream(self) except -1:
        """The peer's closing alert has been reached: each step is taken once, however often this
        is called."""
        self.call_eof_received()
        return self.start_shutdown()

    cdef int deliver(self, object callback, object data) except -1:
        self.deferring = True
        try:
            callback(data)
        except BaseException:
            # What it wrote before it failed is sent, as asyncio would have done at once.
            self.deferring = False
            try:
                self.end_of_callback()
            except Exception as exc:
                self.fatal_error(exc, 'Fatal error on SSL protocol')
            raise
        self.deferring = False
        return self.flush_record()

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

    # Writing: from the application to ciphertext.

    cdef bint refuse_write(self) except -1:
        """True, with a warning after some times, if the connection is closing or closed."""
        if self.state == WRAPPED or self.state == DO_HANDSHAKE:
            return False
        if self._conn_lost >= WRITES_BEFORE_WARNING:
            logger.warning('SSL connection is closed')
        self._conn_lost += 1
        return True

    cdef int write_one(self, object data) except -1:
        if self.refuse_write():
            return 0
        try:
            self.put(data)
            if not self.deferring:
                self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int write_many(self, object chunks) except -1:
        cdef bint was_deferring = self.deferring
        if self.refuse_write():
            return 0
        chunks = [chunk for chunk in chunks if bytes_in(chunk) > 0]
        try:
            self.deferring = True
            try:
                for chunk in chunks:
                    self.put(chunk)
            finally:
                self.deferring = was_deferring
                if not was_deferring:
                    self.flush_record()
            if not was_deferring:
                self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        return 0

    cdef int put(self, object data) except -1:
        """Encrypt *data* if that is possible now, else queue it.

        One view of it is held meanwhile, and gives its size: neither another thread nor a
        `__buffer__` of the user's own can make the memory smaller than what is copied.
        """
        cdef Py_buffer view
        if PyBytes_CheckExact(data):
            return self.put_memory(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.put_memory(data, <char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int put_memory(self, object data, char* start, Py_ssize_t size) except -1:
        """put() of start[:size], which is what *data* lends."""
        cdef Py_ssize_t done
        cdef LoopBuffers buffers = self.buffers
        if size == 0:
            return 0
        if self.state != WRAPPED or self._write_buffer_size > 0:
            return self.enqueue(data, start, size)
        if self._ssl_writing_paused:
            self.flush_record()
            return self.enqueue(data, start, size)
        if self.deferring and size <= SMALL_WRITE:
            if buffers.record_owner == <void*>self:
                if buffers.record_used + size > RECORD_PLAIN_MAX:
                    self.flush_record()
                    if self._write_buffer_size > 0:
                        return self.enqueue(data, start, size)
            if buffers.record_owner == NULL:
                buffers.record_owner = <void*>self
                buffers.record_used = 0
            if buffers.record_owner == <void*>self:
                memcpy(PyByteArray_AS_STRING(buffers.record) + buffers.record_used, start, size)
                buffers.record_used += size
                return 0
        self.flush_record()
        if self._write_buffer_size > 0:
            return self.enqueue(data, start, size)
        done = self.encrypt(start, size)
        if done < size and self._transport is not None:
            self.enqueue(data, start + done, size - done)
        return 0

    cdef int enqueue(self, object data, char* start, Py_ssize_t size) except -1:
        """Keep start[:size], the end of what *data* lends: by reference if that is bytes."""
        if PyBytes_CheckExact(data):
            data = without_head(data, PyBytes_GET_SIZE(data) - size)
        elif type(data) is memoryview and type(data.obj) is bytes:
            data = without_head(data, data.nbytes - size)
        else:
            data = PyBytes_FromStringAndSize(start, size)
        if self.backlog is None:
            self.backlog = deque()
        self.backlog.append(data)
        self._write_buffer_size += size
        return 0

    cdef Py_ssize_t encrypt(self, char* start, Py_ssize_t size) except -1:
        """Encrypt start[:size] into the outgoing BIO and flush that whenever it is full.

        Returns how many bytes were taken: fewer than all if OpenSSL first wants to read (it
        renegotiates) or the transport below has paused us.
        """
        cdef Py_ssize_t done = 0, got
        while True:
            got = self.tls.encrypt(start + done, min(size - done, <Py_ssize_t>FLUSH_SIZE))
            done += got
            self.unflushed += got
            if self.unflushed >= FLUSH_SIZE:
                self.send_outgoing()
            if (got == 0 or done >= size or self._transport is None
                    or (self._ssl_writing_paused and self.state == WRAPPED)):
                return done

    cdef int flush_record(self) except -1:
        """Encrypt the small writes that were gathered; no-op if there are none."""
        cdef LoopBuffers buffers = self.buffers
        cdef char* record
        if buffers.record_owner != <void*>self:
            return 0
        record = PyByteArray_AS_STRING(buffers.record)
        try:
            if self.tls.encrypt(record, buffers.record_used) == 0:
                self.enqueue(None, record, buffers.record_used)
            else:
                self.unflushed += buffers.record_used
        finally:
            buffers.record_owner = NULL
        return 0

    cdef int do_write(self, bint everything) except -1:
        """Encrypt the backlog: *everything*, or as much as the transport below wants."""
        cdef Py_buffer view
        cdef Py_ssize_t size, done
        while self._write_buffer_size > 0 and (everything or not self._ssl_writing_paused):
            data = self.backlog.popleft()
            size = len(data)
            if size <= SMALL_WRITE and self.backlog:
                pieces = [data]
                while self.backlog and size + len(self.backlog[0]) <= RECORD_PLAIN_MAX:
                    data = self.backlog.popleft()
                    pieces.append(data)
                    size += len(data)
                data = b''.join(pieces)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                done = self.encrypt(<char*>view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
            if self.backlog is None:
                return 0
            self._write_buffer_size -= done
            if done < size:
                self.backlog.appendleft(without_head(data, done))
                break
        return self.process_outgoing()

    cdef int end_of_callback(self) except -1:
        """Send what was written since the last flush and what OpenSSL itself has to say."""
        self.flush_record()
        if self.state == UNWRAPPED:
            return 0
        if self._write_buffer_size > 0 and self.state != DO_HANDSHAKE:
            return self.do_write(False)
        return self.process_outgoing()

    cdef int send_outgoing(self) except -1:
        self.unflushed = 0
        if not self._ssl_writing_paused and self._transport is not None:
            data = self.tls.take()
            if data:
                self._transport.write(data)
        return 0

    cdef int process_outgoing(self) except -1:
        """Send, and tell the application what that means for it. What raises here is the
        application, so nothing may be half done."""
        self.send_outgoing()
        if self._write_buffer_size > 0 or self._ssl_writing_paused or self._app_writing_paused:
            self.control_app_writing()
        return 0

    # Flow control.

    cdef object write_buffer_size(self):
        if not self._ssl_writing_paused:
            return self._write_buffer_size
        return self._write_buffer_size + self.tls.outgoing.pending

    def _get_write_buffer_size(self):
        return self.write_buffer_size()

    def _set_write_buffer_limits(self, high=None, low=None):
        self._outgoing_high_water, self._outgoing_low_water = flow_control_limits(
            high, low, HIGH_WATER_WRITE)

    cdef int control_app_writing(self) except -1:
        if self._app_protocol is None:
            return 0
        size = self.write_buffer_size()
        # More than 0, unlike asyncio.sslproto, where a high limit of 0 pauses an empty buffer.
        if not self._app_writing_paused and size >= self._outgoing_high_water and size > 0:
            self._app_writing_paused = True
            call, name = self._app_protocol.pause_writing, 'pause_writing'
        elif self._app_writing_paused and size <= self._outgoing_low_water:
            self._app_writing_paused = False
            call, name = self._app_protocol.resume_writing, 'resume_writing'
        else:
            return 0
        try:
            call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler({
                'message': f'protocol.{name}() failed',
                'exception': exc,
                'transport': self._app_transport,
                'protocol': self,
            })
        return 0

    cdef object read_buffer_size(self):
        # The beginning of an incomplete record does not count: more input is what it needs.
        return self.tls.incoming.pending if self.tls.carry or self._app_reading_paused else 0

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

    # Errors.

    def _fatal_error(self, exc, message='Fatal error on transport'):
        self.fatal_error(exc, message)

    def _abort(self, exc=None):
        self.abort(exc)

    cdef int fatal_error(self, object exc, object message) except -1:
        if self._transport is not None:
            self._transport._force_close(exc)
        if isinstance(exc, OSError):
            if self._loop.get_debug():
                logger.debug('%r: %s', self, message, exc_info=True)
        elif not isinstance(exc, exceptions.CancelledError):
            self._loop.call_exception_handler({
                'message': message,
                'exception': exc,
                'transport': self._transport,
                'protocol': self,
            })
        return 0
