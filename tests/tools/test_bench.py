# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks' arithmetic, files, order of measurements and reports, on known input."""

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import (  # noqa: E402
    compare,
    loops,
    measure,
    micro,
    neighbours,
    processes,
    registry,
    report,
    revisions,
    runner,
    served,
    stats,
)
from bench.asgi import apps, serve, servers  # noqa: E402
from bench.errors import BenchError, MissingToolError, RunError, UnsupportedError, scrub  # noqa: E402
from bench.results import Results, load  # noqa: E402
from bench.seeds import compiled, payload, plan  # noqa: E402


@contextlib.contextmanager
def handled(folder, handler):
    """Run `mgloop serve` with a handler of the module `handlers` in `folder`; yield the port."""
    port = processes.free_port()
    command = [sys.executable, "-m", "mgloop", "serve", "--port", str(port), "--log-level", "error"]
    command += ["--compiled-handler", f"handlers:{handler}", "bench.seeds.asgi_plain:app"]
    env = {"PYTHONPATH": support.python_path(ROOT, folder)}
    child = processes.spawn(handler, command, frozenset({*os.sched_getaffinity(0)}), env=env)
    with processes.running(child):
        measure.await_answer(child, port)
        yield port


def make_results(samples, workloads=(("echo/a", "cpu"),), **changes):
    """Return results with the subjects ref, ref#2 (control), fast and slow.

    *samples* maps (workload, subject) to the values of the rounds.
    """
    described = [
        {"name": name, "suite": name.partition("/")[0], "title": name, "kind": "load",
         "metric": metric, "core": True, "reference": None}
        for name, metric in workloads
    ]  # fmt: skip
    listed = [
        {"workload": workload, "subject": subject, "round": number, "status": "ok",
         "value": value, "ops": 1000, "rate": 1e6 / value, "cpu_us": value, "errors": {},
         "latency_us": {"50": value, "95": value, "99": value * 2, "99.9": value * 3},
         "rss_kib": 2048, "client_bound": False}
        for (workload, subject), values in samples.items()
        for number, value in enumerate(values)
    ]  # fmt: skip
    subjects = [
        {"name": name, "spec": "asyncio:SelectorEventLoop", "version": "1",
         "control_of": "ref" if name == "ref#2" else None}
        for name in ("ref", "ref#2", "fast", "slow", "mgloop")
    ]  # fmt: skip
    machine = {"processor": "test", "cpus": 2, "virtual": False, "kernel": "6", "libc": "glibc",
               "python": "3.13", "commit": "abc", "load_average": [0.0, 0.0, 0.0]}  # fmt: skip
    settings = {**measure.Settings().as_dict(), "cores": {"server": [0], "client": [1]}}
    fields = {"machine": machine, "settings": settings, "subjects": subjects, "reference": "ref",
              "workloads": described, "samples": listed, **changes}  # fmt: skip
    return Results(**fields)


def ten_percent(subject="fast", factor=2.0):
    """Return a run whose control deviates by 10 %, and in which *subject* costs 1/*factor*."""
    reference = [10.0, 12.0, 11.0, 10.0]
    noisy = [1.1, 1 / 1.1, 1.1, 1 / 1.1]
    return make_results(
        {
            ("echo/a", "ref"): reference,
            ("echo/a", "ref#2"): [v / n for v, n in zip(reference, noisy, strict=True)],
            ("echo/a", subject): [v / factor for v in reference],
        }
    )


