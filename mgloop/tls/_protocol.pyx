# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""TLS over any asyncio transport: `SSLProtocol`, the protocol of the transport below.

SSLProtocol owns the course of a connection: the handshake, the events of the transport below, the
shutdown and the timeouts. In the handshake, the peers agree on the keys and check certificates. In
the shutdown, they exchange close_notify alerts; a stream that ends without one may have been cut
off by an attacker. OpenSSL creates and processes these messages, and this module only passes them
on. do_handshake() and unwrap() of `ssl.SSLObject` raise SSLWantReadError until the peer's answer
has arrived, so they are called again after each arrival. SSLProtocol's base classes transfer the
data, and the engine handles records and OpenSSL. _states.pyx has a map of these classes, and
_states.pxd the table of states and events. The semantics are those of `asyncio.sslproto`: the
states and their order, the timeouts, the flow control in both directions, and the errors and where
they are reported. The module is native because the transport below calls it per packet.

A callback of the application that raises SystemExit or KeyboardInterrupt ends run_forever(). The
work that the exception prevented is done when the loop runs again, see resume_later(). That can be
the delivery of decrypted data, the end of the stream, or the end of the handshake.

All code runs on the thread of the loop. Lifetime: the transport below holds the protocol, and the
protocol holds both transports. connection_lost() drops these references.
"""

cimport cython

from mgloop._loop cimport LoopCore, MGL_TLS, mgl_connections, mgl_count
from mgloop.tls._buffers cimport LoopBuffers, RECEIVE_SIZE, buffers_for
from mgloop.tls._direct_engine cimport create_engine
from mgloop.tls._engine cimport Engine
from mgloop.tls._reading cimport Reading
from mgloop.tls._states cimport (
    ABORT, ANSWER, APP_CON_LOST, APP_CON_MADE, APP_EOF, APP_INIT, DO_HANDSHAKE,
    FAIL_HANDSHAKE, FLUSH, FLUSHING, HANDSHAKE, IGNORE, LOST, ON_CLOSE, ON_EOF,
    ON_HANDSHAKE_TIMEOUT, ON_PROGRESS, ON_SHUTDOWN_TIMEOUT, READ, SHUTDOWN, START_CLOSE,
    START_FLUSH, TIME_OUT, UNWRAPPED, WRAPPED, reaction,
)
from mgloop.tls._transport cimport SSLTransport

import inspect
import ssl

from asyncio import constants, exceptions, sslproto
from asyncio.log import logger

# __class__ returns the standard library's class, so that isinstance() is true for it and for
# asyncio.BufferedProtocol. The class is read at import: a program may replace
# asyncio.sslproto.SSLProtocol by mgloop's, and __class__ would then refer to itself.
cdef object StdProtocol = sslproto.SSLProtocol
cdef object create_transport_context = sslproto._create_transport_context
cdef object HANDSHAKE_TIMEOUT = constants.SSL_HANDSHAKE_TIMEOUT
cdef object SHUTDOWN_TIMEOUT = constants.SSL_SHUTDOWN_TIMEOUT

# asyncio before 3.13 closes the transport below by its public abort(). Later versions pass the
# exception to _force_close().
cdef bint ABORT_IS_PUBLIC = 'exc' not in inspect.signature(StdProtocol._abort).parameters

cdef object SSLError = ssl.SSLError
cdef object CertificateError = ssl.CertificateError
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)


@cython.final
@cython.nonecheck(True)
cdef class SSLProtocol(Reading):
    """Implement TLS as a BufferedProtocol, a drop-in for `asyncio.sslproto.SSLProtocol`.

    The parameters are the same (Python 3.11 to 3.14). *waiter*, a future or None, is resolved at
    the end of the handshake. Timeouts are in seconds; None stands for asyncio's 60 for the
    handshake and 30 for the shutdown. If *call_connection_made* is false (start_tls), the
    application's connection_made() is not called. Raise ValueError for a timeout of 0 or less.
    """

    max_size = RECEIVE_SIZE

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
        self.core = loop if isinstance(loop, LoopCore) else None
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

        self.tls = create_engine(sslcontext, self._server_side, self._server_hostname)

        self._set_read_buffer_limits()
        self._set_write_buffer_limits()
        self._get_app_transport()

    @property
    def __class__(self):
        return StdProtocol

    @property
    def _sslobj(self):
        return self.tls.sslobj

    @_sslobj.setter
    def _sslobj(self, value):
        cdef Engine tls = self.tls
        self.release_cipher_buffer()
        self.tls = tls.with_sslobj(value)

    @property
    def _incoming(self):
        # start_tls() of asyncio in 3.13.12 and 3.14.3 writes bytes that a StreamReader has already
        # buffered into this BIO. feed_early_data() follows the records in bytes that were written
        # before the handshake. For later bytes, the engine no longer knows where a record begins.
        if self.state != UNWRAPPED:
            self.tls.stop_framing()
        return self.tls.incoming

    def _get_app_transport(self):
        """Return the application's transport, which is created at the first call."""
        if self._app_transport is None:
            if self.app_transport_created:
                raise RuntimeError('Creating _SSLProtocolTransport twice')
            self._app_transport = SSLTransport(self._loop, self)
            self.app_transport_created = True
        return self._app_transport

    # Called by the transport below.

    def connection_made(self, transport):
        """Start the handshake over *transport*."""
        cdef Engine tls = self.tls
        self._transport = transport
        if self._loop.get_debug():
            logger.debug('%r starts SSL handshake', self)
            self.handshake_started = self._loop.time()
        self.set_state(DO_HANDSHAKE)
        self.handshaking = True
        self.handshake_timer = self._loop.call_later(
            self.handshake_timeout, self._check_handshake_timeout)
        tls.feed_early_data()
        self.advance()

    def connection_lost(self, exc):
        """Schedule the application's connection_lost(), and drop all references.

        *exc* is passed on to the application; None means that this side has closed or aborted the
        connection.
        """
        cdef SSLTransport app_transport = self._app_transport
        app_protocol = self._app_protocol
        was_connected = self.state != DO_HANDSHAKE and self.app_state in (APP_CON_MADE, APP_EOF)
        self.drop_writes()
        self.count_handshake(False)
        if self.counted:
            self.counted = False
            mgl_count(&self.core.count.connections[MGL_TLS].closed, 1)
        self._conn_lost += 1
        if app_transport is not None:
            app_transport._closed = True
        self.state = UNWRAPPED
        self._transport = None
        self.below = NULL
        self.context = None
        self._app_transport = None
        self.forget_application()
        if self.shutdown_timer is not None:
            self.shutdown_timer.cancel()
            self.shutdown_timer = None
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None
        self.release_engine(LOST)
        # Both calls come last because they can fail: the loop may be closed, or the application's
        # protocol may lack connection_lost().
        try:
            if was_connected:
                self.app_state = APP_CON_LOST
                self._loop.call_soon(app_protocol.connection_lost, exc)
        finally:
            self.wakeup_waiter(exc)

    def get_buffer(self, n):
        """Return a buffer for ciphertext.

        It belongs to this connection and not to the loop, because a transport may call this long
        before it has data to put into the buffer.
        """
        cdef Py_ssize_t size
        self.own_receive_buffer(&size)
        return self.own_buffers.receive_view

    def buffer_updated(self, nbytes):
        """Process the *nbytes* of ciphertext in the buffer."""
        cdef Py_ssize_t size
        cdef char* data = self.own_receive_buffer(&size)
        self.on_ciphertext(data, max(0, min(<Py_ssize_t>nbytes, size)))

    cdef char* own_receive_buffer(self, Py_ssize_t* size) except NULL:
        if self.own_buffers is None:
            # If the loop is not mgloop's, the connection has buffers of its own already.
            self.own_buffers = self.buffers if self.core is None else LoopBuffers()
        return self.own_buffers.receive_buffer(size)

    cdef char* read_buffer(self, Py_ssize_t* size) except NULL:
        return self.buffers.receive_buffer(size)

    cdef int data_arrived(self, Py_ssize_t nbytes) except -1:
        # A C caller need not hold a reference, and the application may drop the last one.
        cdef SSLProtocol alive = self
        cdef Py_ssize_t size
        cdef char* data = alive.buffers.receive_buffer(&size)
        return alive.on_ciphertext(data, max(0, min(nbytes, size)))

    def eof_received(self):
        """Handle the end of the peer's stream, after its close_notify or (unclean) without it.

        Return True if the transport below must stay open because the application has paused
        reading.
        """
        self._eof_received = True
        try:
            if self._loop.get_debug():
                logger.debug('%r received EOF', self)
            self.react(ON_EOF)
            if self.state == FLUSHING and self._app_reading_paused:
                return True
        except Exception:
            if self._transport is not None:
                self._transport.close()
            raise
        except (KeyboardInterrupt, SystemExit):
            self.resume_later()
            raise

    def pause_writing(self):
        """Keep further writes in the backlog, because the transport below has paused writing."""
        self._ssl_writing_paused = True

    def resume_writing(self):
        """Send the backlog, because the transport below has resumed writing."""
        self._ssl_writing_paused = False
        try:
            self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')

    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1:
        cdef Engine tls = self.tls
        if (self.state == WRAPPED and tls.framed and not tls.readable
                and not self._app_reading_paused and not self.app_is_buffered):
            return self.advance() if self.read_received(data, size) else 0
        tls.feed(data, size)
        return self.advance()

    cdef int advance(self) except -1:
        """Process the received data as the state requires."""
        try:
            self.react(ON_PROGRESS)
        except (KeyboardInterrupt, SystemExit):
            self.resume_later()
            raise
        return 0

    cdef int resume_later(self) except -1:
        """Schedule the work that SystemExit or KeyboardInterrupt of a callback has interrupted.

        It is done when the loop runs again.
        """
        if self.state != UNWRAPPED:
            self.defer(self._resume)
        return 0

    cdef int react(self, int event) except -1:
        """Carry out the table in _states.pxd.

        _writing handles ON_WRITE and ON_WRITABLE, and _reading handles ON_MORE.
        """
        cdef int action = reaction(event, self.state)
        if action == READ:
            self.do_read()
        elif action == HANDSHAKE:
            self.do_handshake()
        elif action == FAIL_HANDSHAKE:
            self.on_handshake_complete(ConnectionResetError)
        elif action == START_CLOSE:
            self.set_state(FLUSHING)
            self.shutdown_timer = self._loop.call_later(
                self.shutdown_timeout, self._check_shutdown_timeout, context=self.context)
            self.do_flush()
        elif action == START_FLUSH or action == FLUSH:
            if action == START_FLUSH:
                self.set_state(FLUSHING)
            if not self._app_reading_paused:
                self.do_flush()
        elif action == ANSWER:
            self.do_shutdown()
        elif action == ABORT:
            self.abort(None)
        elif action == TIME_OUT:
            self.time_out()
        return 0

    def _resume(self):
        self.advance()

    # Handshake.

    def _check_handshake_timeout(self):
        self.react(ON_HANDSHAKE_TIMEOUT)

    cdef int do_handshake(self) except -1:
        cdef bint again = False
        error = None
        try:
            self.tls.sslobj.do_handshake()
        except AGAIN:
            again = True
        except SSLError as exc:
            error = exc
        if again:
            self.process_outgoing()
            return 0
        self.on_handshake_complete(error)
        return 0

    cdef int on_handshake_complete(self, object error) except -1:
        cdef Engine tls = self.tls
        cdef bint failed = False
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None
        sslobj = tls.sslobj
        try:
            if error is not None:
                raise error
            self.set_state(WRAPPED)
            self.tls = tls.after_handshake()
            peercert = sslobj.getpeercert()
        except Exception as exc:
            failed = True
            self.count_handshake(False)
            self.set_state(UNWRAPPED)
            if isinstance(exc, CertificateError):
                message = 'SSL handshake failed on verifying the certificate'
            else:
                message = 'SSL handshake failed'
            self.fatal_error(exc, message)
            self.wakeup_waiter(exc)
        if failed:
            return 0
        self.count_handshake(True)
        if self.handshake_started is not None and self._loop.get_debug():
            took = self._loop.time() - self.handshake_started
            logger.debug('%r: SSL handshake took %.1f ms', self, took * 1e3)
        self._extra.update(peercert=peercert, cipher=sslobj.cipher(),
                           compression=sslobj.compression(), ssl_object=sslobj,
                           tls_engine=self.tls.name())
        if self.app_state == APP_INIT:
            self.app_state = APP_CON_MADE
            try:
                self._app_protocol.connection_made(self._get_app_transport())
            except (KeyboardInterrupt, SystemExit):
                self.wakeup_waiter(None)
                raise
        self.wakeup_waiter(None)
        # Application data may have arrived with the last record of the handshake, and writes may
        # have waited for the end of the handshake.
        self.do_read()
        return 0

    cdef int count_handshake(self, bint succeeded) except -1:
        """Count the result of the handshake in the loop's statistics, once."""
        cdef mgl_connections *connections
        if not self.handshaking or self.core is None:
            return 0
        self.handshaking = False
        if not succeeded:
            mgl_count(&self.core.count.handshakes_failed, 1)
            return 0
        mgl_count(&self.core.count.handshakes, 1)
        connections = &self.core.count.connections[MGL_TLS]
        mgl_count(&connections.accepted, self._server_side)
        mgl_count(&connections.opened, 1)
        self.counted = True
        return 0

    # Shutdown.

    def _start_shutdown(self):
        self.close()

    cdef int close(self) except -1:
        """Run start_shutdown(), for callers outside of the callbacks of this connection."""
        try:
            self.start_shutdown()
        except (KeyboardInterrupt, SystemExit):
            self.resume_later()
            raise
        return 0

    cdef int start_shutdown(self) except -1:
        cdef SSLTransport app_transport = self._app_transport
        if app_transport is not None and reaction(ON_CLOSE, self.state) != IGNORE:
            app_transport._closed = True
        return self.react(ON_CLOSE)

    def _check_shutdown_timeout(self):
        self.react(ON_SHUTDOWN_TIMEOUT)

    cdef int time_out(self) except -1:
        """Abort the connection, because the handshake or the shutdown has timed out."""
        if self.state == DO_HANDSHAKE:
            self.fatal_error(ConnectionAbortedError(
                f'SSL handshake is taking longer than {self.handshake_timeout} seconds: '
                'aborting the connection'), 'Fatal error on transport')
        elif self._transport is not None:
            self._transport._force_close(exceptions.TimeoutError('SSL shutdown timed out'))
        return 0

    cdef int do_flush(self) except -1:
        # Nothing is delivered after this loop. So it continues until all data has been delivered,
        # even if the application's buffers are small.
        while self.do_read() and self.state == FLUSHING and not self._app_reading_paused:
            pass
        # The application may have aborted the connection when it received its last data.
        if self.state != FLUSHING:
            return 0
        try:
            self.flush_record()
            self.send_backlog(True)
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')
        self.set_state(SHUTDOWN)
        return self.do_shutdown()

    cdef int do_shutdown(self) except -1:
        cdef bint again = False
        try:
            if not self._eof_received:
                self.tls.sslobj.unwrap()
        except AGAIN:
            again = True
        except SSLError as exc:
            error = exc
        else:
            error = None
            self.process_outgoing()
            self.call_eof_received()
        if again:
            self.process_outgoing()
            return 0
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

    def _abort(self, exc=None):
        self.abort(exc)

    cdef int abort(self, object exc) except -1:
        if self.coalescing and self.state == WRAPPED:
            # Send the data that was written before the abort, because asyncio would have sent it
            # already.
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
