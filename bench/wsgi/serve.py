# SPDX-License-Identifier: GPL-2.0-only
"""Start a WSGI server in a child process by the server's own command line.

Each server has one process and, in its threaded form, the number of threads that the workload or
the server's description says. All other options have their defaults, and there is no access log.
No server can report when it listens, so the parent polls until it gets an answer
(``listening: false``).
"""

import contextlib
import importlib.util
import os
import runpy
import sys

from bench.servers import BACKLOG, listen, port_of

APPS = {
    "plain": "bench.wsgi.apps:app",
    "flask": "bench.wsgi.flask_app:app",
    "django": "bench.wsgi.django_app:app",
}
HOST = "127.0.0.1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _mgloop(port, threads):
    command = ["serve", "--host", HOST, "--port", str(port), "--backlog", str(BACKLOG)]
    command += ["--no-access-log", "--log-level", "error", "--wsgi-threads", str(threads)]
    return command


def _gunicorn(port, threads):
    command = ["--bind", f"{HOST}:{port}", "--worker-class", "gthread", "--workers", "1"]
    command += ["--threads", str(threads), "--backlog", str(BACKLOG), "--log-level", "error"]
    return [*command, "--worker-connections", "4000"]


def _granian(port, threads):
    command = ["--interface", "wsgi", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--runtime-threads", "1", "--blocking-threads", str(threads)]
    return [*command, "--backlog", str(BACKLOG), "--no-access-log", "--log-level", "error"]


def _weft(port, threads):
    command = ["--protocol", "wsgi", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--wsgi-threads", str(threads), "--backlog", str(BACKLOG)]
    return [*command, "--max-body", str(64 << 20), "--log-level", "error"]


def _peregrine(port, threads):
    command = ["--protocol", "wsgi", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--wsgi-threads", str(threads), "--backlog", str(BACKLOG)]
    return command


def _fastpysgi(port, _threads):
    return ["--host", HOST, "--port", str(port)]


def _waitress(port, threads):
    command = ["--listen", f"{HOST}:{port}", "--threads", str(threads)]
    return [*command, "--backlog", str(BACKLOG), "--connection-limit", "4000"]


def _uwsgi(port, threads):
    command = ["--http11-socket", f"{HOST}:{port}", "--processes", "1"]
    command += ["--threads", str(threads), "--disable-logging", "--home", sys.prefix]
    return [*command, "--pythonpath", ROOT, "--module"]


COMMANDS = {
    "mgloop": _mgloop,
    "gunicorn": _gunicorn,
    "granian": _granian,
    "weft": _weft,
    "peregrine": _peregrine,
    "fastpysgi": _fastpysgi,
    "waitress": _waitress,
    "uwsgi": _uwsgi,
}
# Programs beside the interpreter that are not modules to run.
PROGRAMS = ("fastpysgi", "uwsgi")


def main(config, _factory, tell):
    """Run the child process."""
    for name in config.get("needs", ()):
        if importlib.util.find_spec(name) is None:
            raise ImportError(name=name)
    # Detect an address in use here, where it can be reported. Otherwise the parent would poll the
    # server of another program.
    with contextlib.closing(listen(config)) as sock:
        port = port_of(sock)
    server = config["server"]
    command = [*COMMANDS[server](port, config["threads"]), APPS[config["app"]]]
    os.environ["BENCH_FILE"] = config.get("file", "")
    os.environ["PYTHONPATH"] = ROOT  # for servers whose process imports the application anew
    tell(port=port, pid=os.getpid(), listening=False)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a server's output is not read
    if server in PROGRAMS:
        os.execv(os.path.join(os.path.dirname(sys.executable), server), [server, *command])
    sys.argv = [server, *command]
    runpy.run_module(server, run_name="__main__")
