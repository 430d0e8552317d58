# SPDX-License-Identifier: GPL-2.0-only
"""Scheduling callbacks: order, handles, context, and exceptions that leave an iteration.

Timers are in test_timers.py, calls from other threads in test_threads.py, running, stopping and
closing in test_running.py. No scheduled callback may be lost, whether the loop is stopped,
interrupted or left by an exception.
"""

import asyncio
import contextlib
import contextvars
import functools
import gc
import weakref

import pytest
import support

variable = contextvars.ContextVar("variable", default="outer")

needs_get_context = pytest.mark.skipif(
    not hasattr(asyncio.Handle, "get_context"), reason="Handle.get_context came with CPython 3.12"
)


each_interruption = pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])


class Token:
    """An object whose life weak references observe."""

    def method(self):
        pass


@pytest.fixture(params=["call_soon", "call_soon_threadsafe", "call_later"])
def schedule(request, loop):
    """Return each of the methods that schedule a callback, as schedule(callback, *args)."""
    method = getattr(loop, request.param)
    return functools.partial(method, 0) if request.param == "call_later" else method


class TestCallSoon:
    def test_callbacks_run_in_the_order_of_the_calls(self, loop):
        order = []
        for number in range(1000):
            loop.call_soon(order.append, number)
        support.turn(loop)
        assert order == list(range(1000))

    @pytest.mark.parametrize("count", range(9))
    def test_positional_arguments_arrive(self, loop, count):
        got = []
        loop.call_soon(lambda *args: got.append(args), *range(count))
        support.turn(loop)
        assert got == [tuple(range(count))]

    def test_callbacks_scheduled_by_callbacks_run_in_the_next_iteration(self, loop):
        order = []

        def first():
            order.append("first")
            loop.call_soon(order.append, "scheduled by first")

        loop.call_soon(first)
        loop.call_soon(order.append, "second")
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert order == ["first", "second"]
        support.turn(loop)
        assert order == ["first", "second", "scheduled by first"]

    def test_an_endless_chain_does_not_starve_descriptors_or_timers(self, loop, left, right):
        seen = []

        def again():
            if len(seen) < 2:
                loop.call_soon(again)
            else:
                loop.stop()

        def readable():
            seen.append("readable")
            loop.remove_reader(left)

        loop.add_reader(left, readable)
        loop.call_later(0.01, seen.append, "timer")
        right.send(b"x")
        loop.call_soon(again)
        loop.run_forever()
        assert sorted(seen) == ["readable", "timer"]

    def test_many_handles_survive_the_growth_of_the_queue(self, loop):
        order = []

        def burst(start):
            for number in range(start, start + 5000):
                loop.call_soon(order.append, number)

        for round_number in range(4):
            burst(round_number * 10000)
            loop.call_soon(burst, round_number * 10000 + 5000)
            support.turn(loop, 2)
        assert order == list(range(40000))

    def test_returns_a_handle(self, loop):
        handle = loop.call_soon(print)
        assert isinstance(handle, asyncio.Handle)
        assert not isinstance(handle, asyncio.TimerHandle)
        assert not handle.cancelled()
        assert "print" in repr(handle)
        handle.cancel()

    def test_every_parameter_has_its_name(self, loop):
        calls = support.Calls()
        now = loop.time()
        loop.call_soon(callback=calls)
        loop.call_soon_threadsafe(callback=calls)
        loop.call_later(delay=0, callback=calls)
        loop.call_later(0, callback=calls)
        loop.call_at(when=now, callback=calls)
        loop.call_at(now, callback=calls, context=None)
        support.turn(loop, 2)
        assert calls.args == [()] * 6
        with pytest.raises(TypeError):
            loop.call_soon(print, callback=print)
        with pytest.raises(TypeError):
            loop.call_later(0, print, delay=0)
        with pytest.raises(TypeError):
            loop.call_at(when=now)

    def test_unknown_keywords(self, loop):
        with pytest.raises(TypeError):
            loop.call_soon(print, flavour="unknown")
        with pytest.raises(TypeError):
            loop.call_soon()

    def test_bound_methods_and_builtins_and_callable_objects_run(self, loop):
        class Callable:
            def __init__(self):
                self.calls = []

            def __call__(self, *args):
                self.calls.append(("call", args))

            def method(self, *args):
                self.calls.append(("method", args))

        subject = Callable()
        loop.call_soon(subject, 1)
        loop.call_soon(subject.method, 2)
        loop.call_soon(subject.calls.append, 3)
        support.turn(loop)
        assert subject.calls == [("call", (1,)), ("method", (2,)), 3]

    def test_arguments_are_released_once_the_callback_has_run(self, loop):
        token = Token()
        alive = weakref.ref(token)
        handle = loop.call_soon(lambda _: None, token)
        del token
        assert alive() is not None
        support.turn(loop)
        gc.collect()
        if support.kind_of(loop) == "mgloop":
            # asyncio's handle keeps them as long as it exists.
            assert alive() is None
        del handle
        gc.collect()
        assert alive() is None

    def test_close_releases_pending_callbacks(self, loop_factory, left):
        loop = loop_factory()
        token = Token()
        alive = weakref.ref(token)
        loop.call_soon(print, token)
        loop.call_later(1000, print, token)
        loop.add_reader(left, print, token, loop)
        del token
        loop.close()
        gc.collect()
        assert alive() is None

    def test_exceptions_go_to_the_handler_and_the_rest_runs(self, loop, reported):
        order = []

        def fail():
            raise LookupError("as expected")

        handle = loop.call_soon(fail)
        loop.call_soon(order.append, "after")
        support.turn(loop)
        assert order == ["after"]
        context = reported.pop(LookupError)
        assert context["handle"] is handle
        assert "fail" in context["message"]
        assert isinstance(context["handle"], asyncio.Handle)

    @pytest.mark.parametrize("exception", [asyncio.CancelledError, GeneratorExit])
    def test_other_base_exceptions_go_to_the_handler_too(self, loop, reported, exception):
        def fail():
            raise exception

        loop.call_soon(fail)
        support.turn(loop)
        reported.pop(exception)


