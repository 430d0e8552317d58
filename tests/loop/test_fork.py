# SPDX-License-Identifier: GPL-2.0-only
"""os.fork() with a loop, idle or running.

In subprocesses, since pytest's own process may have threads. The child shares the parent's epoll
set and wake-up descriptors; what it does with its copy of the loop must not reach the parent's.
"""

import pytest
import support


class TestFork:
    """os.fork() with a loop: in subprocesses, since pytest's own process may have threads."""

    def test_a_new_loop_in_the_child(self, loop_kind):
        support.run_python(
            loop_kind,
            """
            inherited = new_loop()
            left, right = socket.socketpair()
            left.setblocking(False)
            got = []
            inherited.add_reader(left, lambda: got.append(left.recv(10)))
            inherited.call_soon(got.append, "soon")
            inherited.run_until_complete(asyncio.sleep(0.001))
            pid = os.fork()
            if pid == 0:
                loop = new_loop()
                a, b = socket.socketpair()
                a.setblocking(False)
                b.send(b"child")
                assert loop.run_until_complete(loop.sock_recv(a, 10)) == b"child"
                loop.run_until_complete(loop.run_in_executor(None, int))
                loop.run_until_complete(asyncio.sleep(0.001))
                loop.close()
                os._exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            right.send(b"parent")
            inherited.run_until_complete(asyncio.sleep(0.05))
            assert got == ["soon", b"parent"], got
            inherited.call_soon_threadsafe(got.append, "still woken")
            inherited.run_until_complete(asyncio.sleep(0.001))
            assert got[-1] == "still woken"
            inherited.remove_reader(left)
            inherited.close()
            """,
        )

    def test_a_fork_inside_a_coroutine(self, loop_kind):
        support.run_python(
            loop_kind,
            """
            async def child_main():
                await asyncio.sleep(0.001)
                return 42

            async def main():
                loop = asyncio.get_running_loop()
                later = loop.create_task(asyncio.sleep(0.05, "parent's timer"))
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        code = run(child_main())
                    finally:
                        os._exit(code)
                status = await loop.run_in_executor(None, os.waitpid, pid, 0)
                assert os.waitstatus_to_exitcode(status[1]) == 42, status
                assert await later == "parent's timer"

            run(main())
            """,
        )

    # asyncio's child takes the wake-up socket out of the epoll set that it shares with its parent.
    @pytest.mark.mgloop_only
    def test_closing_the_inherited_loop_leaves_the_parents_alone(self, loop_kind):
        support.run_python(
            loop_kind,
            """
            loop = new_loop()
            left, right = socket.socketpair()
            left.setblocking(False)
            got = []
            loop.add_reader(left, lambda: got.append(left.recv(10)))
            loop.call_later(1000, print)
            loop.run_until_complete(asyncio.sleep(0.001))
            pid = os.fork()
            if pid == 0:
                loop.close()
                assert loop.is_closed()
                other = new_loop()
                other.run_until_complete(asyncio.sleep(0.001))
                other.close()
                os._exit(42)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
            right.send(b"parent")
            loop.run_until_complete(asyncio.sleep(0.05))
            assert got == [b"parent"], got
            threading.Timer(0.05, loop.call_soon_threadsafe, (loop.stop,)).start()
            loop.run_forever()
            loop.close()
            """,
        )

    @pytest.mark.mgloop_only
    # asyncio's collected loop closes itself, with the effect named above.
    @pytest.mark.mgloop_only
    def test_dropping_the_inherited_loop(self, loop_kind):
        """A child that ends normally, so that the interpreter tears its copy of the loop down."""
        support.run_python(
            loop_kind,
            """
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
            """,
        )