class TestStatistics:
    def test_median_of_odd_and_even(self):
        assert stats.median([3, 1, 2]) == 2
        assert stats.median([4, 1, 3, 2]) == 2.5
        with pytest.raises(ValueError, match="no values"):
            stats.median([])

    def test_percentile_is_the_nearest_rank(self):
        values = list(range(1, 101))
        assert [stats.percentile(values, p) for p in (50, 95, 99, 99.9, 100)] == [
            50, 95, 99, 100, 100,
        ]  # fmt: skip
        assert stats.percentile([7], 1) == 7

    def test_summary_has_the_extremes(self):
        assert stats.Summary.of([3.0, 1.0, 2.0]) == stats.Summary(2.0, 1.0, 3.0, 3)
        assert stats.Summary.of([]) is None

    def test_ratios_are_paired_within_the_round(self):
        # Round 1 was twice as slow for both: pairing must cancel that.
        reference, subject = {0: 10.0, 1: 20.0, 2: 5.0}, {0: 5.0, 1: 10.0}
        assert stats.paired_ratios(reference, subject, lower_is_better=True) == [2.0, 2.0]
        assert stats.paired_ratios(reference, subject, lower_is_better=False) == [0.5, 0.5]

    def test_ratios_of_what_is_not_positive_do_not_exist(self):
        # uvloop's timers fire early, and no ratio exists for a negative lateness.
        assert stats.paired_ratios({0: -200.0}, {0: 50.0}, lower_is_better=True) == []

    def test_spread_of_a_control(self):
        assert stats.spread([]) == 0
        assert stats.spread([1.0, 1.0, 1.0]) == 0
        assert stats.spread([0.9, 1.1, 0.9, 1.1]) == pytest.approx(0.1)
        assert stats.spread([1.2, 1.2, 1.2]) == pytest.approx(0.2)

    def test_noise_has_two_lower_bounds(self):
        assert stats.noise([1.0, 1.0]) == stats.NOISE_FLOOR
        assert stats.noise([1.0, 1.0], [0.1, 0.08, 0.3]) == pytest.approx(0.1)
        assert stats.noise([0.8, 0.8], [0.01]) == pytest.approx(0.2)

    @pytest.mark.parametrize(
        ("ratios", "band", "expected"),
        [
            ([1.2, 1.3, 1.25, 1.2], 0.05, "faster"),
            ([0.8, 0.7, 0.75, 0.8], 0.05, "slower"),
            ([1.03, 1.04, 1.03, 1.02], 0.05, "same"),
            # The median is beyond the band, but half of the rounds are not.
            ([0.9, 0.95, 1.3, 1.4], 0.05, "same"),
            ([2.0, 2.0], 0.05, "unclear"),
            ([], 0.05, "unclear"),
        ],
    )
    def test_verdict(self, ratios, band, expected):
        assert stats.verdict(ratios, band) == expected


class TestResultsFile:
    def test_round_trip(self, tmp_path):
        found = ten_percent()
        found.missing = {"rloop": "not installed"}
        found.save(tmp_path / "sub" / "r.json")
        again = load(str(tmp_path / "sub" / "r.json"))
        # Samples are rounded to six digits; writing again changes nothing.
        assert again.text() == found.text()
        assert again.values("echo/a", "fast") == pytest.approx(found.values("echo/a", "fast"))
        for name in ("machine", "settings", "subjects", "workloads", "missing", "created"):
            assert getattr(again, name) == getattr(found, name)
        assert [p.name for p in (tmp_path / "sub").iterdir()] == ["r.json"]

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ("{", "not JSON"),
            ("[]", "not a results file"),
            ('{"format": "mgloop-bench", "version": 0}', "version 0, and this is version 1"),
            ('{"format": "mgloop-bench", "version": 1, "colour": 1}', "damaged"),
        ],
    )
    def test_an_invalid_results_file_is_reported_in_one_line(self, tmp_path, content, sentence):
        path = tmp_path / "r.json"
        path.write_text(content)
        with pytest.raises(BenchError, match=sentence) as caught:
            load(str(path))
        assert "\n" not in str(caught.value)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(BenchError, match="No such file"):
            load(str(tmp_path / "none.json"))

    def test_noise_comes_from_the_control(self):
        assert ten_percent().noise("echo/a") == pytest.approx(0.1, abs=0.01)

    def test_bad_samples_have_no_value(self):
        found = ten_percent()
        for sample in found.samples:
            if sample["subject"] == "fast":
                sample["status"] = "errors"
        assert found.values("echo/a", "fast") == {}
        assert found.ratios("echo/a", "fast") == []

    def test_disturbed_windows_do_not_count_where_enough_others_do(self):
        found = make_results({("echo/a", "ref"): [10.0] * 5, ("echo/a", "fast"): [5, 5, 5, 40, 40]})
        assert stats.median(found.ratios("echo/a", "fast")) == 2
        for sample in found.samples:
            beside_another = sample["subject"] == "fast" and sample["round"] >= 3
            sample["others"] = 0.9 if beside_another else 0.05
        assert found.ratios("echo/a", "fast") == [2.0] * 3
        assert found.values("echo/a", "fast") == {0: 5, 1: 5, 2: 5}
        assert len(found.values("echo/a", "ref")) == 5
        assert "In 2 of 10 measurements" in "".join(report.control_summary(found))
        header, rows = report.detail_table(found, "echo")
        assert [row[header.index("disturbed")] for row in rows] == ["", "2 of 5"]
        # Two samples are too few to discard the others.
        found.samples[-3]["others"] = 0.9
        assert len(found.ratios("echo/a", "fast")) == 5
        assert len(found.values("echo/a", "fast")) == 5

    def test_no_folder_of_the_machine_gets_in(self):
        text = "cannot load '/opt/some/where/lib.so' (http://127.0.0.1:80/json, a/b, /json)"
        assert scrub(text) == "cannot load 'lib.so' (http://127.0.0.1:80/json, a/b, /json)"


