# SPDX-License-Identifier: GPL-2.0-only
"""Software that patches asyncio, or the modules that it uses, and expects an effect.

Test tools detect blocking calls by replacing functions of os and walking the stack. Monitoring
tools replace asyncio.events.Handle._run to time callbacks. Both rely on the standard library's
files and classes, and a loop that works differently must support them. The tests imitate these
tools and do not need them.
"""

import asyncio
import contextlib
import contextvars
import inspect
import os
import signal
import socket
import sys
import time

import pytest
import support

needs_cleanup_socket = pytest.mark.skipif(
    "cleanup_socket"
    not in inspect.signature(asyncio.SelectorEventLoop.create_unix_server).parameters,
    reason="create_unix_server(cleanup_socket=) came with CPython 3.13",
)


# --- blocking calls ------------------------------------------------------------------------------


class BlockingError(Exception):
    """The tool's exception; not an OSError, because asyncio's own code would swallow that."""


#: Functions of asyncio's files that may make each call while a loop runs.
PERMITTED = {
    "stat": {"asyncio/unix_events.py": {"create_unix_server", "_stop_serving"}},
    "unlink": {"asyncio/unix_events.py": {"_stop_serving"}},
    "sendfile": {
        "asyncio/base_events.py": {"sendfile"},
        "asyncio/unix_events.py": {"_sock_sendfile_native_impl"},
    },
    "rename": {},
    "rmdir": {},
    "link": {},
    "symlink": {},
    "listdir": {},
    "access": {},
    "statvfs": {},
    "mkdir": {},
    "replace": {},
    "readlink": {},
    "getcwd": {},
    "read": {"asyncio/base_events.py": {"subprocess_exec", "subprocess_shell"}},
    "write": {},
}


def permitted(table, name, args):
    if name in ("read", "write") and not os.get_blocking(args[0]):
        return True
    frame = sys._getframe(2)
    while frame is not None:
        for file, functions in table.items():
            if frame.f_code.co_filename.endswith(file) and frame.f_code.co_name in functions:
                return True
        # Python's own machinery for imports and tracebacks reads files.
        if frame.f_code.co_filename.endswith(("linecache.py", "<frozen importlib._bootstrap>")):
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def no_blocking(monkeypatch):
    """Let blocking calls raise BlockingError in a thread whose loop is running."""
    seen = []

    def wrap(name, original, table):
        def wrapper(*args, **kwargs):
            if asyncio._get_running_loop() is not None:
                if not permitted(table, name, args):
                    raise BlockingError(f"os.{name}")
                seen.append(name)
            return original(*args, **kwargs)

        return wrapper

    for name, table in PERMITTED.items():
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name), table))
    return seen


class Sink(asyncio.Protocol):
    """Counts the bytes that it receives."""

    def __init__(self, loop):
        self.count = 0
        self.over = loop.create_future()

    def data_received(self, data):
        self.count += len(data)

    def connection_lost(self, exc):
        self.over.set_result(exc)


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(support.pattern(10_000))
    with path.open("rb") as file:
        yield file


@pytest.fixture
def large_file(tmp_path):
    """Return a file larger than the sockets' buffers: sending it takes several steps."""
    path = tmp_path / "large"
    path.write_bytes(support.pattern(3 * support.BIG))
    with path.open("rb") as file:
        yield file


