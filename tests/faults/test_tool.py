# SPDX-License-Identifier: GPL-2.0-only
"""The fault injection itself: it observes a program, and ranks the outcomes."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.faults import __main__ as command_line  # noqa: E402
from tests.faults import matrix, outcome, programs, report  # noqa: E402

PROGRAM = programs.PROGRAMS["threads"]
QUIET = Counter(recv=50, epoll_wait=50)


def judge(program=PROGRAM, **changes):
    run = {
        "subject": {"how": "returned", "errors": [], "lost": [], "reached": program.goals},
        "peer": None,
        "killed": False,
        "signal": 0,
        "counts": QUIET,
        "injected": 1,
        "output": "",
    }
    for name, change in changes.items():
        run[name] = run[name] | change if isinstance(run[name], dict) else change
    return outcome.judge(run, program, QUIET)


class TestJudgement:
    @pytest.mark.parametrize(
        ("word", "changes"),
        [
            ("ok", {}),
            ("noted", {"subject": {"errors": ["E"]}}),
            ("refused", {"subject": {"how": "refused", "errors": ["E"], "reached": 0}}),
            ("error", {"subject": {"how": "raised", "errors": ["E"], "reached": 0}}),
            ("error", {"subject": {"errors": ["E"], "lost": ["some"]}}),
            ("stuck", {"subject": {"how": "deadline", "errors": ["E"], "reached": 0}}),
            ("hung", {"subject": {"how": "deadline", "reached": 0}}),
            ("hung", {"killed": True, "subject": {"how": "gone", "reached": 0}}),
            ("lost", {"subject": {"lost": ["some"], "reached": 0}}),
            ("lost", {"subject": {"lost": ["late"]}}),
            ("lost", {"subject": {"reached": 0}}),
            ("spun", {"counts": Counter(epoll_wait=5000)}),
            ("crashed", {"signal": 11, "subject": {"how": "gone", "reached": 0}}),
        ],
    )
    def test_word(self, word, changes):
        assert judge(**changes).word == word

    def test_peer_decides(self):
        program = programs.PROGRAMS["tcp_server"]
        peer = {"errors": [], "lost": [], "reached": program.goals}
        ended = {"how": "peer done", "reached": 0}
        assert judge(program, subject=ended, peer=peer).word == "ok"
        assert judge(program, subject=ended, peer=peer | {"reached": 1}).word == "lost"
        assert judge(program, subject=ended, peer=None).word == "hung"

    def test_worse(self):
        ok, noted = judge(), judge(subject={"errors": ["E"]})
        error = judge(subject={"errors": ["E"], "reached": 0})
        lost = judge(subject={"reached": 0})
        spun = judge(counts=Counter(epoll_wait=5000))
        crashed = judge(signal=11)
        assert not noted.is_worse_than(ok)
        assert error.is_worse_than(noted)
        assert lost.is_worse_than(error)
        assert spun.is_worse_than(lost)
        assert lost.is_worse_than(spun)
        assert crashed.is_worse_than(spun)
        assert outcome.worst((ok, lost, spun)).end == "lost"
        assert outcome.worst((ok, lost, spun)).spun
        assert not lost.is_worse_than(outcome.worst((ok, lost, spun)))


class TestMatrix:
    def test_cells_have_names_of_their_own(self):
        names = [str(cell) for cell in matrix.cells(list(programs.PROGRAMS))]
        assert len(set(names)) == len(names)

    def test_quick_cells_exist(self):
        cells = matrix.cells(list(programs.PROGRAMS))
        kinds = {(cell.call, cell.error, cell.often) for cell in cells}
        assert kinds >= matrix.QUICK

    def test_table(self):
        cell = matrix.Cell("threads", "recv", "ENOMEM", "first", "1")
        results = {cell: (judge(injected=0), judge(signal=11))}
        assert "ok· / crashed" in report.text(results)
        assert "| threads | ENOMEM | **ok· / crashed** |" in report.markdown(results)
        assert report.worse(results) == [cell]


def run_tool(*arguments, **environment):
    return support.finished(
        [sys.executable, "-m", "tests.faults", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        timeout=50,
    )


class TestCommandLine:
    def test_list(self):
        done = run_tool("--list", "--only", "udp/recv")
        assert done.returncode == 0
        assert "udp/recv/ENOMEM/tenth" in done.stdout.splitlines()

    def test_without_strace(self, tmp_path):
        done = run_tool("--quick", PATH=str(tmp_path))
        assert done.returncode == 0
        assert done.stdout.splitlines() == [
            "No faults without strace: install the package of that name."
        ]

    def test_a_fault_is_injected_and_survived(self, tmp_path):
        try:
            command_line.require_strace()
        except command_line.RefusedError as exc:
            pytest.skip(str(exc))
        table = tmp_path / "table.md"
        done = run_tool("--only", "timers/epoll_wait/EINTR/first", "--markdown", str(table))
        if "without ptrace" in done.stdout:
            pytest.skip(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "| timers | EINTR | ok / ok |" in table.read_text()