class TestReport:
    def test_a_win_is_marked_and_a_difference_within_the_noise_is_not(self):
        workload = {"echo/a": "cpu"}
        win, tie = ten_percent(factor=2.0), ten_percent(factor=1.05)
        assert report.cell(win, win.workload(*workload), "fast").endswith("+")
        text = report.cell(tie, tie.workload(*workload), "fast")
        assert "**1.05**" in text
        assert not text.endswith(("+", "-"))

    def test_a_loss_is_marked_and_listed(self):
        found = ten_percent("mgloop", factor=0.5)
        assert report.cell(found, found.workload("echo/a"), "mgloop").endswith("-")
        assert "Where mgloop is not ahead of ref" in report.markdown(found)
        assert report.not_ahead(found) == ["echo/a (echo/a): 0.50, noise ±10 %"]
        assert report.not_ahead(ten_percent("mgloop", factor=2)) == []

    def test_everything_left_out_is_named(self):
        found = ten_percent()
        found.missing = {"rloop": "No module named 'rloop'"}
        found.failures = ["echo/a, slow, round 1: slow died"]
        for text in (report.markdown(found), report.terminal(found), report.document(found)):
            assert "rloop is left out" in text
            assert "slow died" in text


class TestCompare:
    def test_equal_runs_show_no_regression(self):
        (change,) = compare.compare(ten_percent(), ten_percent(), "fast")
        assert not change.regression
        assert change.change == pytest.approx(1)

    def test_a_slower_loop_is_a_regression(self):
        changes = compare.compare(ten_percent(factor=2.0), ten_percent(factor=1.2), "fast")
        assert [c.regression for c in changes] == [True]
        assert "REGRESSION" in compare.table(changes)

    def test_a_change_within_the_noise_is_none(self):
        (change,) = compare.compare(ten_percent(factor=2.0), ten_percent(factor=1.9), "fast")
        assert not change.regression

    def test_a_slower_machine_is_no_regression(self):
        after = ten_percent()
        for sample in after.samples:
            sample["value"] *= 3
        assert not compare.compare(ten_percent(), after, "fast")[0].regression

    def test_a_workload_that_broke_is_a_regression(self):
        after = ten_percent()
        for sample in after.samples:
            if sample["subject"] == "fast":
                sample["status"] = "errors"
        assert compare.compare(ten_percent(), after, "fast")[0].regression

    @pytest.mark.parametrize(
        ("loop", "change", "sentence"),
        [
            ("other", {}, "no loop 'other'"),
            ("ref", {}, "reference itself"),
            ("fast", {"reference": "slow"}, "different references"),
            ("fast", {"samples": []}, "no workload in common"),
        ],
    )
    def test_results_that_cannot_be_compared(self, loop, change, sentence):
        after = ten_percent()
        for name, value in change.items():
            setattr(after, name, value)
        with pytest.raises(BenchError, match=sentence):
            compare.compare(ten_percent(), after, loop)

    def test_the_guard_between_revisions(self):
        slow = ten_percent("slow", factor=0.7)
        names = {"ref": "base", "ref#2": "base#2", "slow": "head"}
        for entry in slow.subjects:
            entry["name"] = names.get(entry["name"], entry["name"])
        for sample in slow.samples:
            sample["subject"] = names[sample["subject"]]
        slow.reference = "base"
        assert "0.700 of base's speed" in revisions.regressions(slow)["echo/a"]
        equal = copy.deepcopy(slow)
        for sample in equal.samples:
            if sample["subject"] == "head":
                sample["value"] *= 0.7
        assert revisions.regressions(equal) == {}
        broken = copy.deepcopy(slow)
        broken.samples = [s for s in broken.samples if s["subject"] != "head"]
        assert revisions.regressions(broken) == {"echo/a": "echo/a: no figure any more"}


