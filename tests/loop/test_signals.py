# SPDX-License-Identifier: GPL-2.0-only
"""Signals: handlers of the loop, handlers of Python, and Ctrl-C, also in an idle loop.

Tests that really send a signal send it to a separate program, so that a loop that fails to catch it
does not end the test run. An idle loop must notice a signal by itself, so the programs below lack
timers that would wake them.
"""

import asyncio
import signal
import textwrap
import time

import pytest
import support

#: Seconds within which an idle loop must react, on a busy machine.
PROMPT = 2.0


@pytest.fixture
def converse(loop_kind):
    """Return a function that runs a program and follows a script.

    A text of the script is the next line that the program prints, in PROMPT seconds after a signal;
    a number is a signal that the program gets, when it has had time to become idle. The program
    must end with status 0 and no more output.
    """

    def run(code, *script):
        with support.Program(loop_kind, code) as program:
            sent = time.monotonic()
            for step in script:
                if isinstance(step, str):
                    program.expect(step)
                    assert step == script[0] or time.monotonic() - sent < PROMPT
                else:
                    time.sleep(0.05)
                    sent = time.monotonic()
                    program.signal(step)
            assert program.wait() == (0, "", "")

    return run


@pytest.fixture
def in_child_loop(in_child):
    """Return a function that runs code in a child that makes `loop`, and closes it at the end."""
    return lambda code: in_child(f"loop = new_loop()\n{textwrap.dedent(code)}loop.close()\n")


class TestAddAndRemove:
    def test_remove(self, loop):
        assert loop.remove_signal_handler(signal.SIGUSR1) is False
        loop.add_signal_handler(signal.SIGUSR1, print)
        assert loop.remove_signal_handler(signal.SIGUSR1) is True
        assert loop.remove_signal_handler(signal.SIGUSR1) is False
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    def test_remove_restores_ctrl_c(self, loop):
        loop.add_signal_handler(signal.SIGINT, print)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert loop.remove_signal_handler(signal.SIGINT) is True
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_no_wakeup_descriptor_is_left_behind(self, loop_factory):
        """The handler is added in one run and removed in another, as in aiohttp's run_app()."""
        loop = loop_factory()
        loop.call_soon(loop.add_signal_handler, signal.SIGUSR1, print)
        loop.run_until_complete(asyncio.sleep(0))
        loop.call_soon(loop.remove_signal_handler, signal.SIGUSR1)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert signal.set_wakeup_fd(-1) == -1

    def test_close_removes_all(self, loop_factory):
        loop = loop_factory()
        loop.add_signal_handler(signal.SIGUSR1, print)
        loop.add_signal_handler(signal.SIGUSR2, print)
        loop.close()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL

    def test_closed_in_another_thread(self, loop_factory):
        """Only the main thread can restore the handler; the loop is closed nevertheless."""
        loop = loop_factory()
        loop.add_signal_handler(signal.SIGUSR1, print)
        before = support.open_fds()
        with support.in_thread(pytest.raises, ValueError, loop.close):
            pass
        assert loop.is_closed()
        assert not support.fds_opened_since(before)
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            loop.call_soon_threadsafe(print)
        loop.close()
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def test_none_is_left_by_what_runs_while_it_is_closed(self, loop_factory):
        loop = loop_factory()
        with support.in_thread(
            loop.call_soon_threadsafe, lambda: loop.add_signal_handler(signal.SIGUSR1, print)
        ):
            pass
        loop.close()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL

    def test_the_wake_up_descriptor_is_given_back(self, loop_factory):
        assert signal.set_wakeup_fd(-1) == -1
        loop = loop_factory()
        loop.add_signal_handler(signal.SIGUSR1, print)
        support.turn(loop)
        loop.remove_signal_handler(signal.SIGUSR1)
        support.turn(loop)
        loop.close()
        assert signal.set_wakeup_fd(-1) == -1

    def test_running_alone_leaves_signals_as_they_were(self, loop_factory):
        before = {number: signal.getsignal(number) for number in signal.valid_signals()}
        loop = loop_factory()
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        assert {n: signal.getsignal(n) for n in signal.valid_signals()} == before
        assert signal.set_wakeup_fd(-1) == -1

    @pytest.mark.parametrize("number", [0, 1000, -1])
    def test_no_such_signal(self, loop, number):
        with pytest.raises(ValueError):
            loop.add_signal_handler(number, print)
        with pytest.raises(ValueError):
            loop.remove_signal_handler(number)

    @pytest.mark.parametrize("number", ["SIGINT", None, 1.5])
    def test_not_a_number(self, loop, number):
        with pytest.raises(TypeError):
            loop.add_signal_handler(number, print)
        with pytest.raises(TypeError):
            loop.remove_signal_handler(number)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_signals_that_cannot_be_caught(self, loop, number):
        with pytest.raises(RuntimeError, match="cannot be caught"):
            loop.add_signal_handler(number, print)
        assert loop.remove_signal_handler(number) is False
        support.turn(loop)

    def test_coroutines(self, loop):
        async def coroutine_function():
            pass

        with pytest.raises(TypeError, match="coroutines cannot be used"):
            loop.add_signal_handler(signal.SIGUSR1, coroutine_function)
        coro = coroutine_function()
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            loop.add_signal_handler(signal.SIGUSR1, coro)
        coro.close()

    def test_on_a_closed_loop(self, loop_factory):
        loop = loop_factory()
        loop.close()
        with pytest.raises(RuntimeError, match="closed"):
            loop.add_signal_handler(signal.SIGUSR1, print)

    def test_in_another_thread(self, loop):
        failures = []

        def other():
            try:
                loop.add_signal_handler(signal.SIGUSR1, print)
            except RuntimeError as exc:
                failures.append(exc)

        with support.in_thread(other):
            pass
        assert len(failures) == 1
        assert loop.remove_signal_handler(signal.SIGUSR1) is False

    def test_somebody_elses_wake_up_descriptor_survives_a_run(self, loop, left):
        signal.set_wakeup_fd(left.fileno())
        try:
            support.turn(loop)
        finally:
            assert signal.set_wakeup_fd(-1) == left.fileno()


