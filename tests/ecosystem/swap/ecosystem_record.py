# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: appends the outcome of every test to the file ECOSYSTEM_RECORD, a JSON line each.

Loaded by ``-p ecosystem_record`` in the project's own pytest run. With xdist only the controlling
process writes, because it gets every report. A line is written when its test has ended, so that a
crash loses no earlier outcome. With ECOSYSTEM_ONLY, a file of test ids, no other test is run.
"""

import json
import os

_outcomes: dict[str, dict] = {}


def pytest_runtest_logreport(report) -> None:
    """Keep the worst outcome of the three phases of a test."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    entry = _outcomes.setdefault(report.nodeid, {"outcome": "", "text": "", "seconds": 0.0})
    entry["seconds"] += report.duration
    if report.outcome == "failed":
        entry["outcome"] = "failed"
        entry["text"] += f"[{report.when}] {report.longreprtext}\n"
    elif report.outcome == "skipped" and not entry["outcome"]:
        entry["outcome"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
    elif report.when == "call" and not entry["outcome"]:
        entry["outcome"] = "passed"


def pytest_runtest_logfinish(nodeid) -> None:
    """Write the outcome of the test."""
    if nodeid in _outcomes:
        _write(nodeid, _outcomes[nodeid])


def pytest_collectreport(report) -> None:
    """Record a file that cannot be collected as a failure."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        _write(
            f"collect {report.nodeid}",
            {"outcome": "failed", "text": report.longreprtext, "seconds": 0.0},
        )


def pytest_collection_modifyitems(config, items) -> None:
    """Keep the requested tests."""
    if only := os.environ.get("ECOSYSTEM_ONLY"):
        with open(only) as file:
            wanted = set(json.load(file))
        dropped = [item for item in items if item.nodeid not in wanted]
        items[:] = [item for item in items if item.nodeid in wanted]
        config.hook.pytest_deselected(items=dropped)


def _write(nodeid: str, entry: dict) -> None:
    with open(os.environ["ECOSYSTEM_RECORD"], "a") as file:
        file.write(json.dumps({"id": nodeid, **entry}) + "\n")
