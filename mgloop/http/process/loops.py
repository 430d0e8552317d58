# SPDX-License-Identifier: GPL-2.0-only
"""Create and run the event loops of the server, as the option `loop` selects them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...use import install
from ..config import Config
from ..errors import StartError
from ..importing import import_from_string

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(config: Config) -> LoopFactory:
    """Return the function that creates the event loops of `config`. Raises StartError."""
    if config.loop in ("auto", "mgloop"):
        return install.new_event_loop
    if config.loop == "asyncio":
        return asyncio.SelectorEventLoop
    factory = import_from_string(config.loop)
    if not callable(factory):
        raise StartError(f"loop: {config.loop!r} is not callable: expected a function or class")
    return factory  # type: ignore[no-any-return]


def run_loop(factory: LoopFactory, main: Callable[[], Any]) -> Any:
    """Run main() as asyncio.run() does, on a loop that `factory` creates."""
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
