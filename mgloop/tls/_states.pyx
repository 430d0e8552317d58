# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""What all parts of a TLS connection share: its states, its objects, its errors.

    Connection (here)            states, the application's protocol, fatal errors
      +- Writing (_writing)      from the application to ciphertext
           +- Reading (_reading)      from ciphertext to the application
                +- SSLProtocol (_protocol)      handshake, shutdown, what the transport below calls
    SSLTransport (_transport)    what the application calls
    Engine (_engine)             records and OpenSSL
    LoopBuffers (_buffers)       memory that the connections of a loop share

The table in _states.pxd says which states follow which, and what each event leads to in each of
them; `reaction()` looks it up. One class after the other, because each part calls the ones above
it per packet: by a pointer in C, with no Python object in between.

Besides the state there are flags. Each has one owner, and all combinations can occur:

    _app_reading_paused     SSLTransport     the application does not want data now
    _ssl_reading_paused     Reading          so we have paused the transport below, at the limit
    _ssl_writing_paused     SSLProtocol      the transport below does not want data now
    _app_writing_paused     Writing          so we have paused the application, at the limit
    _eof_received           SSLProtocol      the peer has stopped sending
    gathering               Writing          inside a callback: small writes wait for its end
    tls.ended               Engine           the closing alert of the peer was met
    tls.carry               Engine           there is more to decrypt without further input

Everything runs in the loop's thread. Python code can call any method at any
time: before __init__(), which makes the engine, or from a finalizer after the collector has
cleared the object. So all these classes look for None before they reach into an extension type
(nonecheck, AttributeError), which costs a comparison with a constant.
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
    """See above. Made by SSLProtocol only."""

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

    cdef int put_off(self, object callback) except -1:
        """To the next iteration, where it runs in the context that everything else of ours runs in,
        whoever asks for it."""
        self._loop.call_soon(callback, context=self.context)
        return 0

    cdef int hold_no_more(self, int reason) except -1:
        """UNWANTED: close() was called on a transport that is closing, so nobody will ask for its
        extra info. LOST: the connection is. After both, the context and OpenSSL's objects can go,
        even while the application holds the transport. (asyncio forgets the protocol at the second
        close(), and with it how to abort().)"""
        if self.ending == HELD:
            self.ending = reason
        elif self.ending != reason and self.ending != FORGOTTEN:
            self.ending = FORGOTTEN
            self._extra = {}
            self._sslcontext = None
            self.tls.forget()
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

    cdef int again(self) except -1:
        raise NotImplementedError
