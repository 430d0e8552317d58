# SPDX-License-Identifier: GPL-2.0-only
"""No object that the loop makes keeps a reference cycle of the user's objects alive.

Programs keep handles in the objects whose methods the handles call, and those objects in the
context in which they were made: a request with its timeout is such a cycle. asyncio's handles are
visible to the garbage collector, which breaks the cycle. Another loop's handles must do the same,
whether the callback has run, has failed, was cancelled, or was still waiting as the loop closed.
"""

import asyncio
import contextlib
import contextvars
import gc
import weakref

import pytest
import support

current_request = contextvars.ContextVar("current_request", default=None)


class Request:
    """An object that keeps the handle of its own method."""

    def __init__(self):
        self.handle = None

    def work(self, *args):
        pass

    def fail(self, *args):
        raise LookupError

    def cancel(self, *args):
        self.handle.cancel()


def assert_collected(reference):
    gc.collect()
    assert reference() is None, f"kept alive by {gc.get_referrers(reference())}"


SCHEDULE = {
    "call_soon": lambda loop, *call: loop.call_soon(*call),
    "call_soon with many arguments": lambda loop, *call: loop.call_soon(*call, *range(10)),
    "call_soon_threadsafe": lambda loop, *call: loop.call_soon_threadsafe(*call),
    "call_later": lambda loop, *call: loop.call_later(0, *call),
    "call_at": lambda loop, *call: loop.call_at(0, *call),
}


@pytest.fixture(params=SCHEDULE.values(), ids=SCHEDULE)
def schedule(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["normal mode", "debug mode"])
def any_loop(request, loop):
    loop.set_debug(request.param)
    return loop


class TestHandles:
    @pytest.fixture(autouse=True)
    def collector_is_off(self):
        """Disable the collector, so that a cycle is collected only where the test expects it."""
        gc.disable()
        yield
        gc.enable()

    @pytest.mark.parametrize(
        ("method", "cancelled"),
        [("work", False), ("fail", False), ("work", True), ("cancel", False)],
        ids=["has run", "failed", "was cancelled", "cancelled itself"],
    )
    def test_of_a_callback_that_is_over(self, any_loop, schedule, reported, method, cancelled):
        request = Request()
        request.handle = schedule(any_loop, getattr(request, method), request)
        if cancelled:
            request.handle.cancel()
        support.turn(any_loop, 2)
        if method == "fail":
            reported.pop(LookupError)
        reference = weakref.ref(request)
        del request
        assert_collected(reference)

    def test_of_a_callback_that_still_waited_when_the_loop_closed(self, loop_factory, schedule):
        loop = loop_factory()
        request = Request()
        request.handle = schedule(loop, request.work, request)
        loop.close()
        reference = weakref.ref(request)
        del request
        assert_collected(reference)

    def test_of_a_callback_that_was_never_scheduled(self, loop, schedule, monkeypatch):
        """Debug mode fails to extract the stack; the caller sees that exception."""

        def no_stack(*args):
            raise LookupError("no stack")

        loop.set_debug(True)
        request = Request()
        context = contextvars.copy_context()
        context.run(current_request.set, Request())
        kept = context.get(current_request)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.format_helpers, "extract_stack", no_stack)
            with pytest.raises(LookupError, match="no stack"):
                context.run(schedule, loop, request.work, request)
        references = [weakref.ref(request), weakref.ref(kept)]
        del request, kept, context
        for reference in references:
            assert_collected(reference)

    @pytest.mark.parametrize("end", ["run", "fail", "cancel", "close"])
    def test_in_the_context_that_they_keep(self, loop_factory, schedule, end):
        """The handle keeps a context copy, the context the request, the request the handle."""
        loop = loop_factory()
        loop.set_exception_handler(lambda loop, context: None)
        request = Request()
        context = contextvars.copy_context()
        context.run(current_request.set, request)
        callback = request.fail if end == "fail" else request.work
        request.handle = context.run(schedule, loop, callback)
        if end == "cancel":
            request.handle.cancel()
        if end != "close":
            support.turn(loop, 2)
        loop.close()
        reference = weakref.ref(request)
        del request, context, callback
        assert_collected(reference)

    def test_a_timer_that_its_deadline_revives(self, loop):
        """The destructor of the caller's number finds the timer through a weak reference."""

        class Deadline(float):
            def __del__(self):
                timers.append(reference())

        timers = []
        timer = loop.call_at(Deadline(loop.time()), int)
        reference = weakref.ref(timer)
        support.turn(loop)
        del timer
        gc.collect()
        assert len(timers) == 1
        if timers[0] is not None:
            assert timers[0].when() <= loop.time()
            timers[0].cancel()
            assert timers[0].cancelled()

    def test_kept_by_the_loop_itself(self, loop_kind, schedule):
        def make():
            loop = support.new_loop(loop_kind)
            loop.kept = [schedule(loop, print, loop) for _ in range(2)]
            loop.kept[0].cancel()
            loop.close()
            return weakref.ref(loop)

        assert_collected(make())

    def test_kept_by_the_exception_handler(self, loop_kind):
        def make():
            loop = support.new_loop(loop_kind)
            request = Request()
            request.handle = loop.call_soon(request.work)
            loop.set_exception_handler(request.work)
            support.turn(loop)
            loop.close()
            return weakref.ref(loop)

        assert_collected(make())


