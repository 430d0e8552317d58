# SPDX-License-Identifier: GPL-2.0-only
"""WSGI applications as ASGI applications: a2wsgi's middleware, with handling of disconnects.

a2wsgi runs the application in one of ten threads and passes its output to send() through a queue.
If send() raises, nothing reads from that queue any more and the thread waits forever, so ten
clients that disconnect during a download would block all threads. a2wsgi also treats
http.disconnect as the end of the body. The send() that this module passes to a2wsgi therefore never
raises, and its receive() raises ClientDisconnected in the application's thread. After a disconnect
no more output is requested from the application.
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
    """One request. failure: why no more can be sent; another thread reads this attribute."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.failure: Exception | None = None
        self._receive = receive
        self._send = send
        self._request = getattr(send, "__self__", None)
        self._waiting: set[asyncio.Task[Any] | None] = (
            set()
        )  # a2wsgi's tasks in receive() or send()

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
            # The server's send() would discard a number of messages before it raises.
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
        """Stop receiving and sending, so that the thread ends with its next chunk."""
        self.failure = ClientDisconnected("the server cancelled the request")
        for task in self._waiting:
            if task is not None:
                task.cancel()


#: a2wsgi runs the application in a copy of the request's context.
_exchange: contextvars.ContextVar[_Exchange] = contextvars.ContextVar("mgloop WSGI exchange")


def from_wsgi(app: Callable[..., Iterable[bytes]]) -> Callable[..., Awaitable[None]]:
    """Return `app` as an ASGI application. All its requests share ten threads."""

    def watched(environ: Any, start_response: Any) -> Iterator[bytes]:
        exchange = _exchange.get()
        chunks = app(environ, start_response)
        try:
            for chunk in chunks:
                if exchange.failure is not None:
                    break
                yield chunk
        finally:
            if hasattr(chunks, "close"):
                chunks.close()

    middleware: Any = WSGIMiddleware(watched)

    async def asgi3(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await middleware(scope, receive, send)
            return
        # WSGI cannot distinguish X_User from X-User, and proxies sanitize only the latter.
        headers = [header for header in scope["headers"] if b"_" not in header[0]]
        scope = {**scope, "headers": headers}
        exchange = _Exchange(receive, send)
        _exchange.set(exchange)
        # A thread cannot be cancelled, and must not keep waiting for a loop that has stopped.
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
