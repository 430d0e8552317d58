# SPDX-License-Identifier: GPL-2.0-only
"""The shutdown of `mgloop serve`, one row of the timeline in docs/serve-deploying.md after another:
the effect of hostile and silent peers, endless streams, forked children and repeated signals.

Each asserted limit lies between the time in the timeline and the time without the feature, so that
a loaded machine does not reach it.
"""

import contextlib
import os
import signal
import socket
import time

import certificates
import pytest
from commands import PATIENCE, connect, fails, get, pending, serve, wait_gone, write_app
from support import eventually

pytestmark = pytest.mark.timeout(4 * PATIENCE)

TLS = ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem")

#: Seconds that peers may add to the time that responses need, including the start of the clean-up
#: on a loaded machine; each fault under test took at least 9 seconds.
SOON = 7.0

APPLICATION = """
import asyncio, multiprocessing, os, signal, sys, threading, time

fork = multiprocessing.get_context("fork")

def say(*words):
    print(*words, flush=True)

async def lifespan(receive, send):
    await receive()
    await started()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    say("shutdown begins")
    await asyncio.sleep(float(os.environ.get("SHUTDOWN_TAKES", 0)))
    say("shutdown has run")
    await send({"type": "lifespan.shutdown.complete"})

async def started():
    pass

async def answer(send, body=b"done"):
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

async def begin(send, *headers):
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b"begun\\n", "more_body": True})

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    if scope["type"] == "websocket":
        return await websocket(scope, receive, send)
    await PATHS[scope["path"]](receive, send)

async def websocket(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/deaf":
        await asyncio.sleep(600)
    while (message := await receive())["type"] != "websocket.disconnect":
        pass
    say("told", message["code"])

async def root(receive, send):
    await answer(send, b"%d" % os.getpid())

async def file(receive, send):
    headers = [(b"content-length", b"%d" % os.path.getsize("large"))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.pathsend", "path": os.path.abspath("large")})

async def slow(receive, send):
    say("begun")
    try:
        while not os.path.exists("go"):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        say("cancelled")
        raise
    await answer(send)

async def upload(receive, send):
    say("begun")
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return say("told", "http.disconnect")
        if not message["more_body"]:
            return await answer(send)

async def sends(receive, send):
    await begin(send)
    try:
        while True:
            await send({"type": "http.response.body", "body": b"more\\n", "more_body": True})
            await asyncio.sleep(0.05)
    except OSError as exc:
        say("told", type(exc).__name__)
        raise

async def receives(receive, send):
    await begin(send, (b"content-type", b"text/event-stream"))
    while (message := await receive())["type"] != "http.disconnect":
        pass
    say("told", message["type"])

async def waits(receive, send):
    await begin(send)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        say("cancelled")
        raise

async def looks_for_uvicorn(receive, send):
    await begin(send)
    server = signal.getsignal(signal.SIGTERM).__self__
    assert server.should_exit is False
    say("has found the server")
    while not server.should_exit:
        await asyncio.sleep(0.05)
    say("has seen the end")
    await send({"type": "http.response.body", "body": b"end\\n"})

PATHS = {
    "/": root, "/file": file, "/slow": slow, "/upload": upload, "/sends": sends,
    "/receives": receives, "/waits": waits, "/uvicorn": looks_for_uvicorn,
}
"""


def address(url):
    host, port = url.partition("//")[2].rsplit(":", 1)
    return host, int(port)


def tcp(url, data=b""):
    sock = socket.create_connection(address(url), PATIENCE)
    sock.sendall(data)
    return sock


