# SPDX-License-Identifier: GPL-2.0-only
"""GET /metrics of a server: the totals over all processes and threads."""

import asyncio
import os
import re
import signal

import pytest
from commands import APPLICATION, PATIENCE, fails, get, pending, serve, write_app
from support import eventually, wait_until

import mgloop.http
from mgloop.http.metrics import BOUNDS, Meter, ServerStats, total

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.timeout(4 * PATIENCE), pytest.mark.mgloop_only]

METRICS = ("--metrics-port", 0, "--no-access-log")


def told(url):
    """Return {(the sample's name, worker, status or bound): value}."""
    found = {}
    for family in text_string_to_metric_families(get(url, "/metrics")):
        for sample in family.samples:
            of = sample.labels.get("status") or sample.labels.get("le")
            found[sample.name, sample.labels["worker"], of] = sample.value
    return found


def responses(url, status=200):
    """Return {worker: number of responses}."""
    return {
        worker: int(value)
        for (name, worker, of), value in told(url).items()
        if name == "mgloop_http_responses_total" and of == str(status)
    }


def addresses(command, workers=1):
    """Wait for the workers; return (the address of the metrics, the address of the application)."""
    metrics = command.wait_for(r"Serving metrics on (\S+)/metrics")[1]
    if workers == 1:
        return metrics, command.url()
    command.wait_for("is ready")
    url = command.url()
    for _ in range(workers - 1):
        command.wait_for("is ready")
    return metrics, url


def test_responses_are_counted(folder):
    with serve(folder, *METRICS) as command:
        metrics, url = addresses(command)
        with pytest.raises(AssertionError, match="404"):
            get(metrics, "/")
        sent = sum(len(get(url)) for _ in range(5))
        with pending(url, "/gate") as answer:
            command.wait_for("in the gate")
            now = told(metrics)
            assert now["mgloop_http_requests_in_flight", "0", None] == 1
            assert now["mgloop_http_connections", "0", None] == 1
            assert now["mgloop_http_responses_total", "0", "200"] == 5
            assert now["mgloop_http_sent_bytes_total", "0", None] == sent
            get(url, "/open")
            answer()
        now = told(metrics)
        assert now["mgloop_http_responses_total", "0", "200"] == 7
        assert now["mgloop_http_request_duration_seconds_count", "0", None] == 7
        assert now["mgloop_http_request_duration_seconds_bucket", "0", "+Inf"] == 7
        assert now["mgloop_http_request_duration_seconds_bucket", "0", "0.1"] >= 6
        assert 0 < now["mgloop_http_request_duration_seconds_sum", "0", None] < PATIENCE
        assert command.stop() == 0
    assert command.output.count("Shutting down") == 1


def test_workers_are_distinguished_and_outlived(folder):
    """Ended workers remain in the totals, however they ended; each is identified by its slot."""
    with serve(folder, *METRICS, "--workers", 2) as command:
        metrics, url = addresses(command, workers=2)
        for _ in range(40):
            get(url)
        before = responses(metrics)
        assert sum(before.values()) == 40
        assert set(before) <= {"0", "1"}
        command.send(signal.SIGHUP)
        command.wait_for("All workers have been restarted")
        assert sum(responses(metrics).values()) == 40
        pid = int(get(url))
        assert sum(responses(metrics).values()) == 41
        os.kill(pid, signal.SIGKILL)
        command.wait_for("is ready")
        after = responses(metrics)
        assert sum(after.values()) == 41
        assert all(after[worker] >= count for worker, count in before.items())
        assert command.stop() == 0


def test_a_worker_that_is_stuck_does_not_delay_the_metrics(folder):
    with serve(folder, *METRICS, "--workers", 2) as command:
        metrics, url = addresses(command, workers=2)
        get(url)
        assert sum(responses(metrics).values()) == 1
        with pending(url, "/stuck"):
            assert sum(responses(metrics).values()) == 1


def test_a_worker_whose_loop_has_ended_is_asked_in_vain(folder):
    """The supervisor still runs, while a thread of the application keeps the process alive."""
    lingering = """print("the application has shut down", flush=True)
        threading.Thread(target=linger).start()"""
    waiting = """
def linger():
    threading.main_thread().join()
    print("the thread goes on", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""
    source = APPLICATION.replace('print("the application has shut down", flush=True)', lingering)
    write_app(folder, source.replace("import asyncio", "import time, asyncio") + waiting)
    with serve(folder, *METRICS, "--workers", 2) as command:
        metrics = command.wait_for(r"Serving metrics on (\S+)/metrics")[1]
        os.kill(int(command.wait_for(r"Worker \[(\d+)\] is ready")[1]), signal.SIGTERM)
        command.wait_for("the thread goes on")
        responses(metrics)
        (folder / "go").touch()
        command.wait_for(r"Worker \[\d+\] exited with status 0; starting a replacement")
        assert command.stop() == 0
    assert "Supervisor exited" not in command.output


def test_threads_are_added_up(folder):
    with serve(folder, *METRICS, "--threads", 3) as command:
        metrics, url = addresses(command)
        for _ in range(30):
            get(url)
        # A response is counted after it was sent, here by another thread than the queried one.
        eventually(lambda: sum(responses(metrics).values()) >= 30)
        assert responses(metrics) == {"0": 30}
        assert command.stop() == 0


async def hello(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 201})
    await send({"type": "http.response.body", "body": b"hello"})


WSGI_APPLICATION = """
    import threading
    from wsgiref.validate import validator

    def app(environ, start_response):
        return validator(respond)(environ, start_response)

    def respond(environ, start_response):
        if environ["PATH_INFO"] == "/gate":
            print("in the gate", flush=True)
            threading.Event().wait()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
        return [b"ok"]
