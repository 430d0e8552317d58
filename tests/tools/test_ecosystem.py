# SPDX-License-Identifier: GPL-2.0-only
"""The runner of other projects' suites: incomplete runs, and pinned releases (tests/ecosystem)."""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.ecosystem import pins, upstream  # noqa: E402

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


# --- pins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(pins.REQUIREMENTS.glob("*.in")), ids=lambda path: path.stem)
def test_each_release_has_hashes(path):
    lines = [line for line in pins.requirements(path.stem).splitlines() if line[0] != "#"]
    releases = [number for number, line in enumerate(lines) if "==" in line]
    assert releases
    for number in releases:
        assert lines[number + 1].startswith("    --hash=sha256:"), lines[number]


def test_source_distributions_have_hashes_of_their_release():
    known = (pins.REQUIREMENTS / pins.HASHES).read_text().splitlines()
    entries = pins.lines_of((pins.REQUIREMENTS / "sdists.txt").read_text())
    for release, digest in (line.split(" --hash=") for line in entries if line[0] != "#"):
        assert f"{release.strip()} {digest.strip()}" in known


def test_hashes_are_moved_to_one_file(tmp_path):
    one, other, third = (f"sha256:{digit * 64}" for digit in "123")
    (tmp_path / "a.txt").write_text(
        f"# by uv\nx==1 ; sys_platform == 'win32' \\\n    --hash={one} \\\n    --hash={other}\n"
    )
    (tmp_path / "b.txt").write_text(f"x==2 \\\n    --hash={third}\n")
    (tmp_path / "sdists.txt").write_text("untouched")
    pins.move_hashes(tmp_path)
    assert (tmp_path / "a.txt").read_text().splitlines()[1:] == ["x==1 ; sys_platform == 'win32'"]
    hashes = [f"x==1 {one}", f"x==1 {other}", f"x==2 {third}"]
    assert (tmp_path / pins.HASHES).read_text().splitlines()[1:] == hashes
    composed = pins.requirements("a", tmp_path).splitlines()[1:]
    assert composed == [
        "x==1 ; sys_platform == 'win32' \\", f"    --hash={one} \\", f"    --hash={other}",
    ]  # fmt: skip
    (tmp_path / "b.txt").unlink()
    pins.move_hashes(tmp_path)
    assert (tmp_path / pins.HASHES).read_text().splitlines()[1:] == hashes[:2]
    assert (tmp_path / "sdists.txt").read_text() == "untouched"
