# SPDX-License-Identifier: GPL-2.0-only
"""Other servers' worker classes for gunicorn, on mgloop's loop:

    gunicorn -k mgloop.gunicorn.UvicornWorker app:app   # uvicorn_worker's
    gunicorn -k mgloop.gunicorn.AiohttpWorker app:app   # aiohttp.GunicornWebWorker
    gunicorn -k mgloop.gunicorn.AsgiWorker app:app      # gunicorn's own, `-k asgi`

mgloop's own, which serves as `mgloop serve` does, is mgloop.http.gunicorn.Worker.

Each is made when it is asked for, of a class of another package, which nobody else needs. Where
that is missing, gunicorn says so in a sentence. The arbiter has the class made; asyncio's policy is
set in each worker's process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._install import use


class _Installing:
    """For workers that call asyncio.new_event_loop()."""

    def init_process(self) -> None:
        use()
        super().init_process()  # type: ignore[misc]


class _InstallingAsgi(_Installing):
    """gunicorn's takes uvloop instead, if it is there and nothing else is said."""

    cfg: Any

    def init_process(self) -> None:
        self.cfg.set("asgi_loop", "asyncio")
        super().init_process()


def _uvicorn_worker() -> type:
    from uvicorn_worker import (  # type: ignore[import-not-found,unused-ignore]
        UvicornWorker,
    )

    options = UvicornWorker.CONFIG_KWARGS | {"loop": "mgloop:new_event_loop"}
    return type("UvicornWorker", (UvicornWorker,), {"CONFIG_KWARGS": options})


def _aiohttp_worker() -> type:
    from aiohttp.worker import GunicornWebWorker

    return type("AiohttpWorker", (_Installing, GunicornWebWorker), {})


def _asgi_worker() -> type:
    from gunicorn.workers.gasgi import ASGIWorker

    return type("AsgiWorker", (_InstallingAsgi, ASGIWorker), {})


#: The name -> what makes the class, and what it wants.
_WORKERS: dict[str, tuple[Callable[[], type], str]] = {
    "UvicornWorker": (_uvicorn_worker, "uvicorn-worker and gunicorn"),
    "AiohttpWorker": (_aiohttp_worker, "aiohttp and gunicorn"),
    "AsgiWorker": (_asgi_worker, "gunicorn 24 or later"),
}


def __getattr__(name: str) -> Any:
    if name not in _WORKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make, wanted = _WORKERS[name]
    try:
        worker = make()
    except ImportError as exc:
        # Of a RuntimeError gunicorn prints the text, and ends.
        raise RuntimeError(f"{__name__}.{name} requires {wanted}: {exc}") from None
    globals()[name] = worker
    return worker