class TestBlockingCalls:
    def test_the_tool_itself(self, run, no_blocking):
        """The tool detects blocking calls, and only while a loop runs."""

        async def main():
            os.stat("/")

        os.stat("/")
        with pytest.raises(BlockingError):
            run(main())

    def test_a_unix_server(self, loop, run, no_blocking, tmp_path):
        path = str(tmp_path / "socket")

        async def main():
            server = await loop.create_unix_server(asyncio.Protocol, path)
            sock = server.sockets[0]
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()
            assert sock.fileno() == -1

        run(main())
        removes = hasattr(loop, "_unix_server_sockets") and needs_cleanup_socket.args[0] is False
        assert os.path.exists(path) is not removes

    def test_over_a_stale_file(self, loop, run, no_blocking, tmp_path):
        path = str(tmp_path / "socket")
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)

        async def main():
            server = await asyncio.start_unix_server(lambda reader, writer: None, path)
            server.close()
            await server.wait_closed()

        run(main())
        assert "stat" in no_blocking

    def test_a_server_as_a_context(self, loop, run, no_blocking, tmp_path):
        path = str(tmp_path / "socket")

        async def main():
            async with await loop.create_unix_server(asyncio.Protocol, path) as server:
                serving = asyncio.ensure_future(server.serve_forever())
                await asyncio.sleep(0)
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving

        run(main())

    @pytest.mark.parametrize("size", ["small_file", "large_file"])
    @pytest.mark.parametrize("method", ["sendfile", "sock_sendfile"])
    def test_sendfile(self, loop, run, no_blocking, tcp_pair, request, method, size):
        file = request.getfixturevalue(size)
        ours, peer = tcp_pair
        length = os.fstat(file.fileno()).st_size

        async def main():
            sink, sender = Sink(loop), ours
            await loop.create_connection(lambda: sink, sock=peer)
            if method == "sendfile":
                sender, _ = await loop.create_connection(lambda: Sink(loop), sock=ours)
            assert await getattr(loop, method)(sender, file, fallback=False) == length
            sender.close()
            await sink.over
            assert sink.count == length

        run(main())
        assert "sendfile" in no_blocking

    def test_everything_else(self, loop, run, no_blocking):
        """Child processes, threads, name resolution, pipes and signals need no blocking call."""

        async def main():
            process = await asyncio.create_subprocess_exec(
                "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert (await process.communicate(b"data"))[0] == b"data"
            process = await asyncio.create_subprocess_shell("exit 3")
            assert await process.wait() == 3
            assert await loop.run_in_executor(None, int) == 0
            assert await loop.getaddrinfo("127.0.0.1", 80)
            loop.add_signal_handler(signal.SIGUSR1, int)
            loop.remove_signal_handler(signal.SIGUSR1)
            read_end, write_end = os.pipe()
            reader = asyncio.StreamReader()
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
            )
            writing, _ = await loop.connect_write_pipe(
                asyncio.Protocol, os.fdopen(write_end, "wb", 0)
            )
            writing.write(b"x" * 200_000)
            writing.close()
            assert len(await reader.read()) == 200_000
            transport.close()

        run(main())


@needs_cleanup_socket
class TestRemovalOfASocketFile:
    """Whatever happens to the file, the listening socket is closed."""

    @pytest.fixture(params=["stat", "unlink"])
    def failing(self, request, monkeypatch):
        """Return a context manager in which a function of os raises the given exception."""

        @contextlib.contextmanager
        def failing(exception):
            def fail(*args, **kwargs):
                raise exception("from a patched function")

            with monkeypatch.context() as patch:
                patch.setattr(os, request.param, fail)
                yield

        return failing

    @pytest.mark.parametrize("exception", [BlockingError, ValueError, KeyboardInterrupt])
    def test_another_error_comes_out(self, loop, run, tmp_path, failing, exception):
        path = str(tmp_path / "socket")
        server = run(loop.create_unix_server(asyncio.Protocol, path))
        sock = server.sockets[0]
        fd = sock.fileno()
        with failing(exception), pytest.raises(exception, match="patched"):
            server.close()
        assert sock.fileno() == -1
        assert loop.remove_reader(fd) is False
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(path)
        support.turn(loop, 3)

    @pytest.mark.parametrize("exception", [FileNotFoundError, PermissionError])
    def test_an_error_of_the_system_is_logged(
        self, loop, run, tmp_path, caplog, failing, exception
    ):
        server = run(loop.create_unix_server(asyncio.Protocol, str(tmp_path / "socket")))
        sock = server.sockets[0]
        with failing(exception):
            server.close()
        assert sock.fileno() == -1
        run(server.wait_closed())
        logged = [record for record in caplog.records if "clean up listening" in record.message]
        assert len(logged) == (exception is PermissionError)


# --- Handle._run ---------------------------------------------------------------------------------

original_run = asyncio.events.Handle._run


def wrapping(seen):
    """A monitor that times callbacks by wrapping the original."""

    def _run(self):
        seen.append(self)
        return original_run(self)

    return _run


def replacing(seen):
    """A monitor that runs the callback itself, with the handle's attributes."""

    def _run(self):
        seen.append(self)
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler(
                {
                    "message": f"Exception in callback {self._callback!r}",
                    "exception": exc,
                    "handle": self,
                }
            )

    return _run


@pytest.fixture(params=[wrapping, replacing], ids=["wrapped", "replaced"])
def seen(request, monkeypatch):
    """Return the handles that went through a patched Handle._run, in order."""
    handles = []
    monkeypatch.setattr(asyncio.events.Handle, "_run", request.param(handles))
    return handles


variable = contextvars.ContextVar("variable", default="outer")


