# SPDX-License-Identifier: GPL-2.0-only
"""The end of the interpreter with loops in every state: no crash, no hang, the right exit status.

The interpreter destroys objects that were not closed in any order, after it has cleared some
modules and while other threads are suspended at arbitrary points.
"""

import pytest

EVERYTHING = """
warnings.simplefilter("ignore")
def everything(loop):
    async def wait():
        await loop.create_future()
    async def generate():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
    async def main():
        global kept
        left, right = socket.socketpair()
        reading, writing = socket.socketpair()
        left.setblocking(False)
        reading.setblocking(False)
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        transport.write(b"x" * 1000000)
        generator = generate()
        await generator.__anext__()
        tasks = [loop.create_task(wait()), loop.create_task(loop.sock_recv(left, 10)),
                 loop.create_task(loop.sock_sendall(left, bytes(4000000)))]
        loop.add_reader(reading, print, loop)
        loop.call_later(1000, print, loop)
        loop.call_soon(print, "not printed", loop)
        loop.call_soon_threadsafe(int)
        kept = (server, transport, generator, tasks, right, writing)
        await loop.run_in_executor(None, int)
        loop.stop()
    loop.create_task(main())
    loop.run_forever()
"""


#: Programs that exit with everything open, and their exit status.
EXITS = {
    "in the main module": ("loop = new_loop(); everything(loop)", 0),
    "in a cycle": ("loop = new_loop(); loop.itself = loop; everything(loop)", 0),
    "in a module that goes late": ("loop = sys.kept = new_loop(); everything(loop)", 0),
    "in debug mode": ("loop = new_loop(); loop.set_debug(True); everything(loop)", 0),
    "with an exit status": ("loop = new_loop(); everything(loop); sys.exit(42)", 42),
    "with a closed loop": ("loop = new_loop(); everything(loop); loop.close()", 0),
    "with a loop that is closed by an exit handler": (
        "import atexit; loop = new_loop(); atexit.register(loop.close); everything(loop)",
        0,
    ),
}


@pytest.mark.parametrize("program", EXITS)
def test_exit_with_everything_open(in_child, program):
    code, status = EXITS[program]
    in_child(f"{EVERYTHING}\n{code}", returncode=status)


class TestThreads:
    def test_a_loop_that_waits_in_a_daemon_thread(self, in_child):
        in_child("""
            loop = new_loop()
            running = threading.Event()
            loop.call_soon(running.set)
            threading.Thread(target=loop.run_forever, daemon=True).start()
            running.wait()
            time.sleep(0.02)
        """)

    def test_a_loop_that_is_busy_in_a_daemon_thread(self, in_child):
        in_child("""
            loop = new_loop()
            running = threading.Event()
            def spin():
                loop.call_soon(spin)
                loop.call_later(0.0001, running.set)
            loop.call_soon(spin)
            threading.Thread(target=loop.run_forever, daemon=True).start()
            running.wait()
        """)

    def test_a_daemon_thread_that_calls_the_loop(self, in_child):
        in_child("""
            warnings.simplefilter("ignore")
            loop = new_loop()
            def hammer():
                while True:
                    loop.call_soon_threadsafe(int)
            threading.Thread(target=hammer, daemon=True).start()
            loop.run_until_complete(asyncio.sleep(0.02))
        """)

    def test_an_exit_from_inside_a_callback(self, in_child):
        in_child(
            """
            warnings.simplefilter("ignore")
            loop = new_loop()
            loop.call_soon(sys.exit, 42)
            loop.call_soon(print, "never")
            loop.run_forever()
            """,
            returncode=42,
        )

    def test_a_loop_that_the_policy_still_holds(self, loop_kind, in_child):
        """The loop is destroyed after the names of modules have been cleared."""
        install = "import mgloop; mgloop.install()" if loop_kind == "mgloop" else ""
        _, errors = in_child(f"""
            warnings.simplefilter("ignore")
            {install}
            async def current():
                return asyncio.get_running_loop()
            loop = asyncio.Runner().run(current())
        """)
        assert errors == ""
