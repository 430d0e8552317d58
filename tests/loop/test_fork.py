# SPDX-License-Identifier: GPL-2.0-only
"""os.fork() with a loop, idle or running.

The tests use subprocesses, because pytest's own process may have threads. The child shares the
parent's epoll set and wake-up descriptors, but its use of the loop must not affect the parent.
"""

import pytest


class TestFork:
    def test_a_new_loop_in_the_child(self, in_child):
        in_child("""
            from forking import in_child
            inherited = new_loop()
            left, right = socket.socketpair()
            left.setblocking(False)
            got = []
            inherited.add_reader(left, lambda: got.append(left.recv(10)))
            inherited.call_soon(got.append, "soon")
            inherited.run_until_complete(asyncio.sleep(0.001))

            def child():
                loop = new_loop()
                a, b = socket.socketpair()
                a.setblocking(False)
                b.send(b"child")
                assert loop.run_until_complete(loop.sock_recv(a, 10)) == b"child"
                loop.run_until_complete(loop.run_in_executor(None, int))
                loop.run_until_complete(asyncio.sleep(0.001))
                loop.close()

            in_child(child)
            right.send(b"parent")
            inherited.run_until_complete(asyncio.sleep(0.05))
            assert got == ["soon", b"parent"], got
            inherited.call_soon_threadsafe(got.append, "still woken")
            inherited.run_until_complete(asyncio.sleep(0.001))
            assert got[-1] == "still woken"
            inherited.remove_reader(left)
            inherited.close()
        """)

    def test_a_fork_inside_a_coroutine(self, in_child):
        in_child("""
            from forking import fork, wait_for
            def child():
                run(asyncio.sleep(0.001))

            async def main():
                loop = asyncio.get_running_loop()
                later = loop.create_task(asyncio.sleep(0.05, "parent's timer"))
                await loop.run_in_executor(None, wait_for, fork(child))
                assert await later == "parent's timer"

            run(main())
        """)

    # A garbage-collected asyncio loop closes itself, with the same effect.
    @pytest.mark.mgloop_only
    def test_dropping_the_inherited_loop(self, in_child):
        """A child ends normally, so that the interpreter destroys its copy of the loop."""
        in_child("""
            loop = new_loop()
            loop.run_until_complete(asyncio.sleep(0.001))
            pid = os.fork()
            if pid == 0:
                warnings.simplefilter("ignore")
                sys.exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            threading.Timer(0.05, loop.call_soon_threadsafe, (loop.stop,)).start()
            loop.run_forever()
            loop.close()
        """)


@pytest.mark.mgloop_only  # asyncio's child keeps the handlers, and then ignores the signals
class TestSignalsOfTheChild:
    """The child of a running loop has the handlers and wake-up descriptor set before the run."""

    def test_signal_handlers_from_before_the_loop(self, in_child):
        in_child("""
            from forking import in_child
            def before(number, frame):
                pass

            async def main():
                loop = asyncio.get_running_loop()
                for number in numbers:
                    loop.add_signal_handler(number, print)
                loop.add_signal_handler(signal.SIGUSR2, print)
                own = lambda *_: None
                signal.signal(signal.SIGUSR2, own)  # is the program's business

                def child():
                    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
                    assert signal.getsignal(signal.SIGUSR1) == before
                    # Not that of asyncio.Runner, which would cancel the parent's task.
                    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
                    assert signal.getsignal(signal.SIGUSR2) == own
                    assert signal.set_wakeup_fd(-1) == wakeup.fileno()
                    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

                in_child(child)
                assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
                assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL

            numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
            signal.signal(signal.SIGUSR1, before)
            wakeup, other = socket.socketpair()
            wakeup.setblocking(False)
            signal.set_wakeup_fd(wakeup.fileno())
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(main())
        """)

    def test_without_a_handler_of_the_loop(self, in_child):
        """A running loop has a wake-up descriptor even without handlers."""
        in_child("""
            from forking import in_child
            async def main():
                def child():
                    assert signal.set_wakeup_fd(-1) == -1

                in_child(child)

            run(main())
        """)

    def test_a_signal_that_comes_before_the_child_runs(self, in_child):
        """The signal ends the child, and the parent's handler is not called for it."""
        in_child("""
            async def main():
                caught = []
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGTERM, caught.append, 1)
                for _ in range(50):
                    pid = os.fork()
                    if pid == 0:
                        time.sleep(60)
                        os._exit(1)
                    os.kill(pid, signal.SIGTERM)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    assert status == -signal.SIGTERM, status
                await asyncio.sleep(0.05)
                assert not caught, caught
                os.kill(os.getpid(), signal.SIGTERM)
                while not caught:
                    await asyncio.sleep(0.001)

            run(main())
        """)

    def test_closing_the_inherited_loop_keeps_the_childs_handlers(self, in_child):
        in_child("""
            from forking import in_child
            def own(number, frame):
                pass

            loop = new_loop()
            loop.add_signal_handler(signal.SIGTERM, print)
            loop.add_signal_handler(signal.SIGUSR1, print)

            def child():
                signal.signal(signal.SIGTERM, own)
                assert loop.remove_signal_handler(signal.SIGUSR1)
                assert not loop.remove_signal_handler(signal.SIGUSR1)
                loop.close()
                assert signal.getsignal(signal.SIGTERM) == own

            in_child(child)
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            loop.close()
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """)

    def test_a_child_of_subprocess_with_preexec_fn(self, in_child):
        in_child("""
            import subprocess

            def preexec():
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
                assert signal.set_wakeup_fd(-1) == -1

            async def main():
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
                subprocess.run(["true"], preexec_fn=preexec, check=True)

            run(main())
        """)
