# SPDX-License-Identifier: GPL-2.0-only
"""Start an ASGI server in a child process by the server's own command line.

Each server has one serving process and one thread. It uses uvloop if it supports it, and writes an
access log only where that is measured; all other options have their defaults. No server can report
when it listens, so the parent polls until it gets an answer (``listening: false``).
"""

import contextlib
import importlib.util
import os
import runpy
import sys

from bench.servers import BACKLOG, listen, port_of

APPS = {
    "plain": "bench.asgi.apps:app",
    "fastapi": "bench.seeds.asgi_fastapi:app",
    "blacksheep": "bench.seeds.asgi_blacksheep:app",
}
HOST = "127.0.0.1"


def _like_uvicorn(config, port):
    """Return the options that uvicorn's and mgloop's command lines share."""
    command = ["--host", HOST, "--port", str(port), "--backlog", str(BACKLOG)]
    command += ["--log-level", "info"] if config["access_log"] else ["--log-level", "error"]
    command.append("--access-log" if config["access_log"] else "--no-access-log")
    if "cert" in config:
        command += ["--ssl-certfile", config["cert"], "--ssl-keyfile", config["key"]]
    return command


def _uvicorn(config, port):
    loop = ["--loop", config.get("server_loop", "uvloop")]
    return [*loop, "--http", "httptools", "--ws", "websockets", *_like_uvicorn(config, port)]


def _mgloop(config, port):
    # The workload "file of 10 MiB" measures http.response.pathsend.
    return ["serve", "--sendfile", *_like_uvicorn(config, port)]


def _granian(config, port):
    command = ["--interface", "asgi", "--host", HOST, "--port", str(port), "--loop", "uvloop"]
    command += ["--workers", "1", "--runtime-threads", "1", "--backlog", str(BACKLOG)]
    if config["access_log"]:
        command.append("--access-log")
    else:
        command += ["--no-access-log", "--log-level", "error"]
    if "cert" in config:
        command += ["--ssl-certificate", config["cert"], "--ssl-keyfile", config["key"]]
    return command


def _hypercorn(config, port):
    command = ["--bind", f"{HOST}:{port}", "--workers", "1", "--worker-class", "uvloop"]
    command += ["--backlog", str(BACKLOG)]
    command += ["--access-logfile", "-"] if config["access_log"] else ["--log-level", "error"]
    if "cert" in config:
        command += ["--certfile", config["cert"], "--keyfile", config["key"]]
    return command


COMMANDS = {
    "uvicorn": _uvicorn,
    "mgloop": _mgloop,
    "granian": _granian,
    "hypercorn": _hypercorn,
}


def main(config, _factory, tell):
    """Run the child process."""
    for name in config.get("needs", ()):
        if importlib.util.find_spec(name) is None:
            raise ImportError(name=name)
    # Detect an address in use here, where it can be reported. Otherwise the parent would poll the
    # server of another program.
    with contextlib.closing(listen(config)) as sock:
        port = port_of(sock)
    command = COMMANDS[config["server"]](config, port)
    command += [*config["options"], APPS[config["app"]]]
    os.environ["BENCH_FILE"] = config.get("file", "")
    tell(port=port, pid=os.getpid(), listening=False)
    # A server's output is not read. Every server writes its log to the cheapest destination.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    if config["access_log"]:
        os.dup2(quiet, 2)
    sys.argv = [config["server"], *command]
    runpy.run_module(config["server"], run_name="__main__")
