# SPDX-License-Identifier: GPL-2.0-only
"""The watchdog in a server under load: it names a blocking aiohttp handler, whatever blocks."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
import support

from mgloop._stdlib import has_gil

pytest.importorskip("aiohttp")

pytestmark = pytest.mark.mgloop_only

HELD = 0.5  # seconds

APP = """
import asyncio, contextlib, ctypes, logging, re, sqlite3, sys, time
from aiohttp import web
import mgloop

logging.basicConfig(format="%(name)s %(message)s")
path = sys.argv[1]
holder = sqlite3.connect(path, isolation_level=None)
holder.execute("create table t (x)")
holder.execute("begin exclusive")
other = sqlite3.connect(path, timeout=HELD)
keeps_the_gil = ctypes.PyDLL(None).usleep

async def hello(request):
    return web.Response(text="hello")

async def sleep(request):
    time.sleep(HELD)  # held: sleep
    return web.Response()

async def regex(request):
    began, count = time.monotonic(), 22
    while time.monotonic() - began < HELD:
        re.match(r"(a+)+$", "a" * count + "b")  # held: regex
        count += 1
    return web.Response()

async def sqlite(request):
    with contextlib.suppress(sqlite3.OperationalError):
        other.execute("insert into t values (1)")  # held: sqlite
    return web.Response()

async def extension(request):
    keeps_the_gil(int(HELD * 1e6))  # held: extension
    return web.Response()

async def main():
    app = web.Application()
    for handler in (hello, sleep, regex, sqlite, extension):
        app.router.add_get("/" + handler.__name__, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

with contextlib.suppress(KeyboardInterrupt):
    mgloop.run(main())
""".replace("HELD", str(HELD))


def reports(folder, handler):
    """Return the watchdog's reports after one call of `handler` among calls of other handlers."""
    path = folder / "app.py"
    path.write_text(APP)
    with subprocess.Popen(
        [sys.executable, path, folder / "base"],
        env=os.environ | {"MGLOOP_WATCHDOG": "0.1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as app:  # fmt: skip
        try:
            port = int(app.stdout.readline())

            def get(name):
                url = f"http://127.0.0.1:{port}/{name}"
                with urllib.request.urlopen(url, timeout=support.PATIENCE) as response:
                    return response.status

            with concurrent.futures.ThreadPoolExecutor(4) as executor:
                work = ["hello"] * 100 + [handler] + ["hello"] * 100
                assert set(executor.map(get, work)) == {200}
            app.send_signal(signal.SIGINT)
            _, errors = app.communicate(timeout=support.PATIENCE)
        finally:
            app.kill()
    return re.split(r"^(?=mgloop\.watchdog )", errors, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("handler", ["sleep", "regex", "sqlite", "extension"])
def test_the_line_is_named(tmp_path, handler):
    told = reports(tmp_path, handler)
    (line,) = [n for n, text in enumerate(APP.splitlines(), 1) if f"# held: {handler}" in text]
    # Without the GIL the thread continues while its line is read.
    lines = (line,) if has_gil() or handler != "extension" else (line, line + 1)
    named = [
        report for report in told
        if any(f'app.py", line {line}, in {handler}\n' in report for line in lines)
    ]  # fmt: skip
    assert named, told
    seconds = float(re.search(r"blocked for (\d+\.\d+) s", named[0])[1])
    assert seconds >= HELD * 0.75
    assert " of task 'Task-" in named[0]
    if handler in ("sleep", "sqlite"):
        assert "in a system call" in named[0]
    if handler == "extension":
        kept = "held the GIL" if has_gil() else "could not be stopped"
        assert f"native code {kept}" in named[0]