def request(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def upgrade(path):
    return request(
        path,
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )


def read_until(sock, end):
    """Receive until `end` has arrived; return the data."""
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


def read_all(sock):
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


def end(command, number=signal.SIGTERM):
    """Send the signal, wait for a clean exit; return the seconds that it took."""
    begun = time.monotonic()
    assert command.stop(number) == 0
    seconds = time.monotonic() - begun
    assert "shutdown has run" in command.output
    print(f"ended after {seconds:.2f} s")  # pytest -rP shows the measured times
    return seconds


# --- peers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nX"])
def test_a_connection_without_a_whole_head_is_closed_at_once(folder, data):
    with serve(folder) as command:
        url = command.url()
        with tcp(url, data) as sock:
            get(url)  # the server has read the other request by now
            assert end(command) < SOON
            assert read_all(sock) == b""


def test_a_silent_tls_handshake_is_not_waited_for(folder, authority):
    certificates.write(folder, authority)
    with serve(folder, *TLS) as command:
        url = command.url()
        with tcp(url), tcp(url, b"\x16\x03\x01"):
            get(url, context=certificates.trusting(authority))
            assert end(command) < SOON


def test_a_tls_client_that_does_not_answer_close_notify_is_cut_off(folder, authority):
    certificates.write(folder, authority)
    with serve(folder, *TLS) as command:
        sock = tcp(command.url())
        with certificates.trusting(authority).wrap_socket(sock, server_hostname="localhost") as tls:
            tls.sendall(request("/"))
            read_until(tls, b"\r\n\r\n")
            assert end(command) < SOON


def test_a_websocket_that_does_not_answer_the_close_frame_is_cut_off(folder):
    with serve(folder) as command, tcp(command.url(), upgrade("/")) as sock:
        read_until(sock, b"\r\n\r\n")
        assert end(command) < SOON
        assert "told 1012" in command.output
        assert read_all(sock) == b"\x88\x02\x03\xf4"


def test_a_websocket_over_tls_that_does_not_answer_close_notify_is_cut_off(folder, authority):
    certificates.write(folder, authority)
    with serve(folder, *TLS) as command:
        sock = tcp(command.url())
        with certificates.trusting(authority).wrap_socket(sock, server_hostname="localhost") as tls:
            tls.sendall(upgrade("/"))
            read_until(tls, b"\r\n\r\n")
            command.send(signal.SIGTERM)
            begun = time.monotonic()
            assert tls.recv(4) == b"\x88\x02\x03\xf4"
            tls.sendall(b"\x88\x82\0\0\0\0\x03\xf4")
            assert command.end() == 0
            assert time.monotonic() - begun < SOON


def test_a_websocket_application_that_is_deaf_is_cancelled(folder):
    with serve(folder, "--timeout-stream-shutdown", 0.1) as command:
        with tcp(command.url(), upgrade("/deaf")) as sock:
            read_until(sock, b"\r\n\r\n")
            assert end(command) < SOON
    assert "Cancelling a WebSocket application that did not finish" in command.output


@pytest.mark.parametrize("dripping", [False, True])
def test_a_body_that_does_not_come_is_not_waited_for(folder, dripping):
    options = ["--timeout-stream-shutdown", 1 if dripping else 600]
    with serve(folder, *options) as command, tcp(command.url()) as sock:
        sock.sendall(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx")
        command.wait_for("begun")
        if not dripping:
            assert end(command) < SOON
            assert b" 408 " in read_all(sock)
            return
        command.send(signal.SIGTERM)
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begun < SOON:
                sock.sendall(b"x")
                time.sleep(0.1)
        assert command.end() == 0
        assert time.monotonic() - begun < SOON
    assert "told http.disconnect" in command.output


@pytest.mark.parametrize("path", ["/", "/file"])
def test_a_client_that_takes_nothing_of_its_response_is_cut_off(folder, path):
    with open(folder / "large", "wb") as file:
        file.truncate(1 << 28)
    write_app(folder, APPLICATION.replace('b"%d" % os.getpid()', "bytes(1 << 26)"))
    with serve(folder) as command, tcp(command.url(), request(path)) as sock:
        read_until(sock, b"\r\n\r\n")
        assert end(command) < SOON


def test_a_file_that_is_read_slowly_is_sent_to_its_end(folder):
    with open(folder / "large", "wb") as file:
        file.truncate(size := 3 << 20)
    with serve(folder) as command, tcp(command.url(), request("/file")) as sock:
        head, _, data = read_until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")
        assert b"content-length: %d" % size in head
        command.send(signal.SIGTERM)
        command.wait_for("Shutting down")
        received = len(data)
        for _ in range(10):  # longer than the limit for a client that reads nothing
            time.sleep(0.5)
            received += len(sock.recv(65536))
        while received < size:
            received += len(sock.recv(65536))
        assert command.end() == 0


# --- responses -----------------------------------------------------------------------------------


def test_a_request_is_answered_however_long_it_takes(folder):
    with serve(folder, "--timeout-stream-shutdown", 0.1) as command:
        with pending(command.url(), "/slow") as answer:
            command.wait_for("begun")
            command.send(signal.SIGTERM)
            command.wait_for("Shutting down")
            time.sleep(3)  # past all limits for streams
            (folder / "go").touch()
            assert answer() == (200, "done")
        assert command.end() == 0


@pytest.mark.parametrize("options", [(), ("--workers", 2), ("--threads", 2)])
def test_a_second_sigint_cancels_requests(folder, options):
    with serve(folder, *options) as command, pending(command.url(), "/slow"):
        command.wait_for("begun")
        command.send(signal.SIGINT)
        command.wait_for("Shutting down")
        command.send(signal.SIGINT)
        assert command.end() == 0
    assert "cancelled" in command.output
    assert "shutdown has run" in command.output


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/sends", "told ClientDisconnected"),
        ("/receives", "told http.disconnect"),
        ("/waits", "cancelled"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_endless_stream_is_notified(folder, path, says, workers):
    options = ["--timeout-stream-shutdown", 0.5, "--workers", workers]
    with serve(folder, *options) as command, tcp(command.url(), request(path)) as sock:
        assert b"begun" in read_until(sock, b"begun")
        assert end(command) < SOON
        assert says in command.output
        assert not read_all(sock).endswith(b"0\r\n\r\n")  # the client sees the cut
    assert "Closing 1 stream(s), timeout stream shutdown exceeded." in command.output
    assert "Traceback" not in command.output


def test_a_stream_outlives_the_replacement_of_its_worker_but_not_the_server(folder):
    options = "--timeout-keep-alive", 0.1, "--timeout-stream-shutdown", 0.5, "--workers", 2
    with serve(folder, *options) as command, tcp(command.url(), request("/sends")) as sock:
        read_until(sock, b"more")
        command.send(signal.SIGHUP)
        command.wait_for("All workers have been restarted")
        replaced = time.monotonic()
        while time.monotonic() - replaced < 2:
            read_until(sock, b"more")
        end(command)


def test_a_stream_that_looks_for_uvicorns_server_ends_itself(folder):
    """sse-starlette does that, and so does the MCP SDK, which uses it."""
    with serve(folder, "--timeout-stream-shutdown", 600) as command:
        with tcp(command.url(), request("/uvicorn")) as sock:
            command.wait_for("has found the server")
            assert end(command) < SOON
            assert read_all(sock).endswith(b"0\r\n\r\n")


def test_a_replacement_of_uvicorns_handler_is_called(folder):
    """Releases of sse-starlette before 3 replace the handler."""
    package = folder / "uvicorn"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "server.py").write_text(
        "class Server:\n"
        "    def handle_exit(self, number, frame):\n"
        "        self._captured_signals.append(number)\n"
        "        self.should_exit = True\n"
    )
    patch = """
import uvicorn.server
original = uvicorn.server.Server.handle_exit

def handle_exit(*args):
    say("replacement", args[1])
    original(*args)

uvicorn.server.Server.handle_exit = handle_exit
"""
    write_app(folder, APPLICATION + patch)
    with serve(folder) as command:
        command.url()
        end(command)
    assert f"replacement {signal.SIGTERM.value}" in command.output


# --- start-up and shutdown of the application ----------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--workers", 2), ("--threads", 2), ("--reload",)])
def test_a_start_up_that_waits_is_ended_by_one_signal(folder, options):
    starting = """
async def started():
    say("starting")
    try:
        await asyncio.sleep(600)
    finally:
        say("cleaned up")
"""
    write_app(folder, APPLICATION + starting)
    with serve(folder, *options) as command:
        command.wait_for("starting")
        begun = time.monotonic()
        assert command.stop() == 0
        assert time.monotonic() - begun < SOON
    assert "cleaned up" in command.output
    assert "Cancelling startup" in command.output


@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_an_import_that_waits_is_ended_by_one_signal(folder, options):
    write_app(folder, APPLICATION + "\nsay('importing')\ntime.sleep(600)\n")
    with serve(folder, *options) as command:
        command.wait_for("importing")
        begun = time.monotonic()
        assert command.stop() == 0
        assert time.monotonic() - begun < SOON
    assert "Received a signal while importing the application" in command.output


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_cut_the_applications_shutdown(folder, second, workers):
    with serve(folder, "--workers", workers, env={"SHUTDOWN_TAKES": "2"}) as command:
        command.url()
        for _ in range(workers - 1):
            command.wait_for("is ready")
        command.send(signal.SIGINT)
        command.wait_for("shutdown begins")
        command.send(second)
        assert command.end() == 0
    assert command.output.count("shutdown has run") == workers


def test_the_applications_shutdown_is_not_cut_by_the_deadline_of_requests(folder):
    options = ["--timeout-graceful-shutdown", 0.2]
    with serve(folder, *options, env={"SHUTDOWN_TAKES": "2"}) as command:
        with pending(command.url(), "/slow"):
            command.wait_for("begun")
            end(command)
    assert "cancelled" in command.output


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
    ],
)
def test_a_terminals_and_a_process_managers_signal_are_one(folder, numbers, workers):
    with serve(folder, "--workers", workers) as command, pending(command.url(), "/slow") as answer:
        command.wait_for("begun")
        command.send(numbers[0])
        command.wait_for("Shutting down")
        command.send(numbers[1])
        time.sleep(0.5)  # long enough for the request to end, if it could
        (folder / "go").touch()
        assert answer() == (200, "done")
        assert command.end() == 0
    assert "shutdown has run" in command.output


