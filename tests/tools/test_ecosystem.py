# SPDX-License-Identifier: GPL-2.0-only
"""The runner of other projects' suites detects incomplete runs (tests/ecosystem)."""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.ecosystem import upstream  # noqa: E402

#: A test that passes, and one that ends the run.
SUITE = """
import asyncio
import pytest

def test_that_passes():
    asyncio.new_event_loop().close()

def test_that_ends_the_run():
    pytest.exit("before the last test", returncode=7)

def test_that_is_not_run():
    pass
"""


def test_a_run_that_ends_before_its_last_test_is_an_error(tmp_path):
    """Tests that did not run over asyncio's loop are not compared."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    suite = upstream.Suite(None, (*upstream.NO_CONFIGURATION, "test_suite.py"))
    with pytest.raises(upstream.SuiteError, match="ended with 7"):
        upstream._run(Path(sys.executable), tmp_path, suite, "asyncio", [])


#: A test that starts a process and does not end it.
LEAVES_A_PROCESS = """
import asyncio
import pathlib
import subprocess
import sys

def test_that_leaves_a_process():
    asyncio.new_event_loop().close()
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    left.returncode = 0     # no warning
    pathlib.Path("pid").write_text(str(left.pid))
"""


def test_a_process_that_outlives_the_run_does_not_keep_it_from_ending(tmp_path):
    (tmp_path / "test_suite.py").write_text(LEAVES_A_PROCESS)
    suite = upstream.Suite(None, (*upstream.NO_CONFIGURATION, "-s", "test_suite.py"))
    outcomes, _ = upstream._run(Path(sys.executable), tmp_path, suite, "asyncio", [])
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert [entry["outcome"] for entry in outcomes.values()] == ["passed"]
