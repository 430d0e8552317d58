# SPDX-License-Identifier: GPL-2.0-only
"""The loop and other threads, executors, and other loops.

call_soon_threadsafe must lose neither a call nor a wake-up, whenever the loop begins or ends its
wait; the tests therefore race on purpose and count.
"""

import asyncio
import concurrent.futures
import contextvars
import ctypes
import socket
import struct
import sys
import sysconfig
import threading
import time

import pytest
import support

variable = contextvars.ContextVar("variable", default="outer")

needs_gil = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the GIL nothing stops the loop between two calls of another thread",
)


@pytest.fixture
def c_library():
    """Return the C library, called with the GIL held, so that no thread runs between two calls."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield ctypes.PyDLL(None)
    sys.setswitchinterval(interval)


class TestCallSoonThreadsafe:
    def test_wakes_an_idle_loop(self, loop):
        def other():
            time.sleep(0.05)
            loop.call_soon_threadsafe(loop.stop)

        with support.in_thread(other):
            loop.run_forever()

    @pytest.mark.parametrize("nearer_timer", [False, True])
    def test_wakes_a_loop_that_waits_for_a_far_timer(self, loop, nearer_timer):
        timer = loop.call_later(1000, print)
        call = (loop.call_later, 0.001, loop.stop) if nearer_timer else (loop.stop,)

        def other():
            time.sleep(0.02)
            loop.call_soon_threadsafe(*call)

        with support.in_thread(other):
            loop.run_forever()
        timer.cancel()

    def test_between_two_runs(self, loop):
        order = []
        support.turn(loop)
        with support.in_thread(loop.call_soon_threadsafe, order.append, "called"):
            pass
        support.turn(loop)
        assert order == ["called"]

    def test_from_the_loops_own_thread(self, loop):
        order = []

        def inside():
            loop.call_soon_threadsafe(order.append, "next iteration")
            order.append("this iteration")

        loop.call_soon(inside)
        support.turn(loop)
        assert order == ["this iteration"]
        support.turn(loop)
        assert order == ["this iteration", "next iteration"]

    def test_returns_a_handle_that_can_be_cancelled(self, loop):
        order = []
        handle = loop.call_soon_threadsafe(order.append, "cancelled")
        assert isinstance(handle, asyncio.Handle)
        handle.cancel()
        assert handle.cancelled()
        support.turn(loop)
        assert not order

    def test_cancelled_from_the_thread_that_made_it(self, loop):
        order = []

        def other():
            for _ in range(1000):
                loop.call_soon_threadsafe(order.append, "cancelled").cancel()

        # The loop is blocked, so that no call can run before its cancellation.
        with support.in_thread(other):
            pass
        support.turn(loop)
        assert not order

    @pytest.mark.skipif(
        not hasattr(asyncio.events, "_ThreadSafeHandle"),
        reason="cancel() waits for a running callback since CPython 3.14",
    )
    def test_cancel_waits_for_the_end_of_a_running_callback(self, loop):
        order = []
        running = threading.Event()

        def work():
            running.set()
            time.sleep(0.05)
            order.append("callback done")
            loop.stop()

        handle = loop.call_soon_threadsafe(work)

        def other():
            assert running.wait(support.PATIENCE)
            handle.cancel()
            order.append("cancel returned")

        with support.in_thread(other):
            loop.run_forever()
        assert order == ["callback done", "cancel returned"]
        assert handle.cancelled()

    def test_cancelled_by_its_own_callback(self, loop):
        order = []
        handles = []
        handles.append(loop.call_soon_threadsafe(lambda: order.append(handles[0].cancel())))
        support.turn(loop)
        assert order == [None]

    def test_on_a_closed_loop(self, loop_factory):
        loop = loop_factory()
        loop.close()
        failures = []

        def other():
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as exc:
                failures.append(str(exc))

        with support.in_thread(other):
            pass
        assert failures == ["Event loop is closed"]

    @pytest.mark.parametrize("debug", [False, True])
    def test_while_the_loop_is_being_closed(self, loop_factory, debug):
        """The call is either accepted, and lost with the loop, or refused."""
        failures = []

        def hammer(loop):
            try:
                while True:
                    loop.call_soon_threadsafe(int)
            except RuntimeError as exc:
                if str(exc) != "Event loop is closed":
                    failures.append(exc)

        for _ in range(30):
            loop = loop_factory()
            loop.set_debug(debug)
            with support.in_thread(hammer, loop), support.in_thread(hammer, loop):
                loop.call_later(0.001, loop.stop)
                loop.run_forever()
                loop.close()
        assert not failures

    def test_exceptions_go_to_the_handler(self, loop, reported):
        def fail():
            raise LookupError

        with support.in_thread(loop.call_soon_threadsafe, fail):
            pass
        support.turn(loop)
        reported.pop(LookupError)

    @pytest.mark.parametrize("threads", [1, 4])
    def test_no_call_is_lost_and_each_threads_order_is_kept(self, loop, threads):
        calls_per_thread = 5000
        got = [[] for _ in range(threads)]
        total = [0]

        def arrived(thread, number):
            got[thread].append(number)
            total[0] += 1
            if total[0] == threads * calls_per_thread:
                loop.stop()

        def other(thread):
            for number in range(calls_per_thread):
                loop.call_soon_threadsafe(arrived, thread, number)

        workers = [threading.Thread(target=other, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        loop.run_forever()
        for worker in workers:
            worker.join()
        assert got == [list(range(calls_per_thread))] * threads

    def test_no_wake_up_is_lost_in_two_thousand_round_trips(self, loop):
        """Each call arrives while the loop is about to wait, waits, or has just been woken."""
        answered = threading.Event()

        def other():
            for _ in range(2000):
                answered.clear()
                loop.call_soon_threadsafe(answered.set)
                assert answered.wait(support.PATIENCE)
            loop.call_soon_threadsafe(loop.stop)

        with support.in_thread(other):
            loop.run_forever()

    def test_calls_while_the_loop_is_busy_or_idle_in_turns(self, loop):
        """An unneeded wake-up must not swallow the next one that is needed."""
        answered = threading.Event()

        def work(seconds):
            time.sleep(seconds)
            answered.set()

        def other():
            for number in range(200):
                answered.clear()
                loop.call_soon_threadsafe(time.sleep, 0.0005 * (number % 3))
                if number % 2:
                    time.sleep(0.0003)
                loop.call_soon_threadsafe(work, 0)
                assert answered.wait(support.PATIENCE)
            loop.call_soon_threadsafe(loop.stop)

        with support.in_thread(other):
            loop.run_forever()

    def test_stop_from_another_thread_goes_through_it(self, loop):
        for _ in range(200):
            with support.in_thread(loop.call_soon_threadsafe, loop.stop):
                loop.run_forever()

    @needs_gil
    def test_runs_before_the_event_that_ended_the_wait(self, loop, left, right, c_library):
        """In asyncio such a callback is in the queue before the wait ends."""
        order = []
        loop.add_reader(left, order.append, "event")

        def posted():
            order.append("posted")
            loop.stop()

        def other():
            time.sleep(0.05)
            c_library.write(right.fileno(), b"x", 1)
            loop.call_soon_threadsafe(posted)

        with support.in_thread(other):
            loop.run_forever()
        loop.remove_reader(left)
        assert order == ["posted", "event"]

    @needs_gil
    def test_runs_before_a_connection_that_was_made_before_it_is_accepted(self, loop, c_library):
        """A callback that cancels all tasks must not cancel the task of such a connection before
        its first step, because the task would then never close the connection."""
        calls = []

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                self.task = loop.create_task(self.handle(transport))

            def eof_received(self):
                return True

            async def handle(self, transport):
                calls.append("handled")
                transport.close()

        def cancel_tasks():
            loop.stop()
            for task in asyncio.all_tasks(loop):
                calls.append(f"cancelled {task.get_coro()!r}")
                task.cancel()

        def other():
            time.sleep(0.05)
            assert c_library.connect(client.fileno(), address, len(address)) == 0
            loop.call_soon_threadsafe(cancel_tasks)

        server = loop.run_until_complete(loop.create_server(Protocol, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, b"\x7f\0\0\1")
        with socket.socket() as client:
            with support.in_thread(other):
                loop.run_forever()
            support.turn(loop, 5)
            server.close()
            loop.run_until_complete(asyncio.wait_for(server.wait_closed(), support.PATIENCE))
        assert calls == ["handled"]


class TestWithoutWakeup:
    pytestmark = pytest.mark.mgloop_only

    def test_call_soon_threadsafe_says_how_to_enable_it(self, loop_factory):
        loop = loop_factory(enable_wakeup=False)
        with pytest.raises(RuntimeError, match="enable_wakeup"):
            loop.call_soon_threadsafe(print)
        loop.close()

    def test_the_rest_works(self, loop_factory):
        loop = loop_factory(enable_wakeup=False)

        async def main():
            with support.nonblocking_socketpair() as (left, right):
                loop.call_later(0.002, right.send, b"data")
                assert await loop.sock_recv(left, 10) == b"data"
            await asyncio.sleep(0.001)
            return "done"

        assert loop.run_until_complete(main()) == "done"
        loop.close()

    def test_the_default_is_enabled(self, loop_factory):
        for kwargs in ({}, {"enable_wakeup": True}):
            loop = loop_factory(**kwargs)
            loop.call_soon_threadsafe(loop.stop)
            loop.run_forever()
            loop.close()

    def test_unknown_keywords_are_refused(self, loop_factory):
        with pytest.raises(TypeError):
            loop_factory(unknown=True)


class TestRunCoroutineThreadsafe:
    @pytest.fixture
    def in_background(self, loop):
        """Run `loop` in a thread for the duration of the test."""
        started = threading.Event()
        loop.call_soon(started.set)
        with support.in_thread(loop.run_forever):
            assert started.wait(support.PATIENCE)
            yield loop
            loop.call_soon_threadsafe(loop.stop)

    def test_result(self, in_background):
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001, "result"), in_background)
        assert future.result(support.PATIENCE) == "result"

    def test_exception(self, in_background):
        async def fail():
            raise LookupError("as expected")

        future = asyncio.run_coroutine_threadsafe(fail(), in_background)
        with pytest.raises(LookupError, match="as expected"):
            future.result(support.PATIENCE)

    def test_cancelled_from_outside(self, in_background):
        cancelled = threading.Event()
        started = threading.Event()

        async def wait():
            started.set()
            try:
                await asyncio.sleep(1000)
            finally:
                cancelled.set()

        future = asyncio.run_coroutine_threadsafe(wait(), in_background)
        assert started.wait(support.PATIENCE)
        assert future.cancel()
        assert cancelled.wait(support.PATIENCE)

    def test_time_out_outside(self, in_background):
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(1000), in_background)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(0.01)
        future.cancel()

    def test_many_at_once(self, in_background):
        async def double(number):
            await asyncio.sleep(0)
            return 2 * number

        futures = [asyncio.run_coroutine_threadsafe(double(n), in_background) for n in range(500)]
        assert [f.result(support.PATIENCE) for f in futures] == [2 * n for n in range(500)]

    def test_not_a_coroutine(self, in_background):
        with pytest.raises(TypeError):
            asyncio.run_coroutine_threadsafe(print, in_background)


class TestExecutors:
    def test_default_executor(self, loop, run):
        here = threading.get_ident()
        there = run(loop.run_in_executor(None, threading.get_ident))
        assert there != here

    def test_arguments_and_exceptions(self, loop, run):
        assert run(loop.run_in_executor(None, divmod, 7, 2)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            run(loop.run_in_executor(None, divmod, 7, 0))

    def test_own_executor(self, loop, run):
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="own") as executor:
            name = run(loop.run_in_executor(executor, lambda: threading.current_thread().name))
        assert name.startswith("own")

    def test_set_default_executor(self, loop, run):
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="replaced")
        loop.set_default_executor(executor)
        name = run(loop.run_in_executor(None, lambda: threading.current_thread().name))
        assert name.startswith("replaced")
        run(loop.shutdown_default_executor())
        with pytest.raises(RuntimeError):
            executor.submit(print)

    @pytest.mark.parametrize("executor", [None, 42, object()])
    def test_a_default_executor_of_the_wrong_type(self, loop, executor):
        with pytest.raises(TypeError, match="ThreadPoolExecutor"):
            loop.set_default_executor(executor)

    async def test_many_jobs(self, loop):
        jobs = [loop.run_in_executor(None, lambda n=n: n * n) for n in range(500)]
        assert await asyncio.gather(*jobs) == [n * n for n in range(500)]

    async def test_to_thread_carries_the_context(self, loop):
        variable.set("set in the task")
        assert await asyncio.to_thread(variable.get) == "set in the task"

    async def test_shutdown_waits_for_the_jobs(self, loop):
        done = []

        def job():
            time.sleep(0.05)
            done.append("job")

        future = loop.run_in_executor(None, job)
        await loop.shutdown_default_executor()
        assert done == ["job"]
        await future

    def test_shutdown_without_executor_and_twice(self, loop, run):
        run(loop.shutdown_default_executor())
        run(loop.shutdown_default_executor())

    def test_no_job_after_shutdown(self, loop, run):
        run(loop.shutdown_default_executor())
        with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
            loop.run_in_executor(None, print)

    @support.needs_executor_timeout
    def test_shutdown_within_the_time_out(self, loop, run):
        future = loop.run_in_executor(None, int)
        run(loop.shutdown_default_executor(timeout=support.PATIENCE))
        assert future.done()
        future.cancel()

    @support.needs_executor_timeout
    @pytest.mark.skipif(
        "timeouts" not in asyncio.BaseEventLoop.shutdown_default_executor.__code__.co_names,
        reason="the first releases of CPython 3.12 begin to count when all threads have ended",
    )
    def test_shutdown_with_a_time_out(self, loop, run):
        release = threading.Event()
        future = loop.run_in_executor(None, release.wait, support.PATIENCE)
        with pytest.warns(RuntimeWarning, match="did not finish"):
            run(loop.shutdown_default_executor(timeout=0.02))
        release.set()
        assert run(future) is True

    def test_a_coroutine_function_is_refused_in_debug_mode(self, debug_loop):
        async def coroutine_function():
            pass

        with pytest.raises(TypeError, match="coroutines cannot be used"):
            debug_loop.run_in_executor(None, coroutine_function)

    async def test_cancelling_the_future_of_a_job(self, loop):
        release = threading.Event()
        future = loop.run_in_executor(None, release.wait, support.PATIENCE)
        await asyncio.sleep(0.01)
        await support.cancel(future)
        release.set()

    def test_cancelling_the_future_of_a_job_that_has_not_begun(self, loop, run):
        release, ran = threading.Event(), []

        async def main(executor):
            first = loop.run_in_executor(executor, release.wait, support.PATIENCE)
            second = loop.run_in_executor(executor, ran.append, "second")
            second.cancel()
            await support.turns(3)
            release.set()
            assert await first
            assert await loop.run_in_executor(executor, int) == 0
            assert second.cancelled()

        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            run(main(executor))
        assert not ran

    @pytest.mark.parametrize("late", [False, True], ids=["done at once", "done later"])
    @pytest.mark.parametrize("ends", ["result", "exception", "cancelled"])
    def test_an_executor_of_ones_own_making(self, loop, run, ends, late):
        jobs = []

        class Executor(concurrent.futures.Executor):
            def submit(self, fn, /, *args, **kwargs):
                job = concurrent.futures.Future()
                jobs.append(job)
                if not late:
                    end(job)
                return job

        def end(job):
            if ends == "cancelled":
                job.cancel()
                job.set_running_or_notify_cancel()
            elif ends == "result":
                job.set_result("result")
            else:
                job.set_exception(concurrent.futures.TimeoutError("exception"))

        async def main():
            future = loop.run_in_executor(Executor(), int)
            assert asyncio.isfuture(future)
            if late:
                await asyncio.sleep(0)
                assert not future.done()
                end(jobs[0])
            return await future

        if ends == "result":
            assert run(main()) == "result"
        elif ends == "exception":
            with pytest.raises(asyncio.TimeoutError, match="exception"):
                run(main())
        else:
            with pytest.raises(asyncio.CancelledError):
                run(main())

    def test_an_executor_that_returns_a_future_of_the_loops(self, loop, run):
        class Executor:
            def submit(self, fn, /, *args, **kwargs):
                future = loop.create_future()
                future.set_result(fn(*args))
                return future

        assert run(loop.run_in_executor(Executor(), divmod, 7, 2)) == (3, 1)

    def test_a_job_that_ends_after_the_loop_was_closed(self, loop_factory, caplog):
        loop = loop_factory()
        release = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            loop.call_soon(loop.run_in_executor, executor, release.wait, support.PATIENCE)
            support.turn(loop)
            loop.close()
            release.set()
        assert not caplog.records

    @pytest.mark.mgloop_only  # asyncio runs nothing while it is closed
    def test_a_job_that_ends_while_the_loop_is_being_closed(self, loop_factory, caplog):
        loop = loop_factory()
        release = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            loop.run_until_complete(asyncio.sleep(0))
            loop.call_soon(loop.run_in_executor, executor, release.wait, support.PATIENCE)
            support.turn(loop)

            def end():
                release.set()
                executor.submit(int).result(support.PATIENCE)  # runs after it

            with support.in_thread(loop.call_soon_threadsafe, end):
                pass
            loop.close()
            assert release.is_set()
        assert not caplog.records

    def test_a_closed_loop_takes_no_job(self, loop_factory):
        loop = loop_factory()
        loop.close()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            for one in (executor, None):
                with pytest.raises(RuntimeError, match="Event loop is closed"):
                    loop.run_in_executor(one, int)

    def test_close_does_not_wait_for_the_jobs(self, loop_factory):
        loop = loop_factory()
        release = threading.Event()
        loop.call_soon(loop.run_in_executor, None, release.wait, support.PATIENCE)
        support.turn(loop)
        loop.close()
        release.set()


class TestSeveralLoops:
    def test_one_loop_per_thread(self, loop_factory):
        results = {}

        def body(name, loop):
            async def main():
                with support.nonblocking_socketpair() as (left, right):
                    for number in range(200):
                        message = f"{name} {number}".encode()
                        await loop.sock_sendall(right, message)
                        assert await loop.sock_recv(left, 100) == message
                        if number % 50 == 0:
                            await asyncio.sleep(0.001)
                            await loop.run_in_executor(None, int)
                await loop.shutdown_default_executor()
                return name

            results[name] = loop.run_until_complete(main())

        loops = [loop_factory() for _ in range(4)]
        threads = [
            threading.Thread(target=body, args=(name, loop)) for name, loop in enumerate(loops)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for loop in loops:
            loop.close()
        assert results == {0: 0, 1: 1, 2: 2, 3: 3}

    def test_two_loops_call_each_other(self, loop, loop_factory):
        other = loop_factory()
        rounds = []

        def ping(count):
            rounds.append(count)
            if count == 500:
                other.call_soon_threadsafe(other.stop)
                loop.stop()
            else:
                other.call_soon_threadsafe(pong, count)

        def pong(count):
            loop.call_soon_threadsafe(ping, count + 1)

        with support.in_thread(other.run_forever):
            loop.call_soon(ping, 0)
            loop.run_forever()
        other.close()
        assert rounds == list(range(501))

    def test_loops_in_turns_in_one_thread(self, loop_factory):
        loops = [loop_factory() for _ in range(5)]
        order = []
        for _ in range(3):
            for number, loop in enumerate(loops):
                loop.call_later(0, order.append, number)
                support.turn(loop, 2)
        for loop in loops:
            loop.close()
        assert order == [0, 1, 2, 3, 4] * 3

    def test_created_in_one_thread_run_and_closed_in_another(self, loop_factory):
        loop = loop_factory()

        def body():
            assert loop.run_until_complete(asyncio.sleep(0.001, "slept")) == "slept"
            loop.close()

        with support.in_thread(body):
            pass
        assert loop.is_closed()

    def test_made_and_closed_without_growth(self, loop_kind):
        def one(used):
            loop = support.new_loop(loop_kind)
            if used:
                loop.run_until_complete(asyncio.sleep(0))
                loop.call_soon_threadsafe(print)
            loop.close()

        one(True)
        before = support.open_fds()
        for number in range(200):
            one(number % 2)
        assert support.open_fds() == before

    def test_many_open_at_once(self, loop_kind):
        before = support.open_fds()
        loops = [support.new_loop(loop_kind) for _ in range(100)]
        for loop in loops:
            loop.call_soon(loop.stop)
        for loop in loops:
            loop.run_forever()
        for loop in loops:
            loop.close()
        assert support.open_fds() == before


@pytest.mark.parametrize("busy", [False, True])
def test_other_threads_run(loop, busy):
    """The loop releases the GIL while it waits, and also if it always has ready callbacks."""
    ticks = []

    def other():
        for _ in range(20):
            ticks.append(None)
            time.sleep(0 if busy else 0.001)
        loop.call_soon_threadsafe(loop.stop)

    def spin():
        loop.call_soon(spin)

    if busy:
        loop.call_soon(spin)
    with support.in_thread(other):
        loop.call_later(support.PATIENCE, loop.stop)
        loop.run_forever()
    support.turn(loop)
    assert len(ticks) == 20