# --- forked children -----------------------------------------------------------------------------

DAEMON = """
async def started():
    child = fork.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    say("child", child.pid)
"""
POOL = """
async def started():
    global pool
    pool = fork.Pool(2)
    pool.map_async(time.sleep, [600] * 4)
    say("child", pool._pool[0].pid)
"""
PREEXEC = """
async def started():
    import subprocess
    program = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    def preexec():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        assert signal.set_wakeup_fd(-1) == -1
    subprocess.run([sys.executable, "-c", program], preexec_fn=preexec, check=True)
    child = fork.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    say("child", child.pid)
"""


@pytest.mark.parametrize("options", [(), ("--loop", "asyncio"), ("--workers", 2), ("--reload",)])
@pytest.mark.parametrize("makes", [DAEMON, POOL, PREEXEC], ids=["daemon", "pool", "preexec_fn"])
def test_children_made_by_fork_do_not_hold_up_the_end(folder, makes, options):
    write_app(folder, APPLICATION + makes)
    with serve(folder, *options) as command:
        child = int(command.wait_for(r"^child (\d+)")[1])
        command.url()
        assert end(command) < SOON
        wait_gone(child)


def test_a_reload_is_not_held_up_by_a_forked_child(folder):
    write_app(folder, APPLICATION + DAEMON)
    with serve(folder, "--reload", "--reload-delay", 0.05) as command:
        child = int(command.wait_for(r"^child (\d+)")[1])
        command.url()
        write_app(folder, APPLICATION + DAEMON + "\n# another one\n")
        command.wait_for(r"^child (\d+)")
        wait_gone(child)
        end(command)


