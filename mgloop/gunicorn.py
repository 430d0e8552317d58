# SPDX-License-Identifier: GPL-2.0-only
"""Worker classes for gunicorn that run other servers on mgloop's loop:

    gunicorn -k mgloop.gunicorn.UvicornWorker app:app   # uvicorn_worker.UvicornWorker
    gunicorn -k mgloop.gunicorn.AiohttpWorker app:app   # aiohttp.GunicornWebWorker
    gunicorn -k mgloop.gunicorn.AsgiWorker app:app      # gunicorn's ASGI worker, `-k asgi`

mgloop.http.gunicorn.Worker is the worker class of mgloop's own server. Its variant for WSGI
applications has a name here, too:

    gunicorn -k mgloop.gunicorn.WsgiWorker app:app      # mgloop.http.gunicorn.WsgiWorker

Each other class derives from a class of another package, and is created on first use so that the
other packages are not needed. If its package is missing, gunicorn prints one line. The class is
created in the arbiter, and asyncio's policy is set in each worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .use.install import use


class _Installing:
    """A mix-in that makes asyncio.new_event_loop() create mgloop's loop in the worker."""

    def init_process(self) -> None:
        use()
        super().init_process()  # type: ignore[misc]


class _InstallingAsgi(_Installing):
    """A mix-in that also keeps gunicorn's ASGI worker from choosing uvloop by default."""

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


def _wsgi_worker() -> type:
    from .http.gunicorn import WsgiWorker

    return WsgiWorker


#: The function that creates a class, and the packages that it requires, by the name of the class.
_WORKERS: dict[str, tuple[Callable[[], type], str]] = {
    "UvicornWorker": (_uvicorn_worker, "uvicorn-worker and gunicorn"),
    "AiohttpWorker": (_aiohttp_worker, "aiohttp and gunicorn"),
    "AsgiWorker": (_asgi_worker, "gunicorn 24 or later"),
    "WsgiWorker": (_wsgi_worker, "gunicorn"),
}


def __getattr__(name: str) -> Any:
    if name not in _WORKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make, wanted = _WORKERS[name]
    try:
        worker = make()
    except ImportError as exc:
        # gunicorn prints the message of a RuntimeError and exits.
        raise RuntimeError(f"{__name__}.{name} requires {wanted}: {exc}") from None
    globals()[name] = worker
    return worker