class TestDelivery:
    def test_a_handler_runs_in_the_loop_with_its_arguments(self, in_child_loop):
        in_child_loop("""
            got = []
            def handler(*args):
                assert asyncio.get_running_loop() is loop
                assert loop.is_running()
                got.append(args)
                loop.stop()
            loop.add_signal_handler(signal.SIGUSR1, handler, 1, "two")
            loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            loop.run_forever()
            assert got == [(1, "two")], got
        """)

    @pytest.mark.parametrize(
        "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
    )
    def test_an_idle_loop_reacts(self, converse, number):
        code = f"""
        loop = new_loop()
        loop.add_signal_handler({int(number)}, loop.stop)
        loop.call_soon(print, "ready")
        loop.run_forever()
        loop.close()
        print("stopped")
        """
        converse(code, "ready", number, "stopped")

    def test_a_handler_set_with_the_signal_module(self, converse):
        """The handler runs although the loop does not know about it and waits without a timeout."""
        code = """
        loop = new_loop()
        signal.signal(signal.SIGUSR1, lambda *args: print("handled"))
        loop.add_signal_handler(signal.SIGTERM, loop.stop)
        loop.call_soon(print, "ready")
        loop.run_forever()
        loop.close()
        """
        converse(code, "ready", *[signal.SIGUSR1, "handled"] * 3, signal.SIGTERM)

    def test_also_without_any_handler_of_the_loop(self, converse):
        code = """
        loop = new_loop()
        def handler(*args):
            print("handled")
            loop.call_soon_threadsafe(loop.stop)
        signal.signal(signal.SIGUSR1, handler)
        loop.call_soon(print, "ready")
        loop.run_forever()
        loop.close()
        """
        converse(code, "ready", signal.SIGUSR1, "handled")

    @pytest.mark.mgloop_only
    def test_a_loop_without_wake_ups_reacts_too(self, converse):
        code = """
        loop = new_loop(enable_wakeup=False)
        loop.add_signal_handler(signal.SIGUSR1, print, "handled")
        loop.add_signal_handler(signal.SIGTERM, loop.stop)
        loop.call_soon(print, "ready")
        loop.run_forever()
        loop.close()
        """
        converse(code, "ready", signal.SIGUSR1, "handled", signal.SIGTERM)

    def test_different_signals_at_once(self, in_child_loop):
        in_child_loop("""
            got = set()
            numbers = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM}
            def handler(number):
                got.add(number)
                if got == numbers:
                    loop.stop()
            for number in numbers:
                loop.add_signal_handler(number, handler, number)
            def send():
                for number in numbers:
                    os.kill(os.getpid(), number)
            loop.call_soon(send)
            loop.run_forever()
        """)

    def test_a_storm_of_signals(self, in_child_loop):
        """More signals than the wake-up pipe holds: no kind is lost, and the loop continues."""
        in_child_loop("""
            got = []
            loop.add_signal_handler(signal.SIGUSR1, got.append, None)
            loop.add_signal_handler(signal.SIGUSR2, loop.stop)
            def storm():
                for _ in range(1000):
                    os.kill(os.getpid(), signal.SIGUSR1)
            loop.call_soon(storm)
            loop.call_later(0.05, os.kill, os.getpid(), signal.SIGUSR2)
            loop.run_forever()
            assert got
        """)

    def test_between_two_runs(self, in_child_loop):
        in_child_loop("""
            got = []
            loop.add_signal_handler(signal.SIGUSR1, got.append, "handled")
            loop.run_until_complete(asyncio.sleep(0.001))
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not got
            loop.run_until_complete(asyncio.sleep(0.01))
            assert got == ["handled"], got
        """)

    def test_replaced_and_removed_while_the_signal_is_on_its_way(self, in_child_loop):
        in_child_loop("""
            got = []
            loop.add_signal_handler(signal.SIGUSR1, got.append, "first")
            loop.add_signal_handler(signal.SIGUSR1, got.append, "second")
            os.kill(os.getpid(), signal.SIGUSR1)
            loop.run_until_complete(asyncio.sleep(0.01))
            assert got == ["second"], got
            os.kill(os.getpid(), signal.SIGUSR1)
            loop.remove_signal_handler(signal.SIGUSR1)
            loop.run_until_complete(asyncio.sleep(0.01))
            assert got == ["second"], got
        """)

    def test_an_exception_in_a_handler_is_reported(self, in_child_loop):
        in_child_loop("""
            contexts = []
            loop.set_exception_handler(lambda loop, context: contexts.append(context))
            loop.add_signal_handler(signal.SIGUSR1, lambda: 1 / 0)
            loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            loop.run_until_complete(asyncio.sleep(0.02))
            assert isinstance(contexts[0]["exception"], ZeroDivisionError)
        """)

    def test_sigchld(self, in_child):
        """A handler for SIGCHLD is allowed, and does not interfere with child processes."""
        in_child("""
            import subprocess
            loop = new_loop()
            loop.add_signal_handler(signal.SIGCHLD, loop.stop)
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.05)"])
            loop.run_forever()
            assert child.wait(10) == 0
            loop.close()
        """)

    def test_a_loop_in_another_thread_is_not_disturbed(self, in_child_loop):
        in_child_loop("""
            got = []
            signal.signal(signal.SIGUSR1, lambda *args: got.append("main thread"))
            thread = threading.Thread(target=loop.run_forever)
            thread.start()
            for _ in range(10):
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.002)
            while not got:
                time.sleep(0.002)
            future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001, "alive"), loop)
            assert future.result(10) == "alive"
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        """)