def test_workers_with_forked_children_go_when_they_are_replaced(folder):
    write_app(folder, APPLICATION + DAEMON)
    with serve(folder, "--workers", 2, "--timeout-keep-alive", 0.1) as command:
        old = [int(command.wait_for(r"Worker \[(\d+)\] is ready")[1]) for _ in range(2)]
        command.send(signal.SIGHUP)
        command.wait_for("All workers have been restarted")
        for pid in old:
            wait_gone(pid)
        end(command)


@pytest.mark.parametrize("options", [(), ("--loop", "asyncio"), ("--workers", 2)])
def test_the_signal_of_a_child_is_not_the_servers(folder, options):
    """The signal is sent before the child has run."""
    kill = """
async def kill(receive, send):
    codes = []
    for _ in range(20):
        child = fork.Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        codes.append(child.exitcode)
    await answer(send, str(set(codes)).encode())
PATHS["/kill"] = kill
"""
    write_app(folder, APPLICATION + kill)
    with serve(folder, *options) as command:
        url = command.url()
        assert get(url, "/kill") == f"{{{-signal.SIGTERM}}}"
        get(url)
        assert "Shutting down" not in command.output
        end(command)


THREAD = """
async def started():
    threading.Thread(target=time.sleep, args=(600,)).start()
"""
EXECUTOR = """
async def started():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
"""
CHILD = """
async def started():
    fork.Process(target=time.sleep, args=(600,)).start()
"""


