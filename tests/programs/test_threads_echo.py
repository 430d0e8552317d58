# SPDX-License-Identifier: GPL-2.0-only
"""examples/threads_echo.py: several loops on one port, and an orderly shutdown."""

import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
import support

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "threads_echo.py"


def echoed(address, data):
    with socket.create_connection(address, timeout=support.PATIENCE) as sock:
        sock.sendall(data)
        received = b""
        while len(received) < len(data) and (chunk := sock.recv(65536)):
            received += chunk
    return received


@pytest.mark.mgloop_only
@pytest.mark.parametrize("how", ["--threads", "--processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_and_ends(loop_kind, how, number):
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "--port", "0", how, "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        try:
            line = program.stdout.readline()
            found = re.match(rf"echo on 127\.0\.0\.1:(\d+), 3 {how[2:]}", line)
            assert found, line + program.stderr.read()
            address = "127.0.0.1", int(found[1])
            for n in range(30):
                assert echoed(address, bytes([n]) * 10_000) == bytes([n]) * 10_000
            with socket.create_connection(address, timeout=support.PATIENCE) as idle:
                idle.sendall(b"x")
                assert idle.recv(1) == b"x"  # so it has been accepted
                program.send_signal(number)
                assert idle.recv(1) == b""
            _, errors = program.communicate(timeout=support.PATIENCE * 2)
        finally:
            program.kill()
    assert program.returncode == 0, errors
    assert errors == ""


@pytest.mark.mgloop_only
def test_an_address_that_cannot_be_had(loop_kind):
    done = support.finished(
        [sys.executable, EXAMPLE, "--host", "192.0.2.1", "--port", "8007", "--threads", "2"]
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "192.0.2.1" in done.stderr
