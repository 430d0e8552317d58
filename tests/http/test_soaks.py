# SPDX-License-Identifier: GPL-2.0-only
"""Short runs of all parts of tests/http/soaks, which `make serve-soak` runs in full."""

import pathlib
import shutil
import subprocess
import sys

import pytest

SOAKS = pathlib.Path(__file__).with_name("soaks")


@pytest.mark.slow
@pytest.mark.mgloop_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["slow", "rolling", "memory", "mixed"])
def test_soak(part):
    if part == "slow" and shutil.which("slowhttptest") is None:
        pytest.skip("there is no slowhttptest here")
    done = subprocess.run(
        [sys.executable, SOAKS, part, "--quick"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
