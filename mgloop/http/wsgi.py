# SPDX-License-Identifier: GPL-2.0-only
"""A WSGI application as an ASGI one: a2wsgi's middleware, told when a client has gone.

a2wsgi runs the application in one of ten threads and hands what it yields to send(), through a
queue. If send() raises, nobody takes from that queue any more and the thread waits for ever; ten
clients that went during a download would leave none. And it takes http.disconnect for the end of
the body. So what it is given here never raises from send(), and raises from receive() in the
application's thread; the application is asked for nothing more once there is nobody to have it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from a2wsgi import WSGIMiddleware  # type: ignore[import-not-found,unused-ignore]

from .errors import ClientDisconnected

Message = dict[str, Any]


class _Exchange:
    """One request. `failure`: why nothing more can be sent; another thread looks at it."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.failure: Exception | None = None
        self._receive = receive
        self._send = send
        self._request = getattr(send, "__self__", None)
        self._waiting: set[asyncio.Task[Any] | None] = set()  # a2wsgi's tasks, in here

    async def receive(self) -> Message:
        if self.failure is not None:
            raise self.failure
        self._waiting.add(task := asyncio.current_task())
        try:
            message = await self._receive()
        finally:
            self._waiting.discard(task)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("the client disconnected before its request was complete")
        return message

    async def send(self, message: Message) -> None:
        if self.failure is not None:
            return
        if getattr(self._request, "disconnected", False):
            # The server's send() discards a number of messages before it raises.
            self.failure = ClientDisconnected("the client has disconnected")
            return
        self._waiting.add(task := asyncio.current_task())
        try:
            await self._send(message)
        except Exception as exc:
            self.failure = exc
        except asyncio.CancelledError:
            if self.failure is None:
                raise
        finally:
            self._waiting.discard(task)

    def stop(self) -> None:
        """Nothing more is received or sent, so that the thread ends with its next piece."""
        self.failure = ClientDisconnected("the server cancelled the request")
        for task in self._waiting:
            if task is not None:
                task.cancel()


#: a2wsgi runs the application in a copy of the request's context.
_exchange: contextvars.ContextVar[_Exchange] = contextvars.ContextVar("mgloop WSGI exchange")


def from_wsgi(app: Callable[..., Iterable[bytes]]) -> Callable[..., Awaitable[None]]:
    """`app` for an ASGI server; one set of threads for all its requests."""

    def watched(environ: Any, start_response: Any) -> Iterator[bytes]:
        exchange = _exchange.get()
        pieces = app(environ, start_response)
        try:
            for piece in pieces:
                if exchange.failure is not None:
                    break
                yield piece
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    middleware: Any = WSGIMiddleware(watched)

    async def asgi3(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await middleware(scope, receive, send)
            return
        # In an environ X_User and X-User are one; proxies look after the latter alone.
        headers = [header for header in scope["headers"] if b"_" not in header[0]]
        scope = {**scope, "headers": headers}
        exchange = _Exchange(receive, send)
        _exchange.set(exchange)
        # A thread cannot be cancelled, and must not be left to wait for a loop that has ended.
        task = asyncio.ensure_future(middleware(scope, exchange.receive, exchange.send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            exchange.stop()
            await asyncio.wait([task])
            raise
        if exchange.failure is not None:
            raise exchange.failure

    return asgi3
