# SPDX-License-Identifier: GPL-2.0-only
"""Short runs of all parts of tests/http/soaks, which `make serve-soak` runs in full."""

import pathlib
import shutil
import sys

import pytest
import support

SOAKS = pathlib.Path(__file__).with_name("soaks")


@pytest.mark.slow
@pytest.mark.mgloop_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["slow", "trickle", "rolling", "memory", "mixed", "wsgi"])
def test_soak(part):
    if part == "slow" and shutil.which("slowhttptest") is None:
        pytest.skip("there is no slowhttptest here")
    done = support.finished([sys.executable, SOAKS, part, "--quick"], timeout=280)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