@pytest.mark.parametrize("leaves", [THREAD, EXECUTOR, CHILD], ids=["thread", "executor", "child"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_does_not_exit_is_ended_by_force(folder, leaves, workers):
    write_app(folder, APPLICATION + leaves)
    with serve(folder, "--workers", workers) as command:
        command.url()
        for _ in range(workers - 1):
            command.wait_for("is ready")
        command.send(signal.SIGTERM)
        command.wait_for("shutdown has run")
        # Not end(): a child that is not daemonic outlives the process, and keeps the pipe open.
        assert command.process.wait(PATIENCE) == 0


# --- before the end ------------------------------------------------------------------------------


def health(url):
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", "/health")
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("connection")


@pytest.mark.parametrize("options", [(), ("--workers", 2), ("--threads", 2)])
def test_the_health_check_fails_before_connections_are_refused(folder, options):
    delay = ("--drain-delay", 600, "--health-path", "/health")
    with serve(folder, *delay, *options) as command:
        url = command.url()
        assert health(url) == (200, "ok\n", None)
        command.send(signal.SIGTERM)
        command.wait_for("Continuing to serve for 600 seconds")
        eventually(lambda: health(url)[0] == 503)
        assert health(url) == (503, "draining\n", "close")
        get(url)
        command.send(signal.SIGTERM)  # ignored
        get(url)
        assert end(command, signal.SIGINT) < SOON  # Ctrl-C skips the delay


def test_the_drain_delay_ends(folder):
    with serve(folder, "--drain-delay", 0.5) as command:
        command.url()
        assert end(command) >= 0.5


def test_a_health_path_begins_with_a_slash(folder):
    (line,) = fails("serve", "main:app", "--health-path", "health", cwd=folder, status=2)
    assert "health_path: 'health' does not start with a slash" in line


def test_sighup_says_why_a_single_process_is_not_replaced(folder):
    with serve(folder) as command:
        url = command.url()
        command.send(signal.SIGHUP)
        command.wait_for("Ignoring SIGHUP: a single process cannot be replaced")
        get(url)
        end(command)


def test_sighup_of_a_closed_terminal_ends_the_server(folder):
    master, slave = os.openpty()
    with open(slave, "rb") as terminal:
        popen = {"stdin": terminal}
        with serve(folder, **popen) as command:
            command.url()
            end(command, signal.SIGHUP)
    os.close(master)
