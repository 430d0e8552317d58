# SPDX-License-Identifier: GPL-2.0-only
"""A real Prometheus scrapes examples/aiohttp_metrics.py, and the dashboard's queries have data."""

import asyncio
import contextlib
import math
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import scraping
import support

import mgloop

pytest.importorskip("aiohttp")
prometheus_client = pytest.importorskip("prometheus_client")
from mgloop.observe.prometheus import LoopCollector  # noqa: E402 - needs prometheus_client

pytestmark = pytest.mark.mgloop_only

EXAMPLE = Path(__file__).parents[2] / "examples" / "aiohttp_metrics.py"


@contextlib.contextmanager
def loaded_example():
    """Yield its address, host:port, while requests arrive."""
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "0"], stdout=subprocess.PIPE, text=True
    ) as program:
        over = threading.Event()
        try:
            address = re.search(r"http://(\S+:\d+)/", program.stdout.readline())[1]

            def load():
                while not over.wait(0.01):
                    urllib.request.urlopen(f"http://{address}/", timeout=10).close()

            with support.in_thread(load):
                try:
                    yield address
                finally:
                    over.set()
            program.send_signal(signal.SIGINT)
            assert program.wait(support.PATIENCE) == 0
        finally:
            program.kill()


@pytest.mark.slow
@pytest.mark.skipif(not scraping.available, reason="prometheus is not installed")
def test_the_dashboards_queries_have_data(tmp_path):
    with loaded_example() as address, scraping.prometheus(address, tmp_path) as api:
        api.wait_for("rate(mgloop_callbacks_total[5s]) > 0", support.PATIENCE)
        api.wait_for("rate(mgloop_connections_accepted_total[5s]) > 0", support.PATIENCE)
        (target,) = api.get("targets")["activeTargets"]
        found = {
            (title, expression): api.query(expression)
            for title, _, targets in scraping.panels()
            for expression, _ in targets
        }
        metadata = api.get("metadata")
    assert (target["health"], target["lastError"]) == ("up", "")
    assert [question for question, series in found.items() if not series] == []
    for question, series in found.items():
        for labels, value in series:
            assert labels["loop"] == "main"
            assert math.isfinite(value), question
            assert value >= 0, question
    busy = [series[0][1] for (title, _), series in found.items() if title.startswith("Share")]
    assert all(0 < share <= 1.05 for share in busy)
    assert metadata["mgloop_lag_seconds"][0]["type"] == "histogram"
    assert metadata["mgloop_callbacks_total"][0]["type"] == "counter"


def test_the_dashboard_names_what_there_is():
    """Every metric in the queries is one of a running loop."""

    async def main():
        with LoopCollector(asyncio.get_running_loop(), registry=registry):
            return prometheus_client.generate_latest(registry).decode()

    registry = prometheus_client.CollectorRegistry()
    text = mgloop.run(main(), timing=True)
    there = set(re.findall(r"^(mgloop_\w+)", text, flags=re.MULTILINE))
    expressions = [expression for _, _, targets in scraping.panels() for expression, _ in targets]
    asked_for = {name for text in expressions for name in re.findall(r"mgloop_\w+", text)}
    assert asked_for
    assert asked_for <= there