class TestCtrlC:
    @pytest.mark.parametrize("waits", [True, False], ids=["idle", "never waits"])
    def test_in_run_forever(self, converse, waits):
        code = f"""
        loop = new_loop()
        def spin():
            loop.call_soon(spin)
        if not {waits}:
            spin()
        for _ in range(5):
            loop.call_soon(print, "ready")
            try:
                loop.run_forever()
            except KeyboardInterrupt:
                print("interrupted")
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        print("closed")
        """
        converse(code, *["ready", signal.SIGINT, "interrupted"] * 5, "closed")

    def test_inside_a_callback(self, converse):
        code = """
        loop = new_loop()
        def work():
            print("ready")
            time.sleep(10)
        loop.call_soon(work)
        loop.call_soon(print, "kept")
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted")
        turn(loop)
        loop.close()
        """
        converse(code, "ready", signal.SIGINT, "interrupted", "kept")

    def test_cancels_the_main_task_of_a_runner(self, converse):
        code = """
        async def main():
            print("ready")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                print("cancelled")
                await asyncio.sleep(0.001)
                print("wound down")
                raise
        try:
            run(main())
        except KeyboardInterrupt:
            print("interrupted")
        """
        converse(code, "ready", signal.SIGINT, "cancelled", "wound down", "interrupted")

    def test_twice_in_a_runner(self, loop_kind):
        """The second Ctrl-C does not wait for a task that ignores its cancellation."""
        code = """
        async def main():
            print("ready")
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    print("cancelled")
                    if not first:
                        raise
                    first.pop()
        first = [None]
        try:
            run(main())
        except KeyboardInterrupt:
            print("interrupted")
        """
        with support.Program(loop_kind, code) as program:
            program.expect("ready")
            program.signal(signal.SIGINT)
            program.expect("cancelled")
            program.signal(signal.SIGINT)
            status, out, _ = program.wait()
            assert status == 0
            # The task may or may not be waiting again by then.
            assert out.split()[-1] == "interrupted"

    @pytest.mark.parametrize(
        ("number", "last"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "")]
    )
    def test_the_signal_ends_the_process(self, loop_kind, number, last):
        code = """
        async def main():
            print("ready")
            await asyncio.Event().wait()
        run(main())
        """
        with support.Program(loop_kind, code) as program:
            program.expect("ready")
            program.signal(number)
            status, _, errors = program.wait()
            assert status == -number
            assert errors.rstrip().endswith(last)


