# SPDX-License-Identifier: GPL-2.0-only
"""Make the pictures of docs/observing.md from real runs: `make pictures`.

    python -m tests.observe.pictures [DIR]

dashboard.png: the panels of examples/grafana/mgloop.json, with data that Prometheus has scraped
from examples/aiohttp_metrics.py under a load that rises and falls. top.svg and top-mended.svg: the
output of mgloop.top for examples/aiohttp_blocking.py. The program needs prometheus, wrk and
matplotlib (the dependency group `bench`) in addition to the tests' requirements.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from . import scraping

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: Connections of each section of the load, all of which have the same duration.
LOAD = (1, 10, 50, 10)
STRETCH = 15.0
#: Grafana's names of the units.
UNITS = {
    "s": "seconds", "Bps": "bytes per second", "percentunit": "share", "short": "",
    "ops": "per second", "cps": "per second",
}  # fmt: skip


@contextlib.contextmanager
def started(name, *arguments, **environment):
    """Start an example, given by its file name; yield (process, URL)."""
    with subprocess.Popen(
        ["python", f"examples/{name}", "0", *arguments],
        cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process, re.search(r"http://\S+:\d+/", process.stdout.readline())[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def wrk(url, connections, seconds):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", url]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def dashboard(path):
    with (
        tempfile.TemporaryDirectory() as folder,
        started("aiohttp_metrics.py", MGLOOP_WATCHDOG="0.1") as (_, url),
        scraping.prometheus(re.search(r"//(\S+)/", url)[1], Path(folder)) as api,
    ):
        api.wait_for("mgloop_uptime_seconds_total", 30)
        began = time.time()
        for connections in LOAD:
            wrk(url, connections, int(STRETCH)).wait()
        time.sleep(5)
        draw(path, api, began, time.time())


def draw(path, api, began, ended):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(scraping.panels("5s"))
    columns = 3
    figure, axes = pyplot.subplots(
        -(-len(panels) // columns), columns, figsize=(16, 13), layout="constrained"
    )
    for axis, (title, unit, targets) in zip(axes.flat, panels, strict=True):
        for expression, legend in targets:
            data = api.get("query_range", query=expression, start=began, end=ended, step=1)
            for series in data["result"]:
                points = [(float(t) - began, float(value)) for t, value in series["values"]]
                axis.plot(*zip(*points, strict=True), label=named(legend, series["metric"]))
        axis.set_title(title, loc="left", fontsize=11)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("seconds")
        axis.set_ylabel(UNITS[unit])
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=8, loc="upper right")
    figure.savefig(path, dpi=70)


def named(legend, labels):
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
    return text.replace(labels.get("instance", ""), "").strip()


def top(path, *arguments):
    with (
        tempfile.TemporaryDirectory() as folder,
        started("aiohttp_blocking.py", *arguments, MGLOOP_MONITOR=folder, MGLOOP_TIMING="1") as (
            process,
            url,
        ),
    ):
        over = threading.Event()

        def log_in():
            while not over.wait(0.5):
                urllib.request.urlopen(f"{url}login", timeout=30).close()

        logging_in = threading.Thread(target=log_in)
        load = wrk(url, 10, 8)
        logging_in.start()
        time.sleep(2)
        subprocess.run(
            [sys.executable, "-m", "mgloop.top", str(process.pid), "--svg", path,
             "--interval", "3"], cwd=ROOT, check=True,
        )  # fmt: skip
        load.wait()
        over.set()
        logging_in.join()


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "images").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    top(folder / "top.svg")
    top(folder / "top-mended.svg", "--in-thread")
    dashboard(folder / "dashboard.png")


if __name__ == "__main__":
    main()