class TestOthers:
    @pytest.mark.parametrize("side", ["reader", "writer"])
    def test_readers_and_writers(self, loop, left, side):
        for end in ("removed", "replaced"):
            request = Request()
            request.loop = loop
            getattr(loop, f"add_{side}")(left, request.work, request)
            support.turn(loop, 2)
            if end == "removed":
                getattr(loop, f"remove_{side}")(left)
            else:
                getattr(loop, f"add_{side}")(left, print)
                getattr(loop, f"remove_{side}")(left)
            reference = weakref.ref(request)
            del request
            assert_collected(reference)

    def test_a_task_that_waits_for_a_socket_of_a_forgotten_loop(self, in_child):
        """The loop is abandoned without being closed, and collected, with asyncio's warnings."""
        code = """
        import gc, weakref
        warnings.simplefilter("ignore")
        def make():
            loop = new_loop()
            loop.set_exception_handler(lambda loop, context: None)
            left, right = socket.socketpair()
            left.setblocking(False)
            task = loop.create_task(loop.sock_recv(left, 10))
            loop.call_later(1000, print, loop)
            loop.add_reader(right, print, loop)
            turn(loop, 3)
            return weakref.ref(loop)
        reference = make()
        gc.collect()
        gc.collect()
        assert reference() is None
        """
        in_child(code)

    @pytest.mark.parametrize("cancelled", [False, True])
    def test_awaited_socket_operations(self, loop, run, left, right, cancelled):
        request = Request()

        async def work(request):
            request.task = asyncio.current_task()
            request.data = await loop.sock_recv(left, 10)
            await loop.sock_sendall(left, request.data)

        task = loop.create_task(work(request))
        support.turn(loop, 3)
        if cancelled:
            task.cancel()
        else:
            right.send(b"data")
        with contextlib.suppress(asyncio.CancelledError):
            run(task)
        assert task.cancelled() == cancelled
        reference = weakref.ref(request)
        del request, task
        assert_collected(reference)

    def test_a_thousand_requests_leave_nothing(self, loop):
        """The complete cycle, as in a server; the objects are counted."""
        alive = weakref.WeakSet()

        def serve(number):
            request = Request()
            alive.add(request)
            current_request.set(request)
            request.handle = loop.call_later(0.001 * (number % 2), request.work, request)
            request.soon = loop.call_soon(request.work)
            if number % 2:
                request.handle.cancel()

        for number in range(1000):
            loop.call_soon(serve, number)
        # It is scheduled last and runs after every timer: asyncio keeps cancelled ones until then.
        loop.call_soon(loop.call_later, 0.05, loop.stop)
        loop.run_forever()
        gc.collect()
        assert len(alive) == 0
