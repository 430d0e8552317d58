# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: appends the outcome of every test to the file ECOSYSTEM_RECORD, a JSON line each.

Loaded by ``-p ecosystem_record`` in the project's own pytest run. With xdist only the controlling
process writes, for it is told of every report.
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


def pytest_collectreport(report) -> None:
    """A file that cannot be collected is a failure of its own."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        _outcomes[f"collect {report.nodeid}"] = {
            "outcome": "failed",
            "text": report.longreprtext,
            "seconds": 0.0,
        }


def pytest_sessionfinish() -> None:
    """Write what was kept."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    with open(os.environ["ECOSYSTEM_RECORD"], "w") as file:
        for nodeid, entry in _outcomes.items():
            file.write(json.dumps({"id": nodeid, **entry}) + "\n")