class TestSigpipe:
    CODE = """
    def ignored():
        status = open("/proc/self/status").read()
        mask = int(status.split("SigIgn:")[1].split()[0], 16)
        return bool(mask >> (signal.SIGPIPE - 1) & 1)
    signal.signal(signal.SIGPIPE, signal.{disposition})
    before = ignored()
    loop = new_loop()
    assert ignored() is before
    loop.run_until_complete(asyncio.sleep(0.001))
    assert ignored() is before
    loop.close()
    assert ignored() is before is {expected}
    """

    @pytest.mark.parametrize(("disposition", "expected"), [("SIG_IGN", True), ("SIG_DFL", False)])
    def test_its_disposition_is_left_as_it_was_found(self, in_child, disposition, expected):
        code = self.CODE.format(disposition=disposition, expected=expected)
        in_child(code)


def test_the_exit_of_the_interpreter_with_a_handler_in_place(in_child):
    """A loop that was not closed is collected at exit: no traceback, no crash."""
    _, errors = in_child("""
        loop = new_loop()
        loop.add_signal_handler(signal.SIGUSR1, print)
        loop.run_until_complete(asyncio.sleep(0))
    """)
    assert "Traceback" not in errors


def test_children_do_not_inherit_the_loops_descriptors(in_child):
    """The loop's descriptors are close-on-exec, like all descriptors that Python opens."""
    code = """
    before = set(os.listdir("/proc/self/fd"))
    loop = new_loop()
    loop.add_signal_handler(signal.SIGUSR1, print)
    loop.run_until_complete(asyncio.sleep(0))
    own = [int(fd) for fd in set(os.listdir("/proc/self/fd")) - before]
    for fd in own:
        try:
            assert not os.get_inheritable(fd), os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass
        except OSError as exc:
            # The directory that was listed.
            assert exc.errno == 9
    loop.close()
    """
    in_child(code)
