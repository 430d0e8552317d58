# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of WSGI servers: its applications, the servers' commands, and the slow clients."""

import argparse
import io
import json
import re
import socket
import sys
import wsgiref.util
import wsgiref.validate
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import cli, processes, registry  # noqa: E402
from bench.wsgi import apps, serve, servers  # noqa: E402

ROWS = {w.name: w for w in registry.workloads()}


@pytest.mark.parametrize("server", sorted(serve.COMMANDS))
def test_a_server_has_the_threads_that_the_workload_wants(server):
    four, ten = (" ".join(serve.COMMANDS[server](80, threads)) for threads in (4, 10))
    assert "80" in four.replace(":", " ").split()
    if server == "fastpysgi":
        assert four == ten  # it runs the application in its loop's thread
    else:
        assert re.search(r"threads 4\b", four)
        assert re.search(r"threads 10\b", ten)


def test_a_row_with_a_number_of_threads_is_for_servers_with_threads():
    able = servers.able(ROWS["wsgi/asleep-c8"], servers.KNOWN)
    assert {server.threads for server in able} == {servers.THREADS}
    assert servers.able(ROWS["wsgi/hello-c100"], servers.KNOWN) == list(servers.KNOWN)
    config = json.loads(able[0].command({"role": "wsgi.serve", "threads": 10})[-1])
    assert config["threads"] == 10
    config = json.loads(able[0].command({"role": "wsgi.serve"})[-1])
    assert config["threads"] == servers.THREADS


def test_servers_of_two_suites_are_named_together():
    names = "mgloop serve,mgloop serve inline"
    args = argparse.Namespace(servers=names, peers=[], no_control=True)
    found, missing = cli._servers(args, ["asgi", "wsgi"])
    assert {suite: [server.name for server in those] for suite, those in found.items()} == {
        "asgi": ["mgloop serve"],
        "wsgi": ["mgloop serve inline"],
    }
    assert missing == {}
    args.servers = "mgloop serve inline"
    assert list(cli._servers(args, ["asgi", "wsgi"])[0]) == ["wsgi"]


def test_the_plain_application_is_valid(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_FILE", str(tmp_path / "file"))
    (tmp_path / "file").write_bytes(b"w" * 100_000)
    monkeypatch.setattr(apps, "SLEEP", 0.0)
    lengths = {}
    for path in apps.HANDLERS:
        environ = {"SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        environ |= {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "4"}
        wsgiref.util.setup_testing_defaults(environ)
        environ["wsgi.input"] = io.BytesIO(b"body and the next request")
        answer = wsgiref.validate.validator(apps.app)(environ, lambda *args: print)
        lengths[path] = len(b"".join(answer))
        answer.close()
    assert (lengths["/page"], lengths["/echo"]) == (10_240, 4)
    assert (lengths["/stream"], lengths["/download"]) == (1000, 100_000)


def test_a_trickle_is_a_byte_at_a_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        cores = processes.choose_cores()
        with processes.crowd(cores.client, port, "trickle", 2):
            client, _ = listener.accept()
            with client:
                client.settimeout(20)
                data = b""
                while not data.endswith(b"\r\n\r\nxx"):
                    data += (part := client.recv(1000))
                    assert part
        assert data.startswith(b"POST /upload HTTP/1.1\r\n")