class TestHandleRun:
    @pytest.mark.parametrize("count", range(8))
    def test_call_soon(self, loop, seen, count):
        calls = support.Calls()
        handle = loop.call_soon(calls, *range(count))
        support.turn(loop)
        assert calls.args == [tuple(range(count))]
        assert seen.count(handle) == 1

    def test_timers(self, loop, seen):
        calls = support.Calls()
        handles = [
            loop.call_later(0, calls, 1),
            loop.call_later(0.001, calls, 2),
            loop.call_at(loop.time() + 0.002, calls, 3),
        ]
        loop.run_until_complete(support.wait_until(lambda: len(calls) == 3))
        assert calls.args == [(1,), (2,), (3,)]
        assert [handle for handle in seen if handle in handles] == handles

    def test_from_another_thread(self, loop, seen):
        calls = support.Calls(loop.stop)
        handles = []
        with support.in_thread(lambda: handles.append(loop.call_soon_threadsafe(calls, 1))):
            loop.run_forever()
        assert calls.args == [(1,)]
        assert seen.count(handles[0]) == 1

    def test_readers_and_writers(self, loop, seen, socketpair):
        ours, peer = socketpair
        callbacks = []

        def readable(number):
            callbacks.append(("read", number, ours.recv(1)))

        def writable():
            callbacks.append(("write",))
            loop.remove_writer(ours)

        loop.add_reader(ours, readable, 7)
        loop.add_writer(ours, writable)
        peer.send(b"ab")
        loop.run_until_complete(support.wait_until(lambda: len(callbacks) == 3))
        loop.remove_reader(ours)
        assert sorted(callbacks) == [("read", 7, b"a"), ("read", 7, b"b"), ("write",)]
        names = [getattr(handle._callback, "__name__", "") for handle in seen]
        # The reader has the same handle for as long as it is registered.
        assert len(seen) >= 3
        assert names.count("readable") <= 2

    def test_every_call_of_a_reader(self, loop, monkeypatch, socketpair):
        ours, peer = socketpair
        names = []

        def _run(self):
            names.append(getattr(self._callback, "__name__", None))
            return original_run(self)

        monkeypatch.setattr(asyncio.events.Handle, "_run", _run)
        got = bytearray()

        def readable():
            got.extend(ours.recv(1))

        loop.add_reader(ours, readable)
        peer.send(b"abcde")
        loop.run_until_complete(support.wait_until(lambda: len(got) == 5))
        loop.remove_reader(ours)
        assert names.count("readable") == 5

    def test_tasks_and_futures(self, loop, run, monkeypatch):
        """A monitor finds the slow task's name through the object that its step is bound to."""
        tasks = []
        callbacks = []

        def _run(self):
            owner = getattr(self._callback, "__self__", None)
            if isinstance(owner, asyncio.Task):
                tasks.append(owner.get_name())
            callbacks.append(self._callback)
            return original_run(self)

        monkeypatch.setattr(asyncio.events.Handle, "_run", _run)

        async def work():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        def done(future):
            pass

        async def main():
            task = loop.create_task(work(), name="observed")
            task.add_done_callback(done)
            await task
            await asyncio.sleep(0)

        run(main())
        assert tasks.count("observed") == 3
        assert callbacks.count(done) == 1

    def test_a_signal_handler(self, loop, seen):
        calls = support.Calls(loop.stop)
        loop.add_signal_handler(signal.SIGUSR1, calls, 1)
        loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        loop.run_forever()
        loop.remove_signal_handler(signal.SIGUSR1)
        assert calls.args == [(1,)]
        assert len(seen) >= 2

    def test_a_callback_that_raises_is_reported(self, loop, seen, reported):
        def fails():
            raise ValueError("on purpose")

        handle = loop.call_soon(fails)
        timer = loop.call_later(0, fails)
        calls = support.Calls()
        loop.call_later(0.001, calls)
        loop.run_until_complete(support.wait_until(lambda: len(calls) == 1))
        for expected in (handle, timer):
            context = reported.pop(ValueError)
            assert context["message"].startswith("Exception in callback ")
            assert "fails" in context["message"]
            assert context["handle"] is expected

    def test_a_reader_that_raises_is_reported_and_stays(self, loop, seen, reported, socketpair):
        ours, peer = socketpair
        got = []

        def fails():
            got.append(ours.recv(1))
            raise ValueError("on purpose")

        loop.add_reader(ours, fails)
        peer.send(b"ab")
        loop.run_until_complete(support.wait_until(lambda: len(got) == 2))
        loop.remove_reader(ours)
        reported.pop(ValueError)
        reported.pop(ValueError)

    @pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
    def test_an_interruption_leaves_the_loop(self, loop, seen, exception):
        def fails():
            raise exception("on purpose")

        calls = support.Calls()
        loop.call_soon(fails)
        loop.call_soon(calls)
        with pytest.raises(exception, match="on purpose"):
            loop.run_forever()
        support.turn(loop)
        assert len(calls) == 1

    def test_an_exception_of_the_patch_leaves_the_loop(self, loop, monkeypatch):
        calls = support.Calls()

        def _run(self):
            if self._callback is calls:
                self._context.run(self._callback, *self._args)
                raise LookupError("in the monitor")
            return original_run(self)

        loop.call_soon(calls, 1)
        loop.call_soon(calls, 2)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.events.Handle, "_run", _run)
            with pytest.raises(LookupError, match="monitor"):
                loop.run_forever()
        assert calls.args == [(1,)]
        support.turn(loop)
        assert calls.args == [(1,), (2,)]

    def test_a_cancelled_handle_does_not_run(self, loop, seen):
        calls = support.Calls()
        loop.call_soon(lambda: handles[-1].cancel())
        handles = [loop.call_soon(calls), loop.call_later(0.001, calls), loop.call_soon(calls)]
        handles[0].cancel()
        handles[1].cancel()
        loop.run_until_complete(asyncio.sleep(0.005))
        assert len(calls) == 0
        assert not set(handles) & set(seen)

    def test_a_callback_that_cancels_itself(self, loop, seen):
        calls = support.Calls(lambda: handles[0].cancel())
        handles = [loop.call_soon(calls, 1)]
        support.turn(loop)
        assert calls.args == [(1,)]

    def test_the_context(self, loop, seen):
        context = contextvars.copy_context()
        context.run(variable.set, "inner")
        values = []
        loop.call_soon(lambda: values.append(variable.get()), context=context)
        loop.call_soon(lambda: values.append(variable.get()))
        loop.call_later(0, lambda: values.append(variable.get()), context=context)
        loop.call_soon(variable.set, "changed", context=context)
        loop.run_until_complete(support.wait_until(lambda: len(values) == 3))
        assert values[:2] == ["inner", "outer"]
        assert context[variable] == "changed"
        assert variable.get() == "outer"

    def test_callbacks_do_not_share_what_they_set(self, loop, seen):
        values = []

        def set_and_get(value):
            values.append(variable.get())
            variable.set(value)

        for value in range(3):
            loop.call_soon(set_and_get, value)
        support.turn(loop)
        assert values == ["outer"] * 3

    def test_debug_mode(self, debug_loop, seen, caplog):
        debug_loop.slow_callback_duration = 0.01
        calls = support.Calls(lambda: time.sleep(0.02))
        handle = debug_loop.call_soon(calls)
        debug_loop.call_later(0.001, int)
        debug_loop.run_until_complete(asyncio.sleep(0.003))
        assert len(calls) == 1
        assert seen.count(handle) == 1
        assert any("Executing <" in record.getMessage() for record in caplog.records)

    def test_the_attributes_that_monitors_read(self, loop, monkeypatch):
        attributes = []

        def _run(self):
            if getattr(self, "_callback", None) is calls:
                attributes.append(
                    (self._args, self._cancelled, self._loop, type(self._context), repr(self))
                )
            return original_run(self)

        calls = support.Calls()
        monkeypatch.setattr(asyncio.events.Handle, "_run", _run)
        loop.call_soon(calls, 1, 2)
        loop.call_later(0, calls, 3)
        support.turn(loop, 2)
        assert [attribute[:4] for attribute in attributes] == [
            ((1, 2), False, loop, contextvars.Context),
            ((3,), False, loop, contextvars.Context),
        ]
        assert all("Calls" in attribute[4] for attribute in attributes)

    def test_only_while_it_is_patched(self, loop, monkeypatch):
        calls = support.Calls()
        handles = []
        seen = []
        for patched in (False, True, False, True, False):
            with monkeypatch.context() as patch:
                if patched:
                    patch.setattr(asyncio.events.Handle, "_run", wrapping(seen))
                handles.append(loop.call_soon(calls))
                support.turn(loop)
        assert len(calls) == 5
        assert [handle for handle in seen if handle in handles] == [handles[1], handles[3]]

    def test_patched_and_restored_while_the_loop_runs(self, loop, run, monkeypatch):
        seen = []
        calls = support.Calls()

        async def main():
            await support.turns(3)
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.events.Handle, "_run", wrapping(seen))
                await asyncio.sleep(0.001)  # the loop has nothing to run for a while
                handle = loop.call_soon(calls)
                timer = loop.call_later(0, calls)
                await asyncio.sleep(0.002)
                assert seen.count(handle) == 1
                assert seen.count(timer) == 1
            await asyncio.sleep(0.001)
            known = len(seen)
            loop.call_soon(calls)
            await support.turns(2)
            assert len(seen) == known

        run(main())
        assert len(calls) == 3

    def test_patched_before_the_loop_is_imported(self, loop_kind):
        """Monitors patch asyncio first, before other modules are imported."""
        support.run_python(
            loop_kind,
            """
            original = asyncio.events.Handle._run
            seen = []

            def _run(self):
                seen.append(self)
                return original(self)

            asyncio.events.Handle._run = _run
            loop = new_loop()
            handle = loop.call_soon(int)
            turn(loop)
            assert seen.count(handle) == 1, seen
            asyncio.events.Handle._run = original
            handle = loop.call_soon(int)
            turn(loop)
            assert seen.count(handle) == 0
            loop.close()
            """,
        )

    def test_a_whole_program(self, loop, run, seen, tmp_path):
        """Streams, locks, queues, children and threads work unchanged."""

        async def serve(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"line\n")
            assert await reader.read() == b"line\n"
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()
            queue = asyncio.Queue(1)
            await asyncio.gather(queue.put(1), queue.put(2), queue.get(), queue.get())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            assert await loop.run_in_executor(None, int) == 0
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0

        run(main())
        assert len(seen) > 20