class TestInterruption:
    """SystemExit and KeyboardInterrupt leave run_forever immediately, without loss."""

    @each_interruption
    def test_leaves_run_forever_and_the_rest_runs_later(self, loop, exception):
        order = []

        def leave():
            order.append("leave")
            loop.call_soon(order.append, "scheduled before leaving")
            raise exception

        for _ in range(3):
            order.clear()
            loop.call_soon(order.append, "before")
            loop.call_soon(leave)
            loop.call_soon(order.append, "after")
            with pytest.raises(exception):
                loop.run_forever()
            assert order == ["before", "leave"]
            assert not loop.is_running()
            support.turn(loop, 2)
            assert order == ["before", "leave", "after", "scheduled before leaving"]

    @each_interruption
    def test_timers_due_in_the_same_iteration_are_kept(self, loop, exception):
        order = []

        def leave():
            raise exception

        now = loop.time()
        loop.call_at(now, order.append, "first")
        loop.call_at(now, leave)
        loop.call_at(now, order.append, "last")
        with pytest.raises(exception):
            loop.run_forever()
        support.turn(loop, 2)
        assert order == ["first", "last"]

    @each_interruption
    def test_descriptors_ready_in_the_same_iteration_are_kept(self, loop, exception):
        order = []
        with support.nonblocking_socketpair() as one, support.nonblocking_socketpair() as two:

            def on_ready(pair, name):
                loop.remove_reader(pair[0])
                order.append(name)
                if len(order) == 1:
                    raise exception

            for pair, name in ((one, "one"), (two, "two")):
                pair[1].send(b"x")
                loop.add_reader(pair[0], on_ready, pair, name)
            with pytest.raises(exception):
                loop.run_forever()
            assert len(order) == 1
            support.turn(loop, 2)
            assert sorted(order) == ["one", "two"]

    @each_interruption
    def test_out_of_a_task_through_run_until_complete(self, loop, run, exception):
        async def leave():
            await asyncio.sleep(0)
            raise exception

        for _ in range(3):
            with pytest.raises(exception):
                run(leave())
            assert not loop.is_running()
            assert run(asyncio.sleep(0.001, "well")) == "well"


class TestHandles:
    @pytest.mark.parametrize("by_a_callback", [False, True], ids=["before", "by a callback"])
    def test_cancelled_before_it_runs(self, loop, by_a_callback):
        order = []
        if by_a_callback:
            loop.call_soon(lambda: handle.cancel())
        handle = loop.call_soon(order.append, "cancelled")
        loop.call_soon(order.append, "kept")
        if not by_a_callback:
            handle.cancel()
            assert handle.cancelled()
            assert "cancelled" in repr(handle)
        support.turn(loop)
        assert order == ["kept"]

    def test_cancelled_twice_and_after_the_run(self, loop):
        order = []
        handle = loop.call_soon(order.append, "ran")
        support.turn(loop)
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
        assert order == ["ran"]

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_callback_that_cancels_itself(self, loop, reported, fails):
        order = []
        handles = []

        def cancel_itself(*args):
            handles[0].cancel()
            handles.clear()
            gc.collect()
            order.append(args)
            if fails:
                raise LookupError

        handles.append(loop.call_soon(cancel_itself, bytearray(10), object))
        support.turn(loop)
        assert order == [(bytearray(10), object)]
        if fails:
            reported.pop(LookupError)

    @pytest.mark.parametrize("method", ["call_soon", "call_later"])
    def test_cancel_releases_callback_and_arguments_at_once(self, loop, method):
        token = Token()
        alive = weakref.ref(token)
        args = (1000,) if method == "call_later" else ()
        handle = getattr(loop, method)(*args, token.method, token)
        del token
        handle.cancel()
        gc.collect()
        assert alive() is None

    def test_a_destructor_may_use_the_loop(self, loop):
        order = []

        class Token:
            def __del__(self):
                loop.call_soon(order.append, "scheduled by the destructor")

        loop.call_soon(lambda _: None, Token())
        loop.call_soon(lambda _: None, Token()).cancel()
        support.turn(loop, 3)
        gc.collect()
        support.turn(loop)
        assert order == ["scheduled by the destructor"] * 2

    def test_handles_are_hashable_and_differ(self, loop):
        handles = {loop.call_soon(print) for _ in range(10)}
        assert len(handles) == 10
        for handle in handles:
            handle.cancel()

    def test_weak_references(self, loop):
        for handle in (loop.call_soon(print), loop.call_later(1, print)):
            assert weakref.ref(handle)() is handle
            handle.cancel()

    @needs_get_context
    def test_get_context(self, loop):
        context = contextvars.copy_context()
        handle = loop.call_soon(print, context=context)
        assert handle.get_context() is context
        handle.cancel()
        timer = loop.call_later(1, print, context=context)
        assert timer.get_context() is context
        timer.cancel()