class Quiet:
    """A replacement of stderr."""

    def isatty(self):
        return False

    def write(self, text):
        pass

    def flush(self):
        pass


class TestRunner:
    """The order of measurements and the effect of failures, with fakes that measure nothing."""

    def run(self, monkeypatch, behave, *, rounds=2, time_limit=None, names=("echo/a",)):
        monkeypatch.setattr(sys, "stderr", Quiet())
        monkeypatch.setattr(runner.Progress.__init__, "__defaults__", (Quiet(),))
        subjects = [loops.Loop(name, "") for name in ("A", "B", "C")]
        rows = [registry.Workload(name, name, "load") for name in names]
        found = make_results({}, [(name, "cpu") for name in names])
        order = []

        def measure_one(subject, row):
            order.append(f"{row.name[-1]}{subject.name}")
            yield row.name, behave(subject.name)

        items = [
            runner.Item(row.name, subjects, lambda s, r=row: measure_one(s, r), [row], 0.1)
            for row in rows
        ]
        settings = measure.Settings(rounds=rounds, time_limit=time_limit)
        saved = []
        runner.Runner(items, found, settings, lambda: saved.append(len(found.samples))).run()
        assert saved[-1] == len(found.samples)
        return order, found

    def ok(self, name):
        return {"status": "ok", "value": 1.0}

    def test_subjects_take_turns_in_alternating_order(self, monkeypatch):
        order, _ = self.run(monkeypatch, self.ok, names=("echo/a", "echo/b"))
        assert order == ["aA", "aB", "aC", "bA", "bB", "bC", "aC", "aB", "aA", "bC", "bB", "bA"]

    def test_a_server_runs_for_all_windows_of_a_round(self, monkeypatch):
        events = []

        def run(subject):
            events.append(f"start {subject.name}")
            try:
                while True:
                    events.append(subject.name)
                    yield "echo/a", {"status": "ok", "value": 1.0}
            finally:
                events.append(f"stop {subject.name}")

        monkeypatch.setattr(runner.Progress.__init__, "__defaults__", (Quiet(),))
        subjects = [loops.Loop("A", ""), loops.Loop("B", "")]
        row = registry.Workload("echo/a", "a", "load")
        found = make_results({}, [("echo/a", "cpu")])
        item = runner.Item("echo/a", subjects, run, [row], 0.1, windows=3, lasting=True)
        settings = measure.Settings(rounds=2)
        runner.Runner([item], found, settings, lambda: None).run()
        first = ["start A", "A", "start B", "B", "B", "A", "A", "B", "stop B", "stop A"]
        second = ["start B", "B", "start A", "A", "A", "B", "B", "A", "stop A", "stop B"]
        assert events == first + second
        assert sorted({s["round"] for s in found.samples}) == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("fails", "error", "order", "failures", "note"),
        [
            ("B", RunError("B died"), ["aA", "aB", "aC", "aC", "aA"],
             ["echo/a, B, window 1: B died"], "failed: echo/a, B, window 1: B died"),
            ("B", UnsupportedError("no servers"), ["aA", "aB", "aC", "aC", "aA"], [],
             "B at echo/a: no servers"),
            ("A", BenchError("port 80 is in use"), ["aA"], ["port 80 is in use"],
             "failed: port 80 is in use"),
            ("A", MissingToolError("no wrk"), ["aA"], [], "skipped: no wrk"),
        ],
        ids=["fails", "cannot", "machine cannot", "tool missing"],
    )  # fmt: skip
    def test_one_that_gives_no_figure(self, monkeypatch, fails, error, order, failures, note):
        """A failing subject is dropped; a missing resource skips the workload."""

        def behave(name):
            if name == fails:
                raise error
            return self.ok(name)

        found_order, found = self.run(monkeypatch, behave)
        assert (found_order, found.failures) == (order, failures)
        assert note in report.notes(found)

    def test_interrupt_keeps_what_was_measured(self, monkeypatch):
        def behave(name):
            if name == "C":
                raise KeyboardInterrupt
            return self.ok(name)

        _, found = self.run(monkeypatch, behave)
        assert found.interrupted
        assert [s["subject"] for s in found.samples] == ["A", "B"]

    def test_an_interrupt_whose_exception_is_lost_still_ends_the_run(self, monkeypatch):
        def behave(name):
            if name == "B":
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    pass
            return self.ok(name)

        order, found = self.run(monkeypatch, behave)
        assert order == ["aA", "aB"]
        assert found.interrupted

    def test_no_round_is_begun_that_would_pass_the_limit(self, monkeypatch):
        order, _ = self.run(monkeypatch, self.ok, rounds=5, time_limit=0)
        assert order == ["aA", "aB", "aC"]