# --- buffers -------------------------------------------------------------------------------------


class Lender(asyncio.BufferedProtocol):
    """Returns a given object from get_buffer()."""

    def __init__(self, loop, buffer):
        self.buffer = buffer
        self.lost = loop.create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        pytest.fail("nothing can have been written into the buffer")

    def connection_lost(self, exc):
        self.lost.set_result(exc)


BUFFERS = {
    "bytes": b"0123456789",
    "a read-only view": memoryview(b"0123456789"),
    "a view with steps": memoryview(bytearray(20))[::2],
    "a list": [0] * 10,
    "a string": "0123456789",
    "None": None,
    "a number": 7,
    "empty": b"",
    "an empty bytearray": bytearray(),
}


def reports_about(loop, buffer, connect):
    """Return the loop's reports about a buffer, (message, type), and connection_lost()'s type."""
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append(context))
    protocol = Lender(loop, buffer)
    finish = connect(loop, protocol)
    lost = loop.run_until_complete(asyncio.wait_for(protocol.lost, support.PATIENCE))
    finish()
    reports = [(context["message"], type(context["exception"])) for context in contexts]
    return reports, type(lost)


def check_reports(loop, buffer, connect):
    """Check that the loop under test reports the same as asyncio's own loop."""
    reference = support.new_loop("asyncio")
    try:
        there = reports_about(reference, buffer, connect)
    finally:
        support.finish(reference)
    assert there[0]
    assert reports_about(loop, buffer, connect) == there


