# SPDX-License-Identifier: GPL-2.0-only
"""The tests run every program in the documentation, as a reader would run it.

Each page has a folder. A block with a name becomes a file in it. Each Python block is run there, in
order; it must succeed and write nothing to stderr. A comment above marks the other blocks:

    sample: serves 8080         a server: it must listen there (on another port, here), answer an
                                HTTP request or echo a line, and end on Ctrl-C
    sample: logs                it is expected to write to stderr
    sample: output              not Python: the output of the block before it
    sample: run                 a shell block without network that later blocks depend on
    sample: fragment of PATH    an extract from a file of the repository
    sample: needs Python 3.12   an earlier version skips it
"""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import support
from markdown_pages import ROOT, blocks, pages

#: Seconds for a sample to end, and for a server to listen.
PATIENCE = 90.0

MARKS = ("serves", "logs", "output", "run", "fragment of", "needs Python")


PAGES = [
    pytest.param(page, id=str(page.relative_to(ROOT)))
    for page in pages()
    if any(block.language == "python" or block.mark for block in blocks(page))
]


def environment():
    """Return this environment, with the interpreter's commands on PATH, without their options."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MGLOOP_", "PYTHON", "PYTEST_", "LISTEN_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | {"PATH": path, "PYTHONUNBUFFERED": "1"}


def command(block, folder):
    """Return the command that runs the block."""
    if block.language == "sh":
        # The shell's own process becomes the server, which gets the signal.
        return ["sh", "-ec", block.text if block.mark == "run" else f"exec {block.text}"]
    if block.name is None:
        path = folder / f"line_{block.line}.py"
        path.write_text(block.text)
        return [sys.executable, path.name]
    if Path(block.name).name.startswith("test_"):
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", block.name]
    return [sys.executable, block.name]


def run(block, folder):
    """Run the block, which must succeed; return its output."""
    done = support.finished(
        command(block, folder), cwd=folder, env=environment(), stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{block} fails:\n{done.stdout}{done.stderr}"
    if block.mark == "logs":
        assert done.stderr, f"{block} logs nothing"
    elif block.language == "python":
        assert done.stderr == "", f"{block} writes to stderr:\n{done.stderr}"
    return done.stdout


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def answer(port):
    """Return the first line that the server on `port` sends in answer to an HTTP request."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return sock.makefile("rb").readline()


def serve(block, folder):
    """Start the server, send it a request, end it with Ctrl-C."""
    port = block.mark.split()[1]
    assert port in block.text, f"{block} does not name port {port}"
    ours = free_port()
    elsewhere = dataclasses.replace(block, text=block.text.replace(port, str(ours)))
    if block.name is not None:
        (folder / block.name).write_text(elsewhere.text)
    with subprocess.Popen(
        command(elsewhere, folder), cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        said = None
        deadline = time.monotonic() + PATIENCE
        while said is None and process.poll() is None and time.monotonic() < deadline:
            try:
                said = answer(ours)
            except ConnectionRefusedError:
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            printed = process.communicate(timeout=PATIENCE)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert said, f"{block} does not answer on its port:\n{printed}"
    assert said.startswith((b"HTTP/1.1 200 ", b"GET / HTTP/1.1")), (block, said)
    if process.returncode != 0:
        # A program that does not handle Ctrl-C itself.
        assert process.returncode == -signal.SIGINT, f"{block}:\n{printed}"
        assert printed.rstrip().endswith("KeyboardInterrupt"), f"{block}:\n{printed}"


def check_fragment(block):
    """Check that its pieces, between lines of `...`, are in the file, in that order."""
    text = (ROOT / block.mark.removeprefix("fragment of ")).read_text()
    end = 0
    for piece in re.split(r"^ *\.\.\. *\n", block.text, flags=re.M):
        place = text.find(piece.strip("\n"), end)
        if place < 0:
            # The piece may be without its indentation.
            place = text.find(textwrap.indent(piece, "    ").strip("\n"), end)
        assert place >= 0, f"{block} is not in that file (any more):\n{piece}"
        end = place + 1


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(300)
def test_the_samples_of_a_page_run(page, tmp_path):
    printed = None
    for block in blocks(page):
        mark = block.mark or ""
        if mark.startswith("needs Python "):
            wanted = tuple(map(int, mark.removeprefix("needs Python ").split(".")))
            if sys.version_info < wanted:
                continue
        if block.name is not None and not os.path.isabs(block.name):
            # The reader must write a file in /etc/systemd, for example.
            (tmp_path / block.name).parent.mkdir(exist_ok=True)
            (tmp_path / block.name).write_text(block.text)
        if mark.startswith("fragment of "):
            check_fragment(block)
        elif mark.startswith("serves "):
            serve(block, tmp_path)
        elif mark == "output":
            assert block.text == printed, f"{block} is not what the block before it prints"
        elif mark == "run":
            program = shlex.split(block.text)[0]
            if shutil.which(program) is None:
                pytest.skip(f"there is no {program}")
            run(block, tmp_path)
        elif block.language == "python":
            printed = run(block, tmp_path)
    tests = [path for path in tmp_path.rglob("test_*.py") if path.name != "test_app.py"]
    if tests and (tmp_path / "pyproject.toml").exists():
        run_all_tests(page, tmp_path)


def run_all_tests(page, folder):
    """A reader has the files of a page in one folder, so they must not affect each other."""
    done = support.finished(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"the tests of {page} fail together:\n{done.stdout}{done.stderr}"


def test_marks_are_known():
    for page in pages():
        for block in blocks(page):
            assert block.mark is None or block.mark.startswith(MARKS), f"{block}: {block.mark}"
            if block.mark in ("run", "output"):
                assert block.language in ("sh", "text"), f"{block} has another mark's language"


def test_python_is_run():
    """A complete program is better than a fragment; only files may be shown in part."""
    every = [block for page in pages() for block in blocks(page) if block.language == "python"]
    fragments = [str(b) for b in every if (b.mark or "").startswith("fragment")]
    assert fragments == []