class TestContext:
    def test_a_callback_runs_in_a_copy_of_the_callers_context(self, loop):
        seen = []

        def look_and_change():
            seen.append(variable.get())
            variable.set("changed by the callback")

        token = variable.set("set by the caller")
        try:
            loop.call_soon(look_and_change)
            loop.call_later(0, look_and_change)
            loop.call_soon_threadsafe(look_and_change)
        finally:
            variable.reset(token)
        support.turn(loop, 2)
        assert seen == ["set by the caller"] * 3
        assert variable.get() == "outer"

    @pytest.mark.parametrize("options", [{}, {"context": None}], ids=["", "context=None"])
    def test_callbacks_of_one_context_have_a_copy_each(self, loop, schedule, options):
        seen = []

        def look_and_change():
            seen.append(variable.get())
            variable.set("changed by the callback")

        for _ in range(5):
            schedule(look_and_change, **options)
        support.turn(loop, 2)
        assert seen == ["outer"] * 5

    def test_a_change_between_two_calls_is_for_the_second(self, loop, schedule):
        seen = []

        def schedule_both():
            schedule(lambda: seen.append(variable.get()))
            token = variable.set("changed")
            schedule(lambda: seen.append(variable.get()))
            variable.reset(token)
            schedule(lambda: seen.append(variable.get()))

        loop.call_soon(schedule_both)
        support.turn(loop, 3)
        assert seen == ["outer", "changed", "outer"]

    def test_the_context_of_a_handle_is_its_own(self, loop):
        seen = []
        handles = [loop.call_soon(lambda: seen.append(variable.get())) for _ in range(3)]
        contexts = [handle._context for handle in handles]
        assert contexts[0] is handles[0]._context
        assert len({id(context) for context in contexts}) == 3
        contexts[1].run(variable.set, "set from outside")
        support.turn(loop)
        assert seen == ["outer", "set from outside", "outer"]

    def test_the_context_of_a_failed_callback_is_left(self, loop, reported):
        seen = []

        def fail():
            variable.set("set inside")
            raise LookupError

        loop.call_soon(fail)
        loop.call_soon(lambda: seen.append(variable.get()))
        support.turn(loop)
        reported.pop(LookupError)
        assert seen == ["outer"]

    def test_an_explicit_context_is_used_itself(self, loop, schedule):
        context = contextvars.copy_context()
        schedule(variable.set, "set inside", context=context)
        support.turn(loop, 2)
        assert context[variable] == "set inside"
        assert variable.get() == "outer"

    @pytest.mark.parametrize("exception", [LookupError, KeyboardInterrupt])
    def test_the_context_is_left_when_the_callback_fails(self, loop, reported, exception):
        context = contextvars.copy_context()

        def fail():
            variable.set("set inside")
            raise exception

        loop.call_soon(fail, context=context)
        interrupts = exception is KeyboardInterrupt
        with pytest.raises(exception) if interrupts else contextlib.nullcontext():
            support.turn(loop)
        if not interrupts:
            reported.pop(exception)
        # A context that was not exited cannot be entered again.
        assert context.run(variable.get) == "set inside"
        assert variable.get() == "outer"

    def test_a_context_that_is_already_entered_is_an_error_of_that_callback(
        self, loop, reported, caplog
    ):
        context = contextvars.copy_context()
        order = []

        def inside():
            loop.call_soon(order.append, "never", context=context)
            loop.call_soon(order.append, "kept")
            support.turn(loop)

        context.run(inside)
        assert order == ["kept"]
        # Since 3.12 asyncio tries to run the handler in that context too, and logs that.
        contexts = reported.pop_all()
        assert contexts or "cannot enter context" in caplog.text

    def test_add_reader_keeps_the_callers_context(self, loop, left, right):
        seen = []
        token = variable.set("set by the caller")
        try:
            loop.add_reader(left, lambda: seen.append(variable.get()))
        finally:
            variable.reset(token)
        right.send(b"x")
        support.turn(loop, 2)
        loop.remove_reader(left)
        assert set(seen) == {"set by the caller"}
