# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The base class of a TLS connection: its states, its attributes and its fatal errors.

    Connection (here)            states, the application's protocol, fatal errors
      +- Writing (_writing)      from the application to ciphertext
           +- Reading (_reading)      from ciphertext to the application
                +- SSLProtocol (_protocol)      handshake, shutdown, events of the transport below
    SSLTransport (_transport)    the transport that the application calls
    Engine (_engine)             records and OpenSSL; DirectEngine and ModuleEngine derive from it
    LoopBuffers (_buffers)       memory that the connections of a loop share

The tables in _states.pxd define which states follow which, and the reaction to each event in each
state. The parts are base classes of one object, because they call each other per packet. Such a
call goes through a C pointer and needs no Python object.

Besides the state there are flags. Each has one owner, and all combinations can occur:

    _app_reading_paused     SSLTransport     the application has paused reading
    _ssl_reading_paused     Reading          the connection has paused reading below, at the limit
    _ssl_writing_paused     SSLProtocol      the transport below has paused writing
    _app_writing_paused     Writing          the connection has paused the application's writing
    _eof_received           SSLProtocol      the peer has stopped sending
    coalescing              Writing          inside a callback: small writes wait for its end
    tls.ended               Engine           the engine has read the close_notify of the peer
    tls.readable            Engine           more data can be decrypted without further input

The module is native because its methods run per packet, on the thread of the loop. Python code can
call any method at any time: before __init__(), which creates the engine, or from a finalizer after
the garbage collector has cleared the object. So all these classes are compiled with nonecheck. An
access through an attribute that holds None then raises AttributeError instead of crashing, and
costs one comparison with a constant. _protocol.pyx describes the lifetime.
"""

cimport cython

from asyncio import exceptions, sslproto
from asyncio.log import logger

cdef object StdState = sslproto.SSLProtocolState
cdef tuple STATE_NAMES = (
    StdState.UNWRAPPED, StdState.DO_HANDSHAKE, StdState.WRAPPED, StdState.FLUSHING,
    StdState.SHUTDOWN)


@cython.nonecheck(True)
cdef class Connection:
    """Hold the state that all parts of a TLS connection share; only SSLProtocol is instantiated."""

    @property
    def _state(self):
        return STATE_NAMES[self.state]

    cdef int set_state(self, int new_state) except -1:
        if not may_follow(self.state, new_state):
            raise RuntimeError(f'cannot switch state from {STATE_NAMES[self.state]} '
                               f'to {STATE_NAMES[new_state]}')
        self.state = new_state
        return 0

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

    cdef int defer(self, object callback) except -1:
        """Schedule the callback for the next iteration, in the context of the connection.

        Otherwise it would run in the context of the present caller, for example of a task.
        """
        self._loop.call_soon(callback, context=self.context)
        return 0

    cdef int release_engine(self, int reason) except -1:
        """Release OpenSSL's objects after this has been called with both reasons.

        CLOSED_TWICE: close() was called on a transport that was closing already, so its extra info
        can be discarded. LOST: the connection is lost. After both, the SSL context and OpenSSL's
        objects are released, even while the application holds the transport. asyncio drops the
        protocol at the second close() instead, and abort() does nothing from then on.
        """
        if self.engine_use == IN_USE:
            self.engine_use = reason
        elif self.engine_use != reason and self.engine_use != RELEASED:
            self.engine_use = RELEASED
            self._extra = {}
            self._sslcontext = None
            self.tls = self.tls.release()
        return 0

    def _fatal_error(self, exc, message='Fatal error on transport'):
        self.fatal_error(exc, message)

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

    cdef int close(self) except -1:
        raise NotImplementedError

    cdef int abort(self, object exc) except -1:
        raise NotImplementedError

    cdef int start_shutdown(self) except -1:
        raise NotImplementedError

    cdef int resume_later(self) except -1:
        raise NotImplementedError
