# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""TLS over any asyncio transport: `SSLProtocol`, a connection as the transport below sees it.

Owns the course of a connection: the handshake, the events from below, the shutdown, the time-outs.
Data on its way is the business of its base classes, records and OpenSSL that of the engine; the
map is in _states.pyx, the table of states and events in _states.pxd. The semantics are those of
`asyncio.sslproto`: the states and their order, the time-outs, the flow control in both directions,
what is reported and where. It is native because the transport below calls it per packet.

A callback of the application that raises SystemExit or KeyboardInterrupt ends run_forever(). What
it kept from being done (records that are decrypted and not delivered, the end of the stream, the
end of the handshake) is done when the loop runs again: see again().

Everything runs in the loop's thread. Lifetime: the transport below holds the
protocol, the protocol both transports; connection_lost() cuts all of these.
"""

cimport cython

from mgloop._loop cimport LoopCore, MGL_TLS, mgl_connections, mgl_count
from mgloop.tls._buffers cimport ARRIVAL_SIZE, LoopBuffers, buffers_for
from mgloop.tls._engine cimport Engine
from mgloop.tls._reading cimport Reading
from mgloop.tls._states cimport (
    ABORT, ANSWER, APP_CON_LOST, APP_CON_MADE, APP_EOF, APP_INIT, DO_HANDSHAKE,
    FAIL_HANDSHAKE, FLUSH, FLUSHING, GIVE_UP, IGNORE, LOST, ON_CLOSE, ON_EOF,
    ON_HANDSHAKE_TIMEOUT, ON_PROGRESS, ON_SHUTDOWN_TIMEOUT, READ, SHAKE_HANDS, SHUTDOWN,
    START_CLOSE, START_FLUSH, UNWRAPPED, WRAPPED, reaction,
)
from mgloop.tls._transport cimport SSLTransport

import inspect
import ssl

from asyncio import constants, exceptions, sslproto
from asyncio.log import logger

# isinstance() answers for the standard library's class, and with it for asyncio.BufferedProtocol.
# Taken at import, so that replacing asyncio.sslproto.SSLProtocol by ours does not loop.
cdef object StdProtocol = sslproto.SSLProtocol
cdef object create_transport_context = sslproto._create_transport_context
cdef object HANDSHAKE_TIMEOUT = constants.SSL_HANDSHAKE_TIMEOUT
cdef object SHUTDOWN_TIMEOUT = constants.SSL_SHUTDOWN_TIMEOUT

# Earlier versions close the transport below by its public abort() where later ones (3.13) hand
# the reason on.
cdef bint ABORT_IS_PUBLIC = 'exc' not in inspect.signature(StdProtocol._abort).parameters

cdef object SSLError = ssl.SSLError
cdef object CertificateError = ssl.CertificateError
cdef tuple AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)


@cython.final
@cython.nonecheck(True)
cdef class SSLProtocol(Reading):
    """TLS as a BufferedProtocol of the transport below: a drop-in for
    `asyncio.sslproto.SSLProtocol` (same parameters, Python 3.11 to 3.14).

    *waiter*, a future or None, is resolved when the handshake is over. Times are in seconds;
    None means asyncio's 60 for the handshake and 30 for the shutdown. Without
    *call_connection_made* (start_tls) the application's connection_made() is not called.
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

        self.tls = Engine(sslcontext, self._server_side, self._server_hostname)

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
        self.tls.use(value)

    @property
    def _incoming(self):
        # base_events.start_tls() of 3.13.12 and 3.14.3 writes bytes that a StreamReader has
        # already buffered into this BIO. Before the handshake they are counted when it starts;
        # later we can no longer know where a record begins.
        if self.state != UNWRAPPED:
            self.tls.tampered()
        return self.tls.incoming

    def _get_app_transport(self):
        """Return the application's transport, which is made once."""
        if self._app_transport is None:
            if self.app_transport_created:
                raise RuntimeError('Creating _SSLProtocolTransport twice')
            self._app_transport = SSLTransport(self._loop, self)
            self.app_transport_created = True
        return self._app_transport

    # Called by the transport below.

    def connection_made(self, transport):
        """Start the handshake over *transport*."""
        self._transport = transport
        if self._loop.get_debug():
            logger.debug('%r starts SSL handshake', self)
            self.handshake_started = self._loop.time()
        self.set_state(DO_HANDSHAKE)
        self.handshaking = True
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
        self.drop_writes()
        self.handshake_counted(False)
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
        self.hold_no_more(LOST)
        # Last, for both can fail: the loop may be closed, the protocol no protocol.
        try:
            if tell:
                self.app_state = APP_CON_LOST
                self._loop.call_soon(app_protocol.connection_lost, exc)
        finally:
            self.wakeup_waiter(exc)

    def get_buffer(self, n):
        """Return room for ciphertext. It is this connection's, not the loop's: a transport may
        take it long before there is something to put into it."""
        cdef Py_ssize_t size
        self.own_space(&size)
        return self.arrival.arrival_view

    def buffer_updated(self, nbytes):
        """*nbytes* of ciphertext are in the buffer."""
        cdef Py_ssize_t size
        cdef char* data = self.own_space(&size)
        self.on_ciphertext(data, max(0, min(<Py_ssize_t>nbytes, size)))

    cdef char* own_space(self, Py_ssize_t* size) except NULL:
        if self.arrival is None:
            # Another loop's connection has buffers that nobody shares.
            self.arrival = self.buffers if self.core is None else LoopBuffers()
        return self.arrival.arrival_space(size)

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
            self.react(ON_EOF)
            if self.state == FLUSHING and self._app_reading_paused:
                return True
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
            self.end_of_callback()
        except Exception as exc:
            self.fatal_error(exc, 'Fatal error on SSL protocol')

    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1:
        cdef Engine tls = self.tls
        if (self.state == WRAPPED and tls.raw and tls.framed and not tls.carry
                and not self._app_reading_paused and not self.app_is_buffered):
            return self.advance() if self.read_arrival(data, size) else 0
        tls.feed(data, size)
        return self.advance()

    cdef int advance(self) except -1:
        """Do what the state calls for, with whatever has arrived."""
        try:
            self.react(ON_PROGRESS)
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        return 0

    cdef int again(self) except -1:
        """SystemExit or KeyboardInterrupt is on its way out of the loop, past what was still to be
        done: do that when the loop runs again."""
        if self.state != UNWRAPPED:
            self.put_off(self._resume)
        return 0

    cdef int react(self, int event) except -1:
        """Carry out the table in _states.pxd (writes are in _writing, ON_MORE in _reading)."""
        cdef int what = reaction(event, self.state)
        if what == READ:
            self.do_read()
        elif what == SHAKE_HANDS:
            self.do_handshake()
        elif what == FAIL_HANDSHAKE:
            self.on_handshake_complete(ConnectionResetError)
        elif what == START_CLOSE:
            self.set_state(FLUSHING)
            self.shutdown_timer = self._loop.call_later(
                self.shutdown_timeout, self._check_shutdown_timeout, context=self.context)
            self.do_flush()
        elif what == START_FLUSH or what == FLUSH:
            if what == START_FLUSH:
                self.set_state(FLUSHING)
            if not self._app_reading_paused:
                self.do_flush()
        elif what == ANSWER:
            self.do_shutdown()
        elif what == ABORT:
            self.abort(None)
        elif what == GIVE_UP:
            self.give_up()
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
        cdef bint failed = False
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None
        sslobj = self.tls.sslobj
        try:
            if error is not None:
                raise error
            self.set_state(WRAPPED)
            self.tls.look_at_context()
            peercert = sslobj.getpeercert()
        except Exception as exc:
            failed = True
            self.handshake_counted(False)
            self.set_state(UNWRAPPED)
            if isinstance(exc, CertificateError):
                message = 'SSL handshake failed on verifying the certificate'
            else:
                message = 'SSL handshake failed'
            self.fatal_error(exc, message)
            self.wakeup_waiter(exc)
        if failed:
            return 0
        self.handshake_counted(True)
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
        # Application data may have come with the last record of the handshake, and writes may
        # have been waiting for its end.
        self.do_read()
        return 0

    cdef int handshake_counted(self, bint done) except -1:
        """Once per handshake, in the loop's statistics."""
        cdef mgl_connections *connections
        if not self.handshaking or self.core is None:
            return 0
        self.handshaking = False
        if not done:
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
        """start_shutdown() for whoever is not called by us."""
        try:
            self.start_shutdown()
        except (KeyboardInterrupt, SystemExit):
            self.again()
            raise
        return 0

    cdef int start_shutdown(self) except -1:
        cdef SSLTransport app_transport = self._app_transport
        if app_transport is not None and reaction(ON_CLOSE, self.state) != IGNORE:
            app_transport._closed = True
        return self.react(ON_CLOSE)

    def _check_shutdown_timeout(self):
        self.react(ON_SHUTDOWN_TIMEOUT)

    cdef int give_up(self) except -1:
        """A time-out is over, in a state that it is for."""
        if self.state == DO_HANDSHAKE:
            self.fatal_error(ConnectionAbortedError(
                f'SSL handshake is taking longer than {self.handshake_timeout} seconds: '
                'aborting the connection'), 'Fatal error on transport')
        elif self._transport is not None:
            self._transport._force_close(exceptions.TimeoutError('SSL shutdown timed out'))
        return 0

    cdef int do_flush(self) except -1:
        # Nothing is delivered after this, however small the buffers of the application.
        while self.do_read() and self.state == FLUSHING and not self._app_reading_paused:
            pass
        # The application may have aborted while it was given its last data.
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
        if self.gathering and self.state == WRAPPED:
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