"""


def test_requests_that_wait_for_a_thread(tmp_path):
    """The gate takes the only thread; --timeout-request counts it as slow."""
    write_app(tmp_path, WSGI_APPLICATION)
    options = ("--wsgi-threads", 1, "--timeout-request", 0.2)
    with serve(tmp_path, *METRICS, *options) as command:
        metrics, url = addresses(command)
        get(url)
        with pending(url, "/gate"), pending(url, "/"):
            command.wait_for("in the gate")
            command.wait_for("timeout request exceeded")
            eventually(lambda: told(metrics)["mgloop_http_requests_queued", "0", None])
            now = told(metrics)
            assert now["mgloop_http_requests_queued", "0", None] == 1
            assert now["mgloop_http_slow_requests_total", "0", None] == 1
            assert now["mgloop_http_queue_duration_seconds_count", "0", None] == 2
            assert 0 < now["mgloop_http_queue_duration_seconds_sum", "0", None] < PATIENCE


def test_embedded():
    async def main():
        config = mgloop.http.Config(app=hello, port=0, metrics_port=0, lifespan="off")
        async with mgloop.http.Server(config) as server:
            assert server.stats() == ServerStats()
            for _ in range(3):
                with pytest.raises(AssertionError, match="201"):
                    await asyncio.to_thread(get, server.url)
            await wait_until(lambda: not server.stats().connections)
            stats = server.stats()
        assert stats.responses == {201: 3}
        assert (stats.sent, stats.in_flight, stats.connections) == (15, 0, 0)
        assert sum(stats.durations) == 3
        assert stats.seconds > 0

    mgloop.run(main())


def test_nothing_is_counted_unless_asked():
    async def main():
        async with mgloop.http.Server(mgloop.http.Config(app=hello, port=0)) as server:
            with pytest.raises(AssertionError, match="201"):
                await asyncio.to_thread(get, server.url)
            return server.stats()

    assert mgloop.run(main()).responses == {}


def test_durations_go_into_their_buckets():
    logged = []
    meter = Meter(lambda *told: logged.append(told))
    for seconds in (0, BOUNDS[0], BOUNDS[0] * 1.01, 1e9):
        meter({}, 200, 1, seconds)
    stats = meter.stats(in_flight=0, connections=0)
    assert stats.durations == (2, 1, *[0] * (len(BOUNDS) - 3), 1)
    assert len(logged) == 4


def test_accounts_add_up_and_travel():
    durations = tuple(range(len(BOUNDS)))
    one = ServerStats({200: 1, 404: 2}, 10, durations, 0.5, 1, 2)
    two = ServerStats({200: 3}, 5, durations, 0.25, 1, 1)
    both = total([one, two])
    queue = ServerStats(queued=1, waits=2, waited=0.5, slow=3)
    assert total([queue, queue]) == ServerStats(queued=2, waits=4, waited=1.0, slow=6)
    assert queue.ended() == ServerStats(waits=2, waited=0.5, slow=3)
    assert both == ServerStats({200: 4, 404: 2}, 15, tuple(2 * n for n in durations), 0.75, 2, 3)
    assert ServerStats.unpacked(both.packed()) == both
    assert both.ended().in_flight == both.ended().connections == 0
    assert total([]) == ServerStats()


def test_a_port_in_use(folder):
    with serve(folder, *METRICS) as command:
        metrics, _ = addresses(command)
        port = metrics.rpartition(":")[2]
        arguments = ("serve", "main:app", "--port", 0, "--metrics-port", port)
        for more in ((), ("--workers", 2)):
            lines = fails(*arguments, *more, cwd=folder, status=1)
            (line,) = [line for line in lines if port in line]
            assert "in use" in line
            assert "Traceback" not in "\n".join(lines)


def test_without_prometheus_client(folder):
    (folder / "prometheus_client.py").write_text("raise ImportError('not installed')")
    lines = fails("serve", "main:app", "--port", 0, *METRICS, cwd=folder, status=1,
                  env={"PYTHONPATH": str(folder)})  # fmt: skip
    assert re.search(r"metrics_port requires prometheus_client: pip install", lines[-1])
    assert "Traceback" not in "\n".join(lines)