class TestWorkloads:
    def test_names_are_unique_and_every_suite_is_there(self):
        names = [w.name for w in registry.workloads() + plan.workloads(2)]
        assert len(set(names)) == len(names)
        assert {n.partition("/")[0] for n in names} == set(registry.SUITES)

    def test_a_pattern_selects_single_ones(self):
        everything = registry.workloads()
        chosen = registry.select(everything, ["echo"], ["protocol-1k-c1"], core=True)
        assert [w.name for w in chosen] == ["echo/protocol-1k-c1"]
        chosen = registry.select(everything, ["echo"], ["protocol-1k"], core=True)
        assert [w.name for w in chosen] == ["echo/protocol-1k-c1", "echo/protocol-1k-c100"]
        chosen = registry.select(everything, ["echo"], ["echo/udp*"], core=False)
        assert [w.name for w in chosen] == ["echo/udp-1k-c50"]
        with pytest.raises(BenchError, match="no workload matches"):
            registry.select(everything, ["echo"], ["nothing"], core=False)

    def test_a_derived_row_brings_what_it_falls_out_of(self):
        for only in (["rss"], ["active50-idle10000"]):
            chosen = registry.select(registry.workloads(), ["scale"], only, core=False)
            assert {w.name for w in chosen} == {"scale/rss-per-idle", "scale/active50-idle10000"}

    def test_too_many_errors_are_errors_and_no_speed(self):
        raw = {"ops": 1000, "seconds": 1.0, "errors": {"mismatched": 2, "closed": 0},
               "client_cpu_s": 0.1, "server_cpu_s": 0.5, "server_main_cpu_s": 0.5}  # fmt: skip
        row = registry.workloads()[-1]
        sample = measure.sample_of(raw, row)
        assert sample["status"] == "errors"
        assert "value" not in sample
        assert measure.sample_of({**raw, "errors": {"closed": 1}}, row)["status"] == "ok"
        assert measure.sample_of({**raw, "ops": 0, "errors": {}}, row)["status"] == "errors"

    def test_a_busy_client_before_an_idle_server_is_client_bound(self):
        raw = {"ops": 1000, "seconds": 1.0, "errors": {}, "client_cpu_s": 0.99,
               "server_cpu_s": 0.5, "server_main_cpu_s": 0.5}  # fmt: skip
        row = registry.workloads()[-1]
        assert measure.sample_of(raw, row)["client_bound"]
        assert not measure.sample_of({**raw, "server_cpu_s": 0.99}, row)["client_bound"]

    @pytest.mark.parametrize("name", sorted(micro.WORKLOADS))
    def test_every_micro_workload_runs(self, name):
        import asyncio

        spec = micro.WORKLOADS[name]
        loop = asyncio.SelectorEventLoop()
        try:
            result = micro.sample(loop, spec, micro.operations(spec, 0.001))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        assert result["ops"] >= 1
        assert result["cpu_us"] > 0
        assert ("late_us" in result) == (name == "timer-lateness")


