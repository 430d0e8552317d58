# SPDX-License-Identifier: GPL-2.0-only
"""The life of a loop: run_forever, run_until_complete, stop, close, and its exception handler."""

import asyncio
import contextvars
import gc
import logging
import shutil
import sys
import threading
import weakref
from pathlib import Path

import pytest
import support

variable = contextvars.ContextVar("variable", default="outer")


class TestRunAndStop:
    def test_stop_before_run_makes_one_iteration(self, loop):
        order = []
        loop.call_soon(order.append, "once")
        loop.stop()
        loop.run_forever()
        assert order == ["once"]

    def test_stop_finishes_the_iteration(self, loop):
        order = []
        loop.call_soon(loop.stop)
        loop.call_soon(order.append, "same iteration")
        loop.run_forever()
        assert order == ["same iteration"]

    def test_stop_is_used_up_by_one_run(self, loop):
        loop.stop()
        loop.run_forever()
        order = []
        loop.call_soon(order.append, "first")
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert order == ["first"]

    def test_stop_from_a_timer_and_from_a_descriptor(self, loop, left, right):
        loop.call_later(0.001, loop.stop)
        loop.run_forever()
        loop.add_reader(left, loop.stop)
        right.send(b"x")
        loop.run_forever()
        loop.remove_reader(left)

    def test_is_running(self, loop):
        seen = []
        assert not loop.is_running()
        loop.call_soon(lambda: seen.append(loop.is_running()))
        support.turn(loop)
        assert seen == [True]
        assert not loop.is_running()

    def test_the_running_loop_is_known_while_it_runs(self, loop):
        seen = []
        loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
        support.turn(loop)
        assert seen == [loop]
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    def test_a_running_loop_cannot_be_run_again(self, loop, run):
        async def nested():
            coro = asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="already running"):
                loop.run_until_complete(coro)
            coro.close()
            assert loop.is_running()
            return "still running"

        assert run(nested()) == "still running"

    def test_a_second_loop_cannot_be_run_inside_the_first(self, loop, run, loop_factory):
        other = loop_factory()

        async def nested():
            coro = asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="while another loop is running"):
                other.run_until_complete(coro)
            coro.close()
            assert asyncio.get_running_loop() is loop

        run(nested())
        other.close()

    def test_a_loop_that_runs_in_another_thread_cannot_be_run(self, loop):
        running = threading.Event()
        loop.call_soon(running.set)
        with support.in_thread(loop.run_forever):
            assert running.wait(support.PATIENCE)
            coro = asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="already running"):
                loop.run_until_complete(coro)
            coro.close()
            loop.call_soon_threadsafe(loop.stop)

    # CPython 3.13.0 refuses run_forever too, but then forgets that its loop is running.
    @pytest.mark.mgloop_only
    def test_a_refused_run_forever_changes_nothing(self, loop, run, loop_factory):
        other = loop_factory()

        async def nested():
            with pytest.raises(RuntimeError, match="already running"):
                loop.run_forever()
            assert loop.is_running()
            with pytest.raises(RuntimeError, match="while another loop is running"):
                other.run_forever()
            assert not other.is_running()
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            return "still running"

        assert run(nested()) == "still running"
        support.turn(other)
        other.close()

    @pytest.mark.mgloop_only
    def test_run_forever_refused_in_another_thread_changes_nothing(self, loop):
        running = threading.Event()
        loop.call_soon(running.set)
        with support.in_thread(loop.run_forever):
            assert running.wait(support.PATIENCE)
            with pytest.raises(RuntimeError, match="already running"):
                loop.run_forever()
            assert loop.is_running()
            loop.call_soon_threadsafe(loop.stop)

    def test_runs_again_in_another_thread(self, loop):
        order = []
        support.turn(loop)
        loop.call_soon(lambda: order.append(threading.get_ident()))
        with support.in_thread(support.turn, loop) as thread:
            pass
        assert order == [thread.ident]
        support.turn(loop)

    def test_a_timer_does_not_wait_for_descriptors_and_vice_versa(self, loop, left, right):
        order = []

        def on_readable():
            loop.remove_reader(left)
            order.append("readable")
            loop.stop()

        loop.add_reader(left, on_readable)
        timer = loop.call_later(1000, order.append, "timer")
        loop.call_later(0.005, right.send, b"x")
        loop.run_forever()
        timer.cancel()
        assert order == ["readable"]


class TestRunUntilComplete:
    def test_coroutine_task_future_and_awaitable(self, loop, run):
        class Awaitable:
            def __await__(self):
                yield from asyncio.sleep(0).__await__()
                return "awaitable"

        future = loop.create_future()
        loop.call_soon(future.set_result, "future")
        assert run(asyncio.sleep(0, "coroutine")) == "coroutine"
        assert run(loop.create_task(asyncio.sleep(0, "task"))) == "task"
        assert run(future) == "future"
        assert run(Awaitable()) == "awaitable"

    def test_a_future_that_is_done(self, loop, run):
        future = loop.create_future()
        future.set_result("done before")
        assert run(future) == "done before"

    def test_exceptions_come_out(self, run):
        async def fail():
            await asyncio.sleep(0)
            raise LookupError("as expected")

        with pytest.raises(LookupError, match="as expected"):
            run(fail())

    def test_cancellation_comes_out(self, loop, run):
        task = loop.create_task(asyncio.sleep(1000))
        loop.call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            run(task)

    def test_stopped_too_early(self, loop, run):
        future = loop.create_future()
        loop.call_soon(loop.stop)
        with pytest.raises(RuntimeError, match="Event loop stopped before Future completed"):
            run(future)
        future.cancel()

    @pytest.mark.parametrize("thing", [None, 42, "text", lambda: None])
    def test_not_awaitable(self, run, thing):
        with pytest.raises(TypeError):
            run(thing)

    def test_a_future_of_another_loop(self, loop, run, loop_factory):
        other = loop_factory()
        future = other.create_future()
        with pytest.raises(ValueError, match="loop"):
            run(future)
        other.close()

    def test_awaiting_a_future_of_another_loop(self, run, loop_factory):
        other = loop_factory()

        async def await_foreign():
            await other.create_future()

        with pytest.raises(RuntimeError, match="attached to a different loop"):
            run(await_foreign())
        other.close()

    def test_a_failure_before_an_interruption_is_not_reported_twice(self, loop, run):
        """The task's KeyboardInterrupt leaves run_until_complete and is not reported elsewhere."""

        async def leave():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(leave())
        gc.collect()


