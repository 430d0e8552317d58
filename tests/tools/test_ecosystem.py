# SPDX-License-Identifier: GPL-2.0-only
"""The runner of other projects' suites detects incomplete runs (tests/ecosystem)."""

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