class TestNeighbours:
    STAT = "cpu  9 9 9 9 9 9 9 9\ncpu0 100 20 30 999 9 9 9 4 0 0\ncpu1 1 1 1 1 1 1 1 1\n"

    def test_the_time_of_a_core(self, monkeypatch):
        monkeypatch.setattr(neighbours.os, "sysconf", lambda name: 100)
        assert neighbours.busy_seconds([0], self.STAT) == 1.54
        assert neighbours.busy_seconds([0, 1], self.STAT) == 1.58

    def test_the_measurement_does_not_count_as_a_neighbour(self, monkeypatch):
        clock = iter([10.0, 12.0])
        monkeypatch.setattr(neighbours.time, "monotonic", lambda: next(clock))
        cores = iter([5.0, 8.0])
        monkeypatch.setattr(neighbours, "busy_seconds", lambda *_: next(cores))
        servers = iter([1.0, 2.9])
        monkeypatch.setattr(neighbours.processes, "cpu_seconds", lambda _: next(servers))
        monkeypatch.setattr(neighbours.time, "process_time", lambda: 0.0)
        watch = neighbours.Watch([0], [1])
        found = watch.found(100)
        # The cores worked three seconds in two, of which the server had 1.9.
        assert found == {"others": 0.55, "client_sleeps": 0.0}
        assert neighbours.disturbed(found)
        assert not neighbours.disturbed({})

    def test_a_client_that_sleeps_is_noticed(self):
        watch = neighbours.Watch([0], [])
        subprocess.run([sys.executable, "-c", "import time\nfor _ in range(20): time.sleep(0.001)"])
        assert 20 <= watch.found(1)["client_sleeps"] < 200


