# SPDX-License-Identifier: GPL-2.0-only
"""The ASGI lifespan protocol: startup and shutdown of the application.

Startup precedes the first connection, and shutdown follows the last. One task per server runs the
application with the lifespan scope until the server stops, and Lifespan exchanges messages with it.
As in uvicorn, in the mode "auto" an application that raises before its first message does not
support the protocol, which is not an error.
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
    """Run the lifespan startup and shutdown of one application on the running loop.

    state: the dictionary that each request receives a copy of; None without lifespan support.
    """

    def __init__(self, app: App, mode: str) -> None:
        self.state: dict[str, Any] | None = None
        self._app = app
        self._mode = mode
        self._abandoned = False  # startup() has been cancelled
        self._task: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[bool]
        self._stopped: asyncio.Future[bool]

    async def startup(self) -> None:
        """Run the application's startup. Raises LifespanError if it fails."""
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
        """Run the application's shutdown if its startup succeeded. A failure is logged."""
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
        # After its last message the application cleans up, and has time to finish that.
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
            # As in uvicorn, sys.exit() does not stop the server, and neither does a cancelled task
            # of the application. startup() or shutdown() must not wait forever for a message.
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and task and task.cancelling():
                self._ended(None)
                raise
            self._ended(exc)
        else:
            self._ended(None)

    def _ended(self, exc: BaseException | None) -> None:
        """Complete startup() and shutdown() when the application has returned (None) or raised."""
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
