# SPDX-License-Identifier: GPL-2.0-only
"""Debug mode: asyncio's checks and logs if it is enabled, and their absence if it is not."""

import asyncio
import functools
import gc
import logging
import ssl
import sys
import time
import warnings

import pytest
import support


class TestSwitch:
    @support.needs_no_dev_mode
    def test_off_by_default(self, loop):
        assert loop.get_debug() is False

    def test_set_and_get(self, loop):
        loop.set_debug(True)
        assert loop.get_debug() is True
        assert "debug=True" in repr(loop)
        loop.set_debug(False)
        assert loop.get_debug() is False

    @pytest.mark.parametrize("options", [("-X", "dev"), ("-X", "dev", "-W", "error")])
    def test_development_mode(self, in_child, options):
        code = "loop = new_loop(); assert loop.get_debug(); loop.close()"
        in_child(code, *options)

    def test_environment(self, in_child):
        code = "loop = new_loop(); assert loop.get_debug() is (sys.argv == ['-c']); loop.close()"
        in_child(code, env={"PYTHONASYNCIODEBUG": "1"})
        code = "loop = new_loop(); assert not loop.get_debug(); loop.close()"
        in_child(code, "-E", env={"PYTHONASYNCIODEBUG": "1"})

    def test_runner_debug(self, in_child):
        code = """
        async def main():
            return asyncio.get_running_loop().get_debug()
        assert run(main(), debug=True) is True
        assert run(main(), debug=False) is False
        """
        in_child(code)

    def test_origin_tracking_follows_the_switch_while_the_loop_runs(self, loop):
        depths = []

        def look():
            depths.append(sys.get_coroutine_origin_tracking_depth())

        loop.set_debug(True)
        loop.call_soon(look)
        support.turn(loop)
        loop.set_debug(False)
        loop.call_soon(look)
        support.turn(loop)
        assert depths[0] > 0
        assert depths[1] == 0
        assert sys.get_coroutine_origin_tracking_depth() == 0

    @pytest.mark.without_debug
    async def test_switched_inside_a_callback(self, loop):
        assert sys.get_coroutine_origin_tracking_depth() == 0
        loop.set_debug(True)
        await support.turns(3)
        assert sys.get_coroutine_origin_tracking_depth() > 0
        with pytest.raises(TypeError):
            loop.call_soon("not callable")
        loop.set_debug(False)
        await support.turns(3)
        assert sys.get_coroutine_origin_tracking_depth() == 0


class TestSlowCallbacks:
    @pytest.fixture
    def log(self, caplog):
        with caplog.at_level(logging.WARNING, logger="asyncio"):
            yield caplog

    def test_a_slow_callback_is_logged(self, debug_loop, log):
        debug_loop.slow_callback_duration = 0.02

        def dawdle():
            time.sleep(0.05)

        debug_loop.call_soon(dawdle)
        support.turn(debug_loop)
        (record,) = [r for r in log.records if "took" in r.getMessage()]
        assert "dawdle" in record.getMessage()
        assert record.levelno == logging.WARNING

    def test_a_slow_step_of_a_task_is_logged_with_the_task(self, debug_loop, log):
        debug_loop.slow_callback_duration = 0.2

        async def dawdle():
            await asyncio.sleep(0)
            time.sleep(0.3)

        debug_loop.run_until_complete(debug_loop.create_task(dawdle(), name="the slow one"))
        (record,) = [r for r in log.records if "took" in r.getMessage()]
        assert "Executing <Task" in record.getMessage()
        assert "the slow one" in record.getMessage()

    def test_a_slow_timer_and_a_slow_reader_are_logged(self, debug_loop, log, left, right):
        debug_loop.slow_callback_duration = 0.01

        def slow_reader():
            time.sleep(0.03)
            debug_loop.remove_reader(left)

        def slow_timer():
            time.sleep(0.03)

        debug_loop.add_reader(left, slow_reader)
        right.send(b"x")
        debug_loop.call_later(0, slow_timer)
        support.turn(debug_loop, 3)
        text = "\n".join(r.getMessage() for r in log.records if "took" in r.getMessage())
        assert "slow_reader" in text
        assert "slow_timer" in text

    def test_a_quick_callback_is_not_logged(self, debug_loop, log):
        debug_loop.slow_callback_duration = 10
        debug_loop.call_soon(time.sleep, 0.001)
        support.turn(debug_loop)
        assert not [r for r in log.records if "took" in r.getMessage()]

    @pytest.mark.without_debug
    def test_nothing_is_logged_without_debug_mode(self, loop, log):
        loop.slow_callback_duration = 0.001
        loop.call_soon(time.sleep, 0.02)
        support.turn(loop)
        assert not log.records

    def test_the_default_limit(self, loop):
        assert loop.slow_callback_duration == 0.1