class TestLoops:
    def test_specs(self):
        assert loops.parse("uvloop").spec == "uvloop:new_event_loop"
        assert loops.parse("mgloop:Loop").name == "mgloop:Loop"
        two = loops.parse(f"old=mgloop@{sys.executable}")
        assert (two.name, two.spec, two.python) == (
            "old", "mgloop:new_event_loop", sys.executable,
        )  # fmt: skip
        with pytest.raises(BenchError, match="unknown loop 'nonsense'"):
            loops.parse("nonsense")
        timed = loops.parse("timed=mgloop?MGLOOP_TIMING=1")
        assert (timed.name, timed.spec) == ("timed", "mgloop:new_event_loop")
        assert timed.command({})[:2] == ["env", "MGLOOP_TIMING=1"]
        with pytest.raises(BenchError, match="no interpreter"):
            loops.parse("mgloop@/nowhere/python")

    def test_a_wrapped_loop_takes_part_where_its_transports_do(self):
        wrapped = loops.parse("aiofastnet/uvloop")
        assert wrapped.spec == "aiofastnet:loop_factory(uvloop:new_event_loop)"
        other = loops.parse(f"old=aiofastnet/mgloop@{sys.executable}")
        assert (other.name, other.python) == ("old", sys.executable)
        rows = registry.workloads()
        settings = measure.Bench(measure.Settings(), None)
        try:
            items = runner.plan(settings, rows, [wrapped, loops.parse("uvloop")], floor=True)
            alone = runner.plan(settings, rows, [wrapped], floor=True)
        finally:
            settings.close()
        suites = {i.workloads[0].suite for i in items if wrapped in i.subjects}
        assert suites == loops.TRANSPORT_SUITES
        assert {i.workloads[0].suite for i in alone} == loops.TRANSPORT_SUITES
        assert {"micro", "threads"} <= {i.workloads[0].suite for i in items}

    def test_a_loop_for_other_interpreters_says_so(self, monkeypatch):
        monkeypatch.setitem(loops.KNOWN, "absent", "absent_loop_module:new_event_loop")
        monkeypatch.setitem(loops.FOR, "absent_loop_module:new_event_loop", "CPython 9")
        _, missing = loops.available(["asyncio", "absent"])
        assert missing["absent"].endswith("(it is for CPython 9)")

    def test_a_known_loop_that_is_missing_is_named(self, monkeypatch):
        monkeypatch.setitem(loops.KNOWN, "absent", "absent_loop_module:new_event_loop")
        found, missing = loops.available(["asyncio", "absent"])
        assert [loop.name for loop in found] == ["asyncio"]
        assert "absent_loop_module" in missing["absent"]
        with pytest.raises(BenchError, match="none of the loops is installed: absent"):
            loops.available(["absent"])

    def test_the_reference(self):
        found = [loops.Loop(name, "") for name in ("asyncio", "mgloop", "uvloop")]
        assert loops.choose_reference(found).name == "uvloop"
        assert loops.choose_reference(found[:2]).name == "asyncio"
        assert loops.choose_reference(found[1:2]).name == "mgloop"
        with pytest.raises(BenchError, match="not among the loops"):
            loops.choose_reference(found, "rloop")


class TestServers:
    def test_a_server_that_is_missing_is_left_out_with_its_reason(self, monkeypatch):
        ghost = servers.Server("ghost", "ghost", ("no_such_module_anywhere",))
        here = servers.Server("here", "json", ("json",))
        monkeypatch.setattr(servers, "KNOWN", (ghost, here))
        found, missing = servers.available([], [], control=True)
        assert [(s.name, s.control_of) for s in found] == [("here", None), ("here#2", "here")]
        assert "no_such_module_anywhere" in missing["ghost"]
        with pytest.raises(BenchError, match="none of the servers is installed: ghost"):
            servers.available(["ghost"], [], control=True)
        with pytest.raises(BenchError, match="unknown server 'nonsense': use one of ghost, here"):
            servers.available(["nonsense"], [], control=True)

    def test_several_loops_take_part_where_they_are_named(self):
        alone, _missing = servers.available([], [], control=False)
        assert {server.count for server in alone} == {1}
        named = ["mgloop serve", "mgloop serve 2proc", "mgloop serve 2thr"]
        found, _missing = servers.available(named, [], control=False)
        assert [(s.name, s.options) for s in found] == [
            ("mgloop serve", []),
            ("mgloop serve 2thr", ["--threads", "2"]),
            ("mgloop serve 2proc", ["--workers", "2"]),
        ]

    def test_ratios_are_relative_to_the_first_where_uvicorn_is_not(self):
        row = next(w for w in registry.workloads() if w.suite == "asgi")
        assert row.reference == "uvicorn"
        assert served.related(row, servers.KNOWN) is row
        assert served.related(row, servers.KNOWN[1:]).reference == "mgloop serve"

    @pytest.mark.parametrize("server", sorted(serve.COMMANDS))
    def test_a_command_says_what_the_workload_wants(self, server):
        config = {"access_log": True, "cert": "c.pem", "key": "k.pem"}
        loud = " ".join(serve.COMMANDS[server](config, 80))
        quiet = " ".join(serve.COMMANDS[server]({"access_log": False}, 80))
        for text in ("c.pem", "k.pem"):
            assert text in loud
            assert text not in quiet
        assert ("--access-log" in loud.split()) == ("--no-access-log" in quiet.split())
        assert loud != quiet

    def test_the_bodies_have_the_size_that_the_titles_say(self):
        rows = {w.name: w for w in registry.workloads()}
        assert 1000 <= len(json.dumps(apps.DOCUMENT)) <= 1100
        assert 1000 <= rows["asgi/echo-c100"].client["length"] <= 1048
        assert json.loads(rows["asgi/echo-c100"].client["body"])
        assert len(registry.BROWSER) == 7

    def test_loops_and_servers_have_a_control_each(self):
        found = make_results(
            {("echo/a", "ref"): [10.0] * 4, ("echo/a", "ref#2"): [10.0] * 4,
             ("asgi/a", "srv"): [10.0] * 4, ("asgi/a", "srv#2"): [13.0] * 4},
            [("echo/a", "cpu"), ("asgi/a", "cpu")],
        )  # fmt: skip
        found.workload("asgi/a")["reference"] = "srv"
        found.subjects += [{**found.subjects[0], "name": "srv"},
                           {**found.subjects[1], "name": "srv#2", "control_of": "srv"}]  # fmt: skip
        assert (found.control_at("echo/a"), found.control_at("asgi/a")) == ("ref#2", "srv#2")
        assert found.noise("echo/a") == stats.NOISE_FLOOR
        assert found.noise("asgi/a") > 0.2
        lines = "\n".join(report.control_summary(found))
        assert "ref#2 is ref once more" in lines
        assert "srv#2 is srv once more" in lines
        assert "Outside: asgi/a (0.77)" in lines


