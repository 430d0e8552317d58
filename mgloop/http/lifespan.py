# SPDX-License-Identifier: GPL-2.0-only
"""ASGI's lifespan protocol: the application's start-up before the first connection is accepted,
its shutdown after the last.

One task per server runs the application with the lifespan scope for as long as the server lives;
Lifespan talks to it. Where mode is "auto", an application that raises before it has answered
simply does not speak the protocol, as with uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

from .errors import LifespanError
from .importing import App

logger = logging.getLogger("mgloop.http")

Message = MutableMapping[str, Any]


class Lifespan:
    """startup() and shutdown() of one application on the running loop.

    state: what requests get a copy of; None if the application has no lifespan.
    """

    def __init__(self, app: App, mode: str) -> None:
        self.state: dict[str, Any] | None = None
        self._app = app
        self._mode = mode
        self._abandoned = False  # the start-up has been cancelled
        self._task: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[bool]
        self._stopped: asyncio.Future[bool]

    async def startup(self) -> None:
        """Run the application's start-up; raises LifespanError if that fails."""
        if self._mode == "off":
            return
        loop = asyncio.get_running_loop()
        self._started = loop.create_future()
        self._stopped = loop.create_future()
        self.state = {}
        logger.info("Waiting for application startup.")
        self._events.put_nowait({"type": "lifespan.startup"})
        self._task = loop.create_task(self._run(self.state), name="lifespan")
        try:
            succeeded = await asyncio.shield(self._started)
        except asyncio.CancelledError:
            self._abandoned = True
            await self._cancel()
            raise
        if not succeeded:
            await self._cancel()
            raise LifespanError("Application startup failed. Exiting.")
        if self.state is not None:
            logger.info("Application startup complete.")

    async def shutdown(self) -> None:
        """Run the application's shutdown, if its start-up had succeeded; failure is logged."""
        if self._task is None or self._task.done():
            return
        logger.info("Waiting for application shutdown.")
        self._events.put_nowait({"type": "lifespan.shutdown"})
        try:
            succeeded = await asyncio.shield(self._stopped)
        finally:
            await self._cancel()
        if succeeded:
            logger.info("Application shutdown complete.")
        else:
            logger.error("Application shutdown failed.")

    async def _cancel(self) -> None:
        # What comes after its last message is the application's clean-up: not to be cut short.
        assert self._task is not None
        if self._stopped.done():
            await asyncio.wait([self._task], timeout=5.0)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, state: dict[str, Any]) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": state,
        }
        try:
            await self._app(scope, self._events.get, self._send)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as exc:
            # As with uvicorn, sys.exit() ends no server; nor does a task of the application's that
            # has been cancelled. Whoever waits for an answer must not wait for ever.
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and task and task.cancelling():
                self._ended(None)
                raise
            self._ended(exc)
        else:
            self._ended(None)

    def _ended(self, exc: BaseException | None) -> None:
        """The application returned or raised."""
        if not self._started.done():
            if self._abandoned:
                if exc is not None:
                    logger.error("Exception in 'lifespan' protocol", exc_info=exc)
                self._started.set_result(False)
            elif self._mode == "on":
                if exc is None:
                    logger.error("Application returned before its startup was complete.")
                else:
                    logger.error("Exception in 'lifespan' protocol", exc_info=exc)
                self._started.set_result(False)
            else:
                logger.info("ASGI 'lifespan' protocol appears unsupported.")
                logger.debug(
                    "Exception that the application raised for the 'lifespan' scope:", exc_info=exc
                )
                self.state = None
                self._started.set_result(True)
        elif exc is not None and self._started.result():
            logger.error("Exception in 'lifespan' protocol", exc_info=exc)
        if not self._stopped.done():
            self._stopped.set_result(exc is None)

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        starting = kind.startswith("lifespan.startup.")
        answer = self._started if starting else self._stopped
        if kind not in _SUCCEEDED or answer.done() or not (starting or self._started.done()):
            raise RuntimeError(f"Unexpected ASGI message {kind!r} in the lifespan protocol.")
        if not _SUCCEEDED[kind] and message.get("message"):
            logger.error("%s", message["message"])
        answer.set_result(_SUCCEEDED[kind])


_SUCCEEDED = {
    "lifespan.startup.complete": True,
    "lifespan.startup.failed": False,
    "lifespan.shutdown.complete": True,
    "lifespan.shutdown.failed": False,
}
