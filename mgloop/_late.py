# SPDX-License-Identifier: GPL-2.0-only
"""install() that decides nothing, because a server has its loop already or gets it elsewhere: it is
noticed where it can be known, and told in one warning, about the line that called install().

asyncio tells nobody of a loop that is made, so this knows servers: by their modules on the stack
when install() is called, and by what they do afterwards, as they come past. It changes nothing of
theirs. What is not certain is not told: install() works for most programs, and a program may well
have one loop that is not to be mgloop's.

It runs where install() is called, and in the thread that sets a loop, a policy, or imports
something, once each: none of it is hot.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from asyncio import events
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from . import _stdlib
from .loop import Loop

#: A server's package -> what to do instead. The outermost on the stack counts.
_INSTEAD = {
    "daphne": "use `mgloop run daphne` or `mgloop run manage.py runserver`",
    "distributed": "use `mgloop run dask`",
    "fastapi_cli": "use `mgloop run fastapi`",
    "granian": "use `mgloop run granian`",
    "gunicorn": "use -k mgloop.gunicorn.UvicornWorker, AiohttpWorker or AsgiWorker",
    "hypercorn": "use `hypercorn -k asyncio`",
    "ipykernel": "have the kernel started by `mgloop run -m ipykernel_launcher`",
    "sanic": "set app.config.USE_UVLOOP = False, or use `mgloop run sanic`",
    "uvicorn": (
        "use `uvicorn --loop mgloop:new_event_loop` or "
        'uvicorn.run(app, loop="mgloop:new_event_loop")'
    ),
}
_ANYWHERE = "start the program by `mgloop run`, or its loop by mgloop.run()"

#: Modules that import the application when they have made their loop the current one.
_MAKERS = ("aiohttp.worker", "granian", "gunicorn.workers.gasgi")
#: Modules that put a policy in place of another, although nobody has told them to.
_REPLACERS = ("sanic", "uvicorn")
#: What uvicorn imports for a loop that nobody has chosen, and for asyncio's.
_UVICORNS = ("uvicorn.loops.auto", "uvicorn.loops.asyncio")


class Place(NamedTuple):
    """Where install() was called: what a warning is told to be about."""

    filename: str
    lineno: int
    module: str
    registry: dict[Any, Any]

    @classmethod
    def of(cls, frame: FrameType) -> Place:
        """Where that frame is."""
        names = frame.f_globals
        module = names.get("__name__") or "<unknown>"
        registry = names.setdefault("__warningregistry__", {})
        return cls(frame.f_code.co_filename, frame.f_lineno, module, registry)


def _outwards(frame: FrameType | None) -> Iterator[tuple[str, CodeType]]:
    """(the name of the module, the code) of the frame and of those that have called it."""
    while frame is not None:
        yield str(frame.f_globals.get("__name__")), frame.f_code
        frame = frame.f_back


def _caller(frame: FrameType | None) -> str:
    """The module that has called a function of asyncio's, in which that frame is."""
    return next((module for module, _ in _outwards(frame) if module != "asyncio.events"), "")


def _is_in(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _foreign(loop: Any) -> str | None:
    """The class of a loop that is not mgloop's, and that can be used; None: it is not such."""
    if not isinstance(loop, asyncio.AbstractEventLoop) or isinstance(loop, Loop):
        return None
    if loop.is_closed():
        return None
    return f"{type(loop).__module__}.{type(loop).__qualname__}"


def reason(frame: FrameType | None) -> str | None:
    """Why install() decides nothing when that frame calls it; None: it does, as far as is known."""
    if kind := _foreign(events._get_running_loop()):
        return f"comes too late for the loop that runs already, of the class {kind}"
    for module, code in _outwards(frame):
        loop = None
        if _is_in(module, _MAKERS):
            loop = _stdlib.current_loop()
        elif _is_in(module, ("daphne",)):
            reactor = sys.modules.get("twisted.internet.reactor")
            loop = getattr(reactor, "_asyncioEventloop", None)
        elif (
            module == "hypercorn.asyncio.run"
            and code.co_name == "uvloop_worker"
            # Older ones set a policy, before they import the application.
            and "new_event_loop" in code.co_names
        ):
            return "decides nothing: hypercorn is told to take its loop from uvloop"
        if kind := _foreign(loop):
            return f"comes too late: the server has made its loop already, of the class {kind}"
    return None


class Watch:
    """Says once that install(), called at *place*, decides nothing; also a finder of imports."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._told = False

    def tell(self, why: str, frame: FrameType | None) -> None:
        """Warn; the stack from *frame* outwards says who the server is."""
        if self._told:
            return
        self._told = True
        packages = [module.partition(".")[0] for module, _ in _outwards(frame)]
        known = [package for package in packages if package in _INSTEAD]
        instead = _INSTEAD[known[-1]] if known else _ANYWHERE
        filename, lineno, module, registry = self._place
        warnings.warn_explicit(
            f"mgloop.install() {why}; {instead}", RuntimeWarning, filename, lineno, module, registry
        )

    def begin(self) -> None:
        """Look at imports from now on."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Look no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Finds nothing; but uvicorn imports these when it is about to make its loop by them."""
        if name in _UVICORNS and getattr(_stdlib.policy(), "watch", None) is self:
            frame = sys._getframe().f_back
            if any(
                module == "uvicorn.config" and code.co_name == "get_loop_factory"
                for module, code in _outwards(frame)
            ):
                self.tell("decides nothing: uvicorn chooses its loop by itself", frame)

    def loop_is_set(self, loop: asyncio.AbstractEventLoop | None, frame: FrameType | None) -> None:
        """*frame* has called asyncio.set_event_loop()."""
        if (kind := _foreign(loop)) and _is_in(_caller(frame), _MAKERS):
            self.tell(f"decides nothing: the server makes its loop by itself, a {kind}", frame)

    def policy_is_replaced(self, policy: Any, frame: FrameType | None) -> None:
        """*frame* has called asyncio.set_event_loop_policy()."""
        if policy is not None and _is_in(_caller(frame), _REPLACERS):
            kind = f"{type(policy).__module__}.{type(policy).__qualname__}"
            self.tell(f"was undone: the server has set another policy, a {kind}", frame)