class TestSeeds:
    def test_the_handler_compares_every_character_with_every_letter(self):
        assert payload.near(ord("e"), b"feed") == 4
        assert payload.near(ord("e"), b"cg") == 0
        assert payload.classify("/") == "0,0,0,0,0"
        assert payload.classify("/a1b-e2c_o3") == "1,3,9,11,24"
        for length in (1, 11, 101):
            assert len(payload.path_of(length)) == length

    @pytest.mark.timeout(300)  # Go compiles its whole library first
    def test_go_answers_the_same(self):
        if plan._go() is None:
            pytest.skip("no Go on this machine")
        process = subprocess.Popen([plan._go_program()], stdout=subprocess.PIPE)
        try:
            port = json.loads(process.stdout.readline())["port"]
            for length in (1, 11, 101):
                path = payload.path_of(length)
                assert measure.fetch(port, path=path).decode() == payload.classify(path)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def test_a_system_that_is_missing_is_left_out_with_its_reason(self, monkeypatch):
        system = plan.System("Ghost", "ghost", ("no_such_module_anywhere",))
        usable, reason = plan._usable(system, [sys.executable])
        assert usable is None
        assert "no_such_module_anywhere" in reason
        monkeypatch.setattr(plan, "_go", lambda: None)
        usable, reason = plan._usable(plan.System("Go", "go"), [sys.executable])
        assert usable is None
        assert "no Go compiler" in reason

    def test_the_compiled_handlers_answer_as_the_python_code(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        folder = compiled.folder_of(sys.executable)
        assert compiled.folder_of(sys.executable) == folder
        for name, expected in (("greeting", None), ("classifier", payload.classify)):
            with handled(folder, name) as port:
                for length in plan.LENGTHS:
                    path = payload.path_of(length)
                    answer = measure.fetch(port, path=path).decode()
                    if expected is None:
                        assert json.loads(answer) == payload.HELLO
                    else:
                        assert answer == expected(path)

    def test_a_wrong_answer_is_no_speed(self, monkeypatch):
        monkeypatch.setattr(measure, "fetch", lambda *a, **k: b'{"message": "Hello, World?"}')
        with pytest.raises(RunError, match="answered"):
            plan._check(plan.System("Liar", "aiohttp"), 1, "/", None)


def test_the_c_sources_compile_without_a_warning(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    for source in sorted((ROOT / "bench" / "native").glob("*.c")):
        done = support.finished(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", str(tmp_path / "out"), str(source)],
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
