# SPDX-License-Identifier: GPL-2.0-only
"""The response to the health check of a load balancer.

Its status becomes 503 as soon as a shutdown begins, so that the balancer stops using the server
during --drain-delay, before the server refuses connections. Requests pass through this module only
with --health-path.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from .importing import App

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


def answer(draining: bool) -> Answer:
    """Return status, headers and body of the response. draining: whether a shutdown has begun."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    return (503, headers, b"draining\n") if draining else (200, headers, b"ok\n")


class Health:
    """Answer requests for `path`, and pass all others to the ASGI application `app`.

    draining: returns whether a shutdown has begun.
    """

    def __init__(self, app: App, path: str, draining: Callable[[], bool]) -> None:
        self._app = app
        self._path = path
        self._draining = draining

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Any:
        if scope["type"] == "http" and scope["path"] == self._path:
            return self._answer(send)
        return self._app(scope, receive, send)

    async def _answer(self, send: Any) -> None:
        status, headers, body = answer(self._draining())
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