class TestClose:
    def test_twice(self, loop_factory):
        loop = loop_factory()
        assert not loop.is_closed()
        loop.close()
        assert loop.is_closed()
        loop.close()

    def test_never_run(self, loop_factory):
        loop = loop_factory()
        loop.call_soon(print)
        loop.call_later(1, print)
        loop.close()

    def test_while_running(self, loop, run):
        async def close():
            with pytest.raises(RuntimeError, match="Cannot close a running event loop"):
                loop.close()

        run(close())
        assert not loop.is_closed()

    @pytest.mark.without_debug
    def test_methods_that_work_on_a_closed_loop(self, loop_factory):
        loop = loop_factory()
        before = loop.time()
        loop.close()
        assert loop.time() >= before
        assert not loop.is_running()
        assert not loop.get_debug()
        loop.stop()
        with support.nonblocking_socketpair() as (left, _):
            assert loop.remove_reader(left) is False
            assert loop.remove_writer(left) is False
        assert "closed=True" in repr(loop)

    def test_an_unclosed_loop_warns(self, loop_kind):
        def lose_a_loop():
            loop = support.new_loop(loop_kind)
            loop.call_later(1000, print, loop)
            del loop
            gc.collect()

        with pytest.warns(ResourceWarning, match="unclosed event loop"):
            lose_a_loop()
        # asyncio's selector and self-pipe are closed when they are collected.
        gc.collect()

    def test_a_closed_loop_is_collected(self, loop_kind):
        def one():
            loop = support.new_loop(loop_kind)
            loop.set_exception_handler(lambda loop, context: None)
            loop.call_later(1000, loop.stop)
            loop.run_until_complete(asyncio.sleep(0.001))
            loop.run_until_complete(loop.run_in_executor(None, int))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            return weakref.ref(loop)

        alive = one()
        gc.collect()
        assert alive() is None


class TestExceptionHandler:
    def test_get_and_set(self, loop):
        loop.set_exception_handler(None)
        assert loop.get_exception_handler() is None

        def handler(loop, context):
            raise AssertionError("not called")

        loop.set_exception_handler(handler)
        assert loop.get_exception_handler() is handler
        with pytest.raises(TypeError):
            loop.set_exception_handler("not callable")
        loop.set_exception_handler(None)

    def test_gets_the_loop_and_the_context(self, loop):
        calls = []
        loop.set_exception_handler(lambda *args: calls.append(args))
        context = {"message": "a message"}
        loop.call_exception_handler(context)
        assert calls == [(loop, context)]

    def test_the_default_handler_logs(self, loop, caplog):
        def fail():
            raise LookupError("as expected")

        loop.set_exception_handler(None)
        loop.call_soon(fail)
        with caplog.at_level(logging.ERROR, logger="asyncio"):
            support.turn(loop)
        (record,) = caplog.records
        assert "fail" in record.getMessage()
        assert isinstance(record.exc_info[1], LookupError)

    def test_a_handler_that_fails_is_logged(self, loop, caplog):
        def fail():
            raise LookupError("the callback's")

        def handler(loop, context):
            raise ArithmeticError("the handler's")

        loop.set_exception_handler(handler)
        loop.call_soon(fail)
        with caplog.at_level(logging.ERROR, logger="asyncio"):
            support.turn(loop)
        (record,) = caplog.records
        assert isinstance(record.exc_info[1], ArithmeticError)

    def test_a_handler_may_interrupt(self, loop):
        order = []

        def fail():
            raise LookupError

        def handler(loop, context):
            raise KeyboardInterrupt

        loop.set_exception_handler(handler)
        loop.call_soon(fail)
        loop.call_soon(order.append, "kept")
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        support.turn(loop)
        assert order == ["kept"]

    def test_runs_in_the_context_of_the_callback(self, loop):
        """As in asyncio since 3.12; before, the handler ran in the surrounding context."""
        seen = []

        def fail():
            variable.set("the callback's")
            raise LookupError

        loop.set_exception_handler(lambda loop, context: seen.append(variable.get()))
        loop.call_soon(fail)
        support.turn(loop)
        assert seen == ["the callback's" if hasattr(asyncio.Handle, "get_context") else "outer"]


def test_a_source_tree_that_is_not_built_says_so(tmp_path):
    """Python was started in a clone, whose folder hides the installed package."""
    package = tmp_path / "mgloop"
    shutil.copytree(
        Path(__file__).resolve().parents[2] / "mgloop",
        package,
        ignore=lambda folder, names: [name for name in names if name.endswith(".so")],
    )
    # -S, because site would find the installed package first, or compile an editable one.
    done = support.finished([sys.executable, "-S", "-c", "import mgloop"], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: the compiled modules of mgloop were not found in {package}: if this is a"
        " source tree, start Python in another directory, or run make build there and use its"
        " .venv/bin/python"
    )
