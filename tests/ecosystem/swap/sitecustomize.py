# SPDX-License-Identifier: GPL-2.0-only
"""Makes the loop named by ECOSYSTEM_LOOP (``module:class``) the default in every process.

Python imports a module of this name at start-up when its folder is on PYTHONPATH. This one replaces
the default loop and asserts that it did. At exit each process appends a line to the file
ECOSYSTEM_COUNTS with the number of loops of the class that it made, so that the runner can detect a
swap without effect. Without ECOSYSTEM_LOOP the module does nothing.
"""

import os


def _swap(name: str) -> None:
    import asyncio
    import atexit
    import importlib
    from asyncio import events, unix_events

    module_name, _, class_name = name.partition(":")
    loop_class = getattr(importlib.import_module(module_name), class_name)
    made = 0
    original_init = loop_class.__init__

    def counting_init(self, *args, **kwargs):
        nonlocal made
        made += 1
        original_init(self, *args, **kwargs)

    loop_class.__init__ = counting_init
    for module in (unix_events, events):
        for value in list(vars(module).values()):
            if isinstance(value, type) and vars(value).get("_loop_factory") is not None:
                value._loop_factory = loop_class
    for module in (asyncio, unix_events):
        for attribute in ("SelectorEventLoop", "EventLoop"):
            if hasattr(module, attribute):
                setattr(module, attribute, loop_class)

    for maker in (asyncio.new_event_loop, asyncio.SelectorEventLoop):
        loop = maker()
        loop.close()
        if type(loop) is not loop_class:
            raise SystemExit(f"sitecustomize: the swap did not take, {maker} made {type(loop)}")
    if made != 2:
        raise SystemExit(f"sitecustomize: {made} loops counted instead of 2")
    made = 0

    def write_count() -> None:
        with open(os.environ["ECOSYSTEM_COUNTS"], "a") as file:
            file.write(f"{os.getpid()} {loop_class.__module__}.{loop_class.__qualname__} {made}\n")

    atexit.register(write_count)


if os.environ.get("ECOSYSTEM_LOOP"):
    _swap(os.environ["ECOSYSTEM_LOOP"])
