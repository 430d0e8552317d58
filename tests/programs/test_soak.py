# SPDX-License-Identifier: GPL-2.0-only
"""Run soak.py for a few seconds, or for MGLOOP_SOAK_SECONDS (a full soak takes 180)."""

import os
import pathlib
import sys

import peers
import pytest
import support

SECONDS = float(os.environ.get("MGLOOP_SOAK_SECONDS", "6"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_soak(loop_kind):
    peers.skip_if_failing_callbacks_leak(loop_kind)
    done = support.finished(
        [
            sys.executable,
            pathlib.Path(__file__).with_name("soak.py"),
            "--loop",
            loop_kind,
            "--seconds",
            str(SECONDS),
        ],
        timeout=SECONDS + 90,
    )
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