def connect_plain(loop, protocol):
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    loop.run_until_complete(loop.create_connection(lambda: protocol, sock=ours))
    peer.send(b"data")
    return peer.close


@pytest.fixture
def connect_tls(server_ssl_context, client_ssl_context):
    def connect(loop, protocol):
        client = support.RecordingProtocol(loop)

        async def main():
            server = await loop.create_server(
                lambda: protocol, "127.0.0.1", 0, ssl=server_ssl_context
            )
            transport, _ = await loop.create_connection(
                lambda: client, *server.sockets[0].getsockname(), ssl=client_ssl_context,
                server_hostname="localhost",
            )  # fmt: skip
            transport.write(b"data")
            return server, transport

        server, transport = loop.run_until_complete(main())

        def finish():
            transport.abort()
            server.close()
            loop.run_until_complete(client.lost)
            loop.run_until_complete(server.wait_closed())

        return finish

    return connect


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_that_cannot_be_written(loop, name):
    check_reports(loop, BUFFERS[name], connect_plain)


# asyncio calls get_buffer() repeatedly as long as it gets an empty, writable buffer.
@pytest.mark.parametrize("name", [name for name in BUFFERS if name != "an empty bytearray"])
def test_a_buffer_that_cannot_be_written_over_tls(loop, name, connect_tls):
    check_reports(loop, BUFFERS[name], connect_tls)
