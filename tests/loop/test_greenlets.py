# SPDX-License-Identifier: GPL-2.0-only
"""The loop in a process whose `select` and `selectors` modules gevent or eventlet has patched.

The selector of these tests runs functions while it waits, as the patched ones run greenlets.
"""

import asyncio
import contextlib
import select
import selectors
import threading

import pytest
import support


class Greenlets:
    """The functions that run during a wait, and the number of waits."""

    def __init__(self):
        self.ready = []
        self.waits = 0

    def run(self):
        self.waits += 1
        while self.ready:
            self.ready.pop(0)()


@pytest.fixture
def greenlets(monkeypatch):
    """Patch the process as gevent does, before the fixture `loop` makes a loop."""
    greenlets = Greenlets()
    original = select.select

    class Selector(selectors.DefaultSelector):
        def select(self, timeout=None):
            greenlets.run()
            return super().select(timeout)

    monkeypatch.setattr(select, "select", lambda *arguments: original(*arguments))
    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    return greenlets


@pytest.fixture
def patched_loop(greenlets, loop_kind):
    with contextlib.closing(support.new_loop(loop_kind)) as loop:
        yield loop


def run(loop, main):
    return loop.run_until_complete(asyncio.wait_for(main, support.PATIENCE))


def test_a_call_of_a_greenlet_ends_the_wait(greenlets, patched_loop):
    async def main():
        done = patched_loop.create_future()
        greenlets.ready.append(
            lambda: patched_loop.call_soon_threadsafe(done.set_result, "answered")
        )
        return await done

    assert [run(patched_loop, main()) for _ in range(3)] == ["answered"] * 3


def test_a_call_of_another_thread_ends_the_wait(greenlets, patched_loop):
    async def main():
        done = patched_loop.create_future()
        thread = threading.Thread(
            target=patched_loop.call_soon_threadsafe, args=(done.set_result, "answered")
        )
        greenlets.ready.append(thread.start)
        answer = await done
        thread.join()
        return answer

    assert run(patched_loop, main()) == "answered"


def test_greenlets_run_while_callbacks_keep_the_loop_busy(greenlets, patched_loop):
    ran = []

    async def main():
        greenlets.ready.append(lambda: ran.append(1))
        while not ran:
            await asyncio.sleep(0)

    run(patched_loop, main())


def test_timers_and_descriptors_end_the_wait(greenlets, patched_loop):
    async def main():
        began = patched_loop.time()
        await asyncio.sleep(0.02)
        assert patched_loop.time() - began >= 0.02
        left, right = support.socket.socketpair()
        with left, right:
            left.setblocking(False)
            greenlets.ready.append(lambda: right.send(b"data"))
            assert await patched_loop.sock_recv(left, 10) == b"data"

    run(patched_loop, main())
    assert greenlets.waits > 0


def test_an_exception_of_the_wait_leaves_the_loop_usable(greenlets, patched_loop):
    def interrupt():
        raise KeyboardInterrupt

    async def main():
        await asyncio.sleep(0.01)
        return "ran"

    greenlets.ready.append(interrupt)
    patched_loop.call_later(support.PATIENCE, patched_loop.stop)
    with pytest.raises(KeyboardInterrupt):
        patched_loop.run_forever()
    assert run(patched_loop, main()) == "ran"


def test_debug_mode_and_timing_see_the_wait(greenlets, patched_loop):
    patched_loop.set_debug(True)
    run(patched_loop, asyncio.sleep(0.01))
    assert greenlets.waits > 0
