# SPDX-License-Identifier: GPL-2.0-only
"""Loops' stats() through prometheus_client and OpenTelemetry's SDK."""

import asyncio
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
import support

import mgloop
from mgloop.observe.instruments import HISTOGRAMS, INSTRUMENTS

prometheus_client = pytest.importorskip("prometheus_client")
metrics = pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402

from mgloop.observe.opentelemetry import observe  # noqa: E402
from mgloop.observe.prometheus import LoopCollector  # noqa: E402

pytestmark = pytest.mark.mgloop_only

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "aiohttp_metrics.py"


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def timed():
    loop = mgloop.new_event_loop(timing=True)
    yield loop
    loop.close()


def some_work(loop):
    for _ in range(10):
        loop.call_soon(int)
    loop.call_soon(loop.stop)
    loop.run_forever()


def fetched(url):
    with urllib.request.urlopen(url, timeout=support.PATIENCE) as response:
        return response.read().decode()


def exposed(registry):
    """Return the values that Prometheus would read: the sample's name with its labels -> value."""
    text = prometheus_client.generate_latest(registry).decode()
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


# --- Prometheus ----------------------------------------------------------------------------------


def test_prometheus_reads_what_stats_says(loop, registry):
    some_work(loop)
    with LoopCollector(loop, registry=registry):
        found = exposed(registry)
    assert found['mgloop_callbacks_total{loop="main"}'] == loop.stats().callbacks == 11
    assert found['mgloop_io_sent_bytes_total{loop="main"}'] == 0
    assert found['mgloop_timers_pending{loop="main"}'] == 0
    assert found['mgloop_connections_open{kind="tcp",loop="main"}'] == 0
    assert found['mgloop_uptime_seconds_total{loop="main"}'] > 0
    assert not any("lag" in name for name in found)


def test_names_are_prometheus(loop, registry):
    with LoopCollector(loop, registry=registry):
        text = prometheus_client.generate_latest(registry).decode()
    names = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert len(names) == len(set(names))
    for name, kind in names:
        assert re.fullmatch(r"mgloop_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total")
    assert text.count("# HELP") == len(names)


def test_histograms_of_a_loop_with_timing(timed, registry):
    some_work(timed)
    with LoopCollector(timed, registry=registry):
        found = exposed(registry)
    assert found['mgloop_durations_seconds_count{loop="main"}'] == 11
    assert found['mgloop_durations_seconds_bucket{le="+Inf",loop="main"}'] == 11
    assert found['mgloop_lag_seconds_sum{loop="main"}'] == timed.stats().lag.seconds
    buckets = [value for name, value in found.items() if name.startswith("mgloop_lag_seconds_b")]
    assert buckets == sorted(buckets)
    assert len(buckets) == len(mgloop.stats.BOUNDS)


def test_several_loops_by_name(registry):
    loops = {name: mgloop.new_event_loop() for name in ("one", "two")}
    some_work(loops["two"])
    with LoopCollector(loops, registry=registry):
        found = exposed(registry)
        assert found['mgloop_callbacks_total{loop="one"}'] == 0
        assert found['mgloop_callbacks_total{loop="two"}'] == 11
        loops["one"].close()
        found = exposed(registry)
        assert 'mgloop_callbacks_total{loop="one"}' not in found
        assert found['mgloop_callbacks_total{loop="two"}'] == 11
    loops["two"].close()


def test_a_loop_that_is_forgotten_is_not_kept(registry):
    loop = mgloop.new_event_loop()
    with LoopCollector(loop, registry=registry):
        loop.close()
        del loop
        assert exposed(registry) == {}


def test_a_collector_is_registered_once_and_gone_when_closed(loop, registry):
    collector = LoopCollector(loop, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        LoopCollector(loop, registry=registry)
    collector.close()
    collector.close()
    assert exposed(registry) == {}
    LoopCollector(loop, registry=registry).close()


def test_only_loops_of_mgloops(registry):
    other = asyncio.SelectorEventLoop()
    with pytest.raises(TypeError, match="must be an mgloop"):
        LoopCollector(other, registry=registry)
    with pytest.raises(TypeError, match="'mine' must be an mgloop"):
        LoopCollector({"mine": None}, registry=registry)
    other.close()


def test_over_http_while_the_loop_runs(registry):
    loop = mgloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server, server_thread = prometheus_client.start_http_server(
        0, addr="127.0.0.1", registry=registry
    )
    try:
        with LoopCollector(loop, registry=registry):
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            text = fetched(url)
        assert 'mgloop_cpu_seconds_total{loop="main"}' in text
    finally:
        server.shutdown()
        server.server_close()
        server_thread.join()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_example():
    pytest.importorskip("aiohttp")
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "0"], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            url = re.search(r"http://\S+:\d+/", program.stdout.readline())[0]
            for _ in range(5):
                assert fetched(url) == "Hello, World!"
            text = fetched(f"{url}metrics")
            program.send_signal(signal.SIGINT)
            assert program.wait(support.PATIENCE) == 0
        finally:
            program.kill()
    assert 'mgloop_connections_accepted_total{kind="tcp",loop="main"} 6.0' in text
    assert 'mgloop_lag_seconds_bucket{le="+Inf",loop="main"}' in text


# --- OpenTelemetry -------------------------------------------------------------------------------


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = metrics.MeterProvider([reader])
    yield provider
    provider.shutdown()


def collected(reader):
    """Collect the metrics; return name -> {attributes -> value}."""
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = {
                    tuple(sorted(point.attributes.items())): point.value
                    for point in metric.data.data_points
                }
    return found


def test_opentelemetry_reads_what_stats_says(loop, reader, provider):
    observe(loop, meter_provider=provider)
    some_work(loop)
    found = collected(reader)
    main = (("loop", "main"),)
    assert found["mgloop.callbacks"] == {main: 11}
    assert found["mgloop.timers_pending"] == {main: 0}
    assert found["mgloop.connections.open"][(("kind", "tcp"), ("loop", "main"))] == 0
    assert found["mgloop.uptime"][main] > 0
    absent = {"cpu", "running", "waiting"}  # the loop does not run, and timing is disabled
    assert set(found) == {f"mgloop.{i.name}" for i in INSTRUMENTS if i.name not in absent}


def test_opentelemetrys_buckets(timed, reader, provider):
    observe(timed, meter_provider=provider)
    some_work(timed)
    found = collected(reader)
    for field, _ in HISTOGRAMS:
        buckets = found[f"mgloop.{field}.bucket"]
        assert buckets[(("le", "inf"), ("loop", "main"))] == 11
        assert len(buckets) == len(mgloop.stats.BOUNDS)
    assert found["mgloop.running"][(("loop", "main"),)] > 0


def test_opentelemetry_of_a_closed_loop(reader, provider):
    loop = mgloop.new_event_loop()
    observe(loop, meter_provider=provider)
    some_work(loop)
    assert collected(reader)
    loop.close()
    assert not collected(reader)


def test_opentelemetry_takes_only_loops_of_mgloops(provider):
    with pytest.raises(TypeError, match="must be an mgloop"):
        observe({"main": object()}, meter_provider=provider)
