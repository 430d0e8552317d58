# SPDX-License-Identifier: GPL-2.0-only
"""Replace every loop that CPython's tests make by the loop under test, and count these loops.

The tests create a loop in five ways, and this module handles each:

* ``asyncio.new_event_loop()``, ``asyncio.run``, ``asyncio.Runner`` and IsolatedAsyncioTestCase all
  end in the default policy's ``_loop_factory``;
* ``asyncio.SelectorEventLoop(selector)`` and ``asyncio.EventLoop()`` are names in ``asyncio``,
  called with a selector that only the standard library's loop could use, and also used for
  ``isinstance``;
* ``asyncio.BaseEventLoop()`` with its private parts mocked, in ``test_runners`` and
  ``test_pep492``, where any loop does: the fixture that makes it is replaced;
* ``test_utils.TestLoop`` (a loop with a fake clock) in the modules of ``TEST_LOOP_MODULES``, where
  a test that does not script the clock needs a loop and nothing else of it;
* classes with their own ``create_event_loop`` or ``new_loop``, all of which call one of these.

``swap`` is called once, in the process from which the tests are forked and before it imports a test
module, because some classes bind ``asyncio.EventLoop`` when they are defined. ``swap_for_module``
is called in the forked child and ends with it. The module is single-threaded and holds no loop.
"""

import asyncio
from asyncio import events, selector_events, unix_events
from collections.abc import Callable

TEST_LOOP_MODULES = frozenset({"test_tasks", "test_futures"})


class Counts:
    """The numbers of loops of the right type that were made, and of standard loops made."""

    def __init__(self) -> None:
        self.made = 0
        self.strays = 0
        self.wrong: list[str] = []


class _AnyLoop(type):
    """The metaclass of the stand-in for SelectorEventLoop: callable, and usable with isinstance."""

    def __call__(cls, *_args, **_kwargs):
        return cls.make()

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.expected)


def _stand_in(factory: Callable, expected: type, counts: Counts) -> type:
    def make():
        loop = factory()
        if type(loop) is expected:
            counts.made += 1
        else:
            counts.wrong.append(type(loop).__qualname__)
        return loop

    return _AnyLoop("LoopUnderTest", (), {"make": staticmethod(make), "expected": expected})


def swap(factory: Callable, expected: type) -> Counts:
    """Let *factory* make every loop that is requested through asyncio; *expected* is its class."""
    counts = Counts()
    stand_in = _stand_in(factory, expected, counts)

    stdlib_init = selector_events.BaseSelectorEventLoop.__init__

    def counting_init(self, *args, **kwargs):
        if type(self) is not expected:
            counts.strays += 1
        stdlib_init(self, *args, **kwargs)

    selector_events.BaseSelectorEventLoop.__init__ = counting_init

    policies = [
        value
        for module in (unix_events, events)
        for value in vars(module).values()
        if isinstance(value, type) and vars(value).get("_loop_factory") is not None
    ]
    for policy in policies:
        policy._loop_factory = staticmethod(stand_in)
    for module in (asyncio, unix_events):
        for name in ("SelectorEventLoop", "EventLoop"):
            if hasattr(module, name):
                setattr(module, name, stand_in)
    _check_swap(stand_in, counts)
    return counts


def _check_swap(stand_in: type, counts: Counts) -> None:
    """Make a loop in each way and check its class; then reset the counts to zero."""
    makers = [asyncio.new_event_loop, asyncio.SelectorEventLoop]
    if hasattr(asyncio, "EventLoop"):
        makers.append(asyncio.EventLoop)
    for maker in makers:
        loop = maker()
        try:
            if not isinstance(loop, stand_in):
                raise RuntimeError(f"the swap did not take: {maker} made {type(loop)}")
        finally:
            loop.close()
    with asyncio.Runner() as runner:
        if not isinstance(runner.get_loop(), stand_in):
            raise RuntimeError("the swap did not take: asyncio.Runner made another loop")
    if counts.made != len(makers) + 1 or counts.wrong:
        raise RuntimeError("the loops made by the swap are not counted right")
    counts.__init__()


def swap_for_module(module_name: str, fake_clock: bool) -> None:
    """Replace the parts of one test module. With *fake_clock* keep its ``new_test_loop``."""
    if module_name == "test_runners":
        _swap_runners()
    elif module_name == "test_pep492":
        _swap_pep492()
    elif module_name in TEST_LOOP_MODULES and not fake_clock:
        _swap_test_loop()


def _swap_runners() -> None:
    from test.test_asyncio import test_runners

    def new_loop(self):
        # Not asyncio.new_event_loop(), because the fixture's policy would call this again.
        loop = asyncio.SelectorEventLoop()
        shutdown = loop.shutdown_asyncgens
        loop.shutdown_ag_run = False

        async def shutdown_asyncgens():
            loop.shutdown_ag_run = True
            await shutdown()

        loop.shutdown_asyncgens = shutdown_asyncgens
        return loop

    test_runners.BaseTest.new_loop = new_loop


def _swap_pep492() -> None:
    from test.test_asyncio import test_pep492, utils

    def set_up(self):
        utils.TestCase.setUp(self)
        self.loop = asyncio.SelectorEventLoop()
        self.set_event_loop(self.loop)

    test_pep492.BaseTest.setUp = set_up


def _swap_test_loop() -> None:
    from test.test_asyncio import test_tasks, utils

    scripted = utils.TestCase.new_test_loop

    def new_test_loop(self, gen=None):
        if gen is not None:
            return scripted(self, gen)
        loop = asyncio.SelectorEventLoop()
        self.set_event_loop(loop)
        return loop

    def run_until_quiet(self, loop):
        # Upstream checks loop._ready for more callbacks; the longest chain takes four iterations.
        for _ in range(10):
            utils.run_briefly(loop)

    utils.TestCase.new_test_loop = new_test_loop
    test_tasks.GatherTestsBase._run_loop = run_until_quiet


def use_public_close() -> None:
    """Let ``test_utils.TestCase`` close a loop with public methods only.

    CPython's version uses ``loop._default_executor``. Without this, every test of a loop that keeps
    its executor elsewhere would fail after the test itself has passed.
    """
    from test.test_asyncio import utils

    def close_loop(loop):
        if not loop.is_closed():
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    original = utils.TestCase.close_loop

    def close(loop):
        if hasattr(loop, "_default_executor"):
            original(loop)
        else:
            close_loop(loop)

    utils.TestCase.close_loop = staticmethod(close)