class TestThreadCheck:
    @pytest.mark.parametrize(
        "schedule",
        [
            lambda loop: loop.call_soon(print),
            lambda loop: loop.call_later(0, print),
            lambda loop: loop.call_later(1, print),
            lambda loop: loop.call_at(loop.time() + 1, print),
        ],
        ids=["call_soon", "call_later(0)", "call_later(1)", "call_at"],
    )
    async def test_calls_from_another_thread_are_refused(self, debug_loop, loop, schedule):
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            await asyncio.to_thread(schedule, debug_loop)

    async def test_call_soon_threadsafe_is_allowed(self, debug_loop, loop):
        event = asyncio.Event()
        await asyncio.to_thread(debug_loop.call_soon_threadsafe, event.set)
        await event.wait()

    def test_a_loop_that_is_not_running_belongs_to_nobody(self, debug_loop):
        order = []
        with support.in_thread(debug_loop.call_soon, order.append, "called"):
            pass
        support.turn(debug_loop)
        assert order == ["called"]

    @pytest.mark.without_debug
    async def test_not_checked_without_debug_mode(self, loop):
        handle = await asyncio.to_thread(loop.call_soon, print)
        handle.cancel()


class TestCallbackCheck:
    METHODS = ("call_soon", "call_soon_threadsafe", "call_later", "call_at")

    @staticmethod
    async def coroutine_function():
        pass

    @pytest.fixture(params=METHODS)
    def schedule(self, request, debug_loop):
        method = getattr(debug_loop, request.param)
        if request.param in ("call_later", "call_at"):
            return functools.partial(method, debug_loop.time() + 1)
        return method

    @pytest.mark.parametrize("thing", [None, 42, "text"])
    def test_not_callable(self, schedule, thing):
        with pytest.raises(TypeError, match="a callable object was expected"):
            schedule(thing)

    def test_a_coroutine_or_its_function(self, schedule):
        coro = self.coroutine_function()
        for thing in (coro, self.coroutine_function):
            with pytest.raises(TypeError, match="coroutines cannot be used with"):
                schedule(thing)
        coro.close()

    @pytest.mark.without_debug
    def test_without_debug_mode_the_error_comes_from_the_call(self, loop, reported):
        loop.call_soon(None)
        support.turn(loop)
        reported.pop(TypeError)


