# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks' command line, end to end, on asyncio and on loops with known faults.

Each test runs ``python -m bench`` as a user would. The windows are so short that the figures mean
nothing; the tests check which faults the harness detects, keeps and reports.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import cli  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator needs a C compiler"),
]
BRIEF = (
    "--seconds", "0.1", "--warmup", "0.02", "--rounds", "1", "--windows", "1", "--no-control",
)  # fmt: skip
FAKES = {"PYTHONPATH": support.python_path(ROOT / "tests" / "tools")}


def command(*args):
    return [sys.executable, "-m", "bench", *args]


def bench(*args, env=None):
    """Run the command and wait for its end."""
    return support.finished(
        command(*args), cwd=ROOT, env={**os.environ, **FAKES, **(env or {})}, timeout=100
    )


def run(tmp_path, *args, env=None):
    """Run ``bench run`` briefly; return the finished process and the parsed results file."""
    path = tmp_path / "r.json"
    done = bench("run", *BRIEF, "--json", str(path), *args, env=env)
    return done, json.loads(path.read_text()) if path.exists() else None


def complaint(capsys, *args):
    """Run a command that fails because of its input, in this process; return its one sentence."""
    assert cli.main(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: ")
    return line


def samples(results, subject):
    return [s for s in results["samples"] if s["subject"] == subject]


def test_list_names_loops_and_workloads(capsys):
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    for text in ("asyncio:SelectorEventLoop", "echo/protocol-1k-c100", "seeds/4-classify-101"):
        assert text in listed


def test_an_echo_run_has_all_its_figures(tmp_path):
    done, found = run(tmp_path, "--suite", "echo", "--loops", "asyncio",
                      "--only", "echo/protocol-1k-c100,udp,unix,pipe-1k")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {s["name"] for s in found["subjects"]} == {"asyncio", "floor"}
    assert len(found["samples"]) == 8
    for sample in found["samples"]:
        assert sample["status"] == "ok", sample
        assert sample["value"] == sample["cpu_us"] > 0
        assert sample["ops"] > 0
        assert sample["rss_kib"] > 0
        assert sample["others"] >= 0
        assert sample["client_sleeps"] > 0
        latency = sample["latency_us"]
        assert 0 < latency["50"] <= latency["95"] <= latency["99"] <= latency["99.9"]
    assert found["machine"]["kernel"] == os.uname().release
    assert "protocol-1k-c100" in done.stdout


def test_bulk_writelines_and_accept(tmp_path):
    done, found = run(tmp_path, "--suite", "echo,scale", "--loops", "asyncio",
                      "--only", "bulk,writelines,scale/accept,sendfile")  # fmt: skip
    assert done.returncode == 0, done.stderr
    ok = {s["workload"] for s in samples(found, "asyncio") if s["status"] == "ok"}
    # No machine sends 100 MB in 50 ms: sendfile may end its window without one whole file.
    assert ok >= {"echo/bulk-receive", "echo/bulk-send", "echo/writelines-10x1k-c100",
                  "scale/accept"}  # fmt: skip


def test_tls(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program for a certificate")
    done, found = run(tmp_path, "--suite", "tls", "--loops", "asyncio",
                      "--only", "tls/protocol-1k,handshakes")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [s["status"] for s in found["samples"]] == ["ok", "ok"]


def test_tls_by_the_client_in_python(tmp_path):
    """A machine without OpenSSL's headers is simulated by a compiler that cannot link -lssl."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program for a certificate")
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-lssl*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    done, found = run(tmp_path, "--suite", "tls", "--loops", "asyncio",
                      "--only", "tls/protocol-1k,handshakes", "--seconds", "0.4",
                      env={"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    for sample in found["samples"]:
        assert sample["status"] == "ok", sample
        assert "client in Python" in sample["note"]


def test_several_loops_behind_one_port(tmp_path):
    done, found = run(tmp_path, "--suite", "threads", "--loops", "asyncio",
                      "--only", "streams-1k,own-echo,threadsafe")  # fmt: skip
    assert done.returncode == 0, done.stderr
    shapes = {"asyncio", "asyncio 2thr", "asyncio 2proc"}
    assert {(s["workload"], s["subject"]) for s in found["samples"]} >= {
        ("threads/threadsafe-loops", "asyncio"),
        *(("threads/streams-1k", shape) for shape in shapes),
        *(("threads/own-echo", shape) for shape in shapes),
    }
    assert {s["status"] for s in found["samples"]} == {"ok"}


def test_idle_connections_cost_memory(tmp_path):
    done, found = run(tmp_path, "--suite", "scale", "--loops", "asyncio", "--only", "rss",
                      "--no-floor")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (rss,) = [s for s in found["samples"] if s["workload"] == "scale/rss-per-idle"]
    if rss["status"] == "errors":
        pytest.skip(f"this machine has no 10,000 connections to spare ({rss['note']})")
    assert 0.1 < rss["value"] < 100


def test_a_slow_loop_is_detected(tmp_path):
    path = tmp_path / "r.json"
    done = bench("run", "--quick", "--suite", "micro", "--only", "call_soon-0", "--rounds", "3",
                 "--windows", "1", "--loops", "asyncio,slow=bench_fakes:SlowLoop",
                 "--json", str(path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("call_soon-0")]
    assert "x-" in row, row
    values = [[s["value"] for s in samples(found, name)] for name in ("asyncio", "slow")]
    assert min(values[1]) > max(values[0])


def test_another_loop_can_be_the_control(tmp_path):
    path = tmp_path / "r.json"
    done = bench("run", "--quick", "--suite", "micro", "--only", "call_soon-0", "--windows", "1",
                 "--loops", "asyncio", "--control", "slow=bench_fakes:SlowLoop",
                 "--json", str(path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert [(s["name"], s["control_of"]) for s in found["subjects"]] == [
        ("asyncio", None), ("slow", "asyncio"),
    ]  # fmt: skip
    assert samples(found, "slow")
    assert "Control: slow is asyncio once more." in done.stdout


def test_a_micro_workload_that_kills_its_process_costs_only_itself(tmp_path):
    done, found = run(tmp_path, "--quick", "--suite", "micro", "--only", "chain,call_later,sleep",
                      "--rounds", "1", "--loops", "fragile=bench_fakes:FragileLoop")  # fmt: skip
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("bench: ")]
    assert "micro/call_later-cancel, fragile, window 1: fragile died" in line
    statuses = {s["workload"]: s["status"] for s in samples(found, "fragile")}
    assert statuses == {
        "micro/chain": "ok", "micro/call_later-cancel": "failed", "micro/sleep-0": "ok",
    }  # fmt: skip


def test_servers_that_fail_are_reported_and_the_rest_is_kept(tmp_path):
    names = ("LyingLoop", "ClosingLoop", "DyingLoop", "StuckLoop")
    done, found = run(tmp_path, "--suite", "echo", "--only", "echo/protocol-1k-c100", "--loops",
                      ",".join(["asyncio", *(f"{n}=bench_fakes:{n}" for n in names)]))  # fmt: skip
    assert done.returncode == 2
    for name in ("LyingLoop", "ClosingLoop"):
        (sample,) = samples(found, name)
        assert sample["status"] == "errors"
        assert "value" not in sample
        assert sum(sample["errors"].values()) == 100
    assert {s["status"] for s in samples(found, "DyingLoop")} == {"failed"}
    assert samples(found, "StuckLoop")[0]["status"] == "unsupported"
    assert {s["status"] for s in samples(found, "asyncio")} == {"ok"}
    assert "DyingLoop died while it served (exit status 7)" in done.stderr
    assert "errors" in done.stdout
    assert "cannot" in done.stdout


def test_a_server_that_stops_answering_is_reported(tmp_path):
    done, found = run(tmp_path, "--suite", "echo", "--only", "echo/protocol-1k-c100", "--no-floor",
                      "--loops", "silent=bench_fakes:SilentLoop", "--seconds", "5")  # fmt: skip
    assert done.returncode == 2
    assert "silent hung: 100 connection(s) had no answer" in done.stderr
    assert {s["status"] for s in samples(found, "silent")} == {"failed"}


def test_a_wrapped_loop_is_measured_where_its_transports_are(tmp_path):
    names = "asyncio,over=bench_fakes:over(asyncio:new_event_loop)"
    done, found = run(tmp_path, "--suite", "micro,echo", "--only", "sleep-0,echo/protocol-1k-c1",
                      "--loops", names)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {s["workload"] for s in samples(found, "asyncio")} == {
        "micro/sleep-0", "echo/protocol-1k-c1",
    }  # fmt: skip
    # The wrapper's create_server() fails; suites without the wrapper's transports leave it out.
    assert [(s["workload"], s["status"]) for s in samples(found, "over")] == [
        ("echo/protocol-1k-c1", "unsupported")
    ]
    versions = {s["name"]: s["version"] for s in found["subjects"]}
    assert versions["over"].endswith(f"over asyncio {versions['asyncio']}")


def test_interrupt_keeps_what_was_measured(tmp_path):
    path = tmp_path / "r.json"
    with subprocess.Popen(
        command("run", "--suite", "echo", "--loops", "asyncio", "--only", "echo/protocol",
                "--rounds", "50", "--seconds", "0.05", "--json", str(path)),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                if path.exists() and json.loads(path.read_text())["samples"]:
                    break
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    found = json.loads(path.read_text())
    assert found["interrupted"]
    assert found["samples"]
    assert "the run was interrupted" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["run", "--loops", "nonsense"], "unknown loop 'nonsense'"),
        (["run", "--loops", "no_module:x"], "unknown loop 'no_module:x'"),
        (["run", "--loops", "asyncio,asyncio"], "given twice"),
        (["run", "--suite", "nonsense"], "unknown suite 'nonsense'"),
        (["run", "--suite", "asgi", "--servers", "nonsense"], "unknown server 'nonsense'"),
        (["run", "--loops", "asyncio", "--only", "nonsense"], "no workload matches"),
        (["run", "--loops", "asyncio", "--rounds", "0"], "must be positive"),
        (["run", "--loops", "asyncio", "--reference", "uvloop"], "not among the loops"),
        (["run", "--loops", "asyncio", "--control", "nonsense"], "unknown loop 'nonsense'"),
        (["run", "--loops", "asyncio", "--control", "asyncio"], "the name of another loop"),
        (["run", "--loops", "asyncio", "--suite", "micro", "--json", "/dev/null/x"], "cannot"),
        (["report", "no-such-file.json"], "cannot read"),
        (["compare", "README.md", "README.md"], "not JSON"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(capsys, args, sentence):
    assert sentence in complaint(capsys, *args)


def test_a_results_file_of_another_version(capsys, tmp_path):
    path = tmp_path / "old.json"
    path.write_text('{"format": "mgloop-bench", "version": 99}')
    for args in (["report", str(path)], ["compare", str(path), str(path)]):
        assert "version 99, and this is version 1" in complaint(capsys, *args)


def test_without_wrk_the_others_are_measured(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cc", "as", "ld"):
        (folder / name).symlink_to(shutil.which(name))
    done, found = run(tmp_path, "--suite", "http,scale", "--loops", "asyncio",
                      "--only", "http/raw-c50,active50-idle0",
                      env={"PATH": str(folder)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out: wrk is not installed" in done.stderr
    assert "skipped: wrk is not installed" in done.stdout
    assert {s["workload"] for s in found["samples"]} == {"scale/active50-idle0"}


@pytest.mark.parametrize("workload", ["http/raw-c50", "seeds/1"])
def test_where_only_wrk_could_measure_nothing_is_measured(tmp_path, workload):
    done, _ = run(tmp_path, "--suite", "http,seeds", "--loops", "asyncio", "--only", workload,
                  env={"PATH": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out: wrk is not installed" in done.stderr


def test_without_a_compiler_what_needs_no_load_generator_is_measured(tmp_path):
    nothing = {"PATH": str(tmp_path), "CC": "", "XDG_CACHE_HOME": str(tmp_path)}
    done, found = run(tmp_path, "--suite", "micro,echo", "--loops", "asyncio", "--no-floor",
                      "--only", "micro/call_soon-0,echo/protocol-1k-c1", env=nothing)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "left out: no C compiler (cc)" in done.stderr
    assert {s["workload"] for s in found["samples"]} == {"micro/call_soon-0"}


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done, _ = run(tmp_path, "--suite", "echo", "--loops", "asyncio", "--no-floor",
                      "--only", "echo/protocol-1k-c1", "--port", str(port))  # fmt: skip
    sentences = [line for line in done.stderr.splitlines() if line.startswith("bench: ")]
    assert done.returncode == 2
    assert sentences == [f"bench: port {port} is in use: choose another"]


def test_report_and_compare_of_a_run(tmp_path):
    done, _ = run(tmp_path, "--suite", "micro", "--only", "sleep-0,chain",
                  "--loops", "asyncio,twin=asyncio:SelectorEventLoop")  # fmt: skip
    assert done.returncode == 0, done.stderr
    path, markdown, page = (str(tmp_path / n) for n in ("r.json", "r.md", "r.html"))
    assert bench("report", path, "--md", markdown, "--html", page).returncode == 0
    assert "| task switch (sleep(0)) (us) |" in Path(markdown).read_text()
    assert "<table>" in Path(page).read_text()
    done = bench("compare", path, path, "--loop", "twin")
    assert done.returncode == 0
    assert "no regression beyond the noise among 2 workloads" in done.stdout
    worse = json.loads(Path(path).read_text())
    for sample in samples(worse, "twin"):
        sample["value"] *= 2
    other = tmp_path / "worse.json"
    other.write_text(json.dumps(worse))
    done = bench("compare", path, str(other), "--loop", "twin")
    assert done.returncode == 1
    assert "2 regression(s)" in done.stdout


def test_the_guard_says_that_a_revision_is_unknown():
    done = support.finished(
        [sys.executable, "-m", "bench.revisions", "no-such-revision"], cwd=ROOT, timeout=60
    )
    assert done.returncode == 2
    assert "git knows no revision 'no-such-revision'" in done.stderr


def test_asgi_servers(tmp_path):
    """The servers of a minimal environment: mgloop's own serves every kind of workload."""
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program for a certificate")
    done, found = run(tmp_path, "--suite", "asgi", "--servers", "mgloop serve", "--quick",
                      "--only", "hello-c1,browser,json-c1,echo-c1,stream-c1,upload,download,log,"
                      "asgi/tls,websocket")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert found["reference"] == "mgloop serve"
    assert {s["status"] for s in found["samples"]} == {"ok"}, found["samples"]
    assert {s["workload"].partition("-c")[0] for s in found["samples"]} == {
        f"asgi/{name}" for name in ("hello", "browser", "json", "echo", "stream", "upload",
                                    "download", "access-log", "tls", "websocket-1k")
    }  # fmt: skip


def test_wsgi_servers(tmp_path):
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    names = "mgloop serve threads,mgloop serve inline"
    done, found = run(tmp_path, "--suite", "wsgi", "--servers", names, "--quick", "--windows", "1",
                      "--only", "hello-c1,wsgi/download")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert found["reference"] == "mgloop serve threads"
    assert {(s["workload"], s["status"]) for s in found["samples"]} == {
        ("wsgi/hello-c1", "ok"), ("wsgi/download-c4", "ok"),
    }  # fmt: skip


def test_the_control_of_the_servers(tmp_path):
    for name in ("uvicorn", "httptools", "uvloop"):
        pytest.importorskip(name)
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    path = tmp_path / "r.json"
    done = bench("run", "--quick", "--suite", "asgi", "--servers", "uvicorn,mgloop serve",
                 "--windows", "1", "--only", "hello-c1", "--json", str(path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {s["subject"]: s["status"] for s in json.loads(path.read_text())["samples"]} == {
        "uvicorn": "ok", "uvicorn#2": "ok", "mgloop serve": "ok",
    }  # fmt: skip


def test_a_framework_that_is_missing_is_said_and_is_no_failure(tmp_path):
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    if importlib.util.find_spec("blacksheep"):
        pytest.skip("blacksheep is installed")
    done, found = run(tmp_path, "--suite", "asgi", "--servers", "mgloop serve",
                      "--only", "blacksheep-c1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not installed: blacksheep" in done.stdout
    assert {s["status"] for s in found["samples"]} == {"unsupported"}


def test_http_and_a_seed(tmp_path):
    pytest.importorskip("aiohttp")
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    done, found = run(tmp_path, "--suite", "http,seeds", "--loops", "asyncio", "--no-floor",
                      "--only", "http/aiohttp,seeds/1,seeds/3-close-p2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    by_name = {(s["workload"], s["subject"]): s for s in found["samples"]}
    for key in (
        ("http/aiohttp-c50", "asyncio"), ("http/aiohttp-client-c20", "asyncio"),
        ("seeds/1-hello", "aiohttp/asyncio"), ("seeds/3-close-p2", "asyncio, multiplexed"),
        ("seeds/3-close-p2", "asyncio, one at a time"),
        ("seeds/3-close-p2", "blocking, one at a time"),
    ):  # fmt: skip
        assert by_name[key]["rate"] > 0, by_name[key]
    assert "wrk -t4 -c100 -d1s" in done.stdout