class TestTracebacks:
    @pytest.mark.parametrize("method", ["call_soon", "call_later", "call_soon_threadsafe"])
    def test_a_failing_callback_comes_with_its_place(self, debug_loop, reported, method):
        def fail():
            raise LookupError

        getattr(debug_loop, method)(*((0,) if method == "call_later" else ()), fail)
        support.turn(debug_loop, 2)
        context = reported.pop(LookupError)
        names = [frame.name for frame in context["source_traceback"]]
        assert names[-1] == "test_a_failing_callback_comes_with_its_place"

    @pytest.mark.without_debug
    def test_no_traceback_without_debug_mode(self, loop, reported):
        def fail():
            raise LookupError

        loop.call_soon(fail)
        support.turn(loop)
        assert "source_traceback" not in reported.pop(LookupError)

    def test_handles_show_where_they_were_created(self, debug_loop):
        handles = [debug_loop.call_soon(print), debug_loop.call_later(1, print)]
        for handle in handles:
            assert "created at" in repr(handle)
            assert "test_debug.py" in repr(handle)
            handle.cancel()
            assert "cancelled" in repr(handle)
            assert "created at" in repr(handle)

    def test_cancelled_though_it_cannot_be_shown(self, debug_loop):
        class Callback(support.Calls):
            def __repr__(self):
                raise LookupError("no repr")

        callback = Callback()
        for handle in (debug_loop.call_soon(callback), debug_loop.call_later(0, callback)):
            with pytest.raises(LookupError, match="no repr"):
                handle.cancel()
            assert handle.cancelled()
        support.turn(debug_loop, 3)
        assert not callback

    def test_futures_and_tasks_know_where_they_were_created(self, debug_loop, run):
        here = "test_futures_and_tasks_know_where_they_were_created"
        future = debug_loop.create_future()
        task = debug_loop.create_task(asyncio.sleep(0))
        for made in (future, task):
            assert "created at" in repr(made)
            assert here in [frame.name for frame in made._source_traceback]
        future.cancel()
        run(task)

    def test_the_log_of_the_default_handler_names_the_place(self, debug_loop, caplog):
        def fail():
            raise LookupError

        debug_loop.set_exception_handler(None)
        debug_loop.call_soon(fail)
        with caplog.at_level(logging.ERROR, logger="asyncio"):
            support.turn(debug_loop)
        assert "Object created at" in caplog.text
        assert "test_the_log_of_the_default_handler_names_the_place" in caplog.text

    def test_a_coroutine_never_awaited_names_its_origin(self, debug_loop, run):
        async def forgotten():
            pass

        async def main():
            forgotten()
            gc.collect()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(main())
        (warning,) = [w for w in caught if "never awaited" in str(w.message)]
        assert "Coroutine created at" in str(warning.message)


class TestSocketChecks:
    @pytest.fixture
    def blocking(self, socketpair):
        socketpair[0].setblocking(True)
        return socketpair[0]

    @pytest.mark.parametrize(
        ("method", "args"),
        [
            ("sock_recv", [1]),
            ("sock_recv_into", [bytearray(1)]),
            ("sock_recvfrom", [1]),
            ("sock_recvfrom_into", [bytearray(1)]),
            ("sock_sendall", [b"x"]),
            ("sock_sendto", [b"x", "address"]),
            ("sock_connect", ["address"]),
            ("sock_accept", []),
        ],
    )
    def test_sock_methods_refuse_a_blocking_socket(self, debug_loop, run, blocking, method, args):
        with pytest.raises(ValueError, match="the socket must be non-blocking"):
            run(getattr(debug_loop, method)(blocking, *args))

    def test_sock_sendfile_refuses_a_blocking_socket(self, debug_loop, run, blocking):
        with open(__file__, "rb") as file, pytest.raises(ValueError, match="non-blocking"):
            run(debug_loop.sock_sendfile(blocking, file))

    @pytest.mark.without_debug
    def test_a_blocking_socket_is_not_noticed_without_debug_mode(self, loop, run, left, right):
        left.setblocking(True)
        right.send(b"data")
        assert run(loop.sock_recv(left, 10)) == b"data"

    @pytest.mark.parametrize("debug", [False, True])
    def test_ssl_sockets_are_refused_in_any_mode(self, loop, run, tcp_pair, debug):
        loop.set_debug(debug)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(tcp_pair[0], do_handshake_on_connect=False) as sock:
            for operation in (
                loop.sock_recv(sock, 1),
                loop.sock_recv_into(sock, bytearray(1)),
                loop.sock_sendall(sock, b"x"),
                loop.sock_connect(sock, ("127.0.0.1", 1)),
                loop.sock_accept(sock),
            ):
                with pytest.raises(TypeError, match="SSLSocket"):
                    run(operation)


def test_a_whole_session_in_debug_mode(debug_loop, run, left, right):
    """Combine all features, so that the debug variants of all hot paths run."""

    async def talk():
        for number in range(50):
            await debug_loop.sock_sendall(right, b"%d" % number)
            assert await debug_loop.sock_recv(left, 10) == b"%d" % number

    async def tick():
        for _ in range(20):
            await asyncio.sleep(0.0005)
            await asyncio.to_thread(int)

    async def main():
        await asyncio.gather(talk(), tick())

    run(main())
