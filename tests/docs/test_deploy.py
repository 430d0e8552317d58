# SPDX-License-Identifier: GPL-2.0-only
"""examples/deploy: systemd accepts the units, and the Containerfile names existing files.

The deployments themselves were tried by hand, as the pages describe.
"""

import re
import shutil
import sys

import pytest
import support
from markdown_pages import ROOT
from test_commands import check_mgloop

FOLDER = ROOT / "examples" / "deploy"


def test_systemd_takes_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    for path in FOLDER.glob("hello.*"):
        # The user and the folders of the server do not exist here.
        text = re.sub(r"^(ExecStart=)\S+", rf"\g<1>{sys.executable}", path.read_text(), flags=re.M)
        text = re.sub(r"^(User|WorkingDirectory)=.*\n", "", text, flags=re.M)
        (tmp_path / path.name).write_text(text)
    done = support.finished(
        ["systemd-analyze", "verify", "--man=no", "hello.service", "hello.socket"], cwd=tmp_path
    )
    ours = [line for line in done.stderr.splitlines() if "hello" in line]
    assert not ours, ours


def test_the_command_of_the_unit():
    unit = (FOLDER / "hello.service").read_text()
    check_mgloop(re.search(r"^ExecStart=\S+/bin/mgloop (.+)$", unit, re.M)[1].split())


def test_the_containerfile():
    text = (FOLDER / "Containerfile").read_text()
    assert re.search(r"^FROM python:3\.1[1-4]-slim$", text, re.M)
    assert 'CMD ["mgloop", "serve", "hello:app"]' in text
    for name in re.findall(r"MGLOOP_SERVE_(\w+)=", text):
        check_mgloop(["serve", "hello:app", f"--{name.lower().replace('_', '-')}", "1"])


def test_the_systemd_page_copies_what_the_unit_serves():
    """Each file that the commands of the page copy exists, including the application."""
    text = (ROOT / "docs" / "howto" / "systemd.md").read_text()
    copied = re.findall(r"mgloop/(examples/\S+)", "\n".join(re.findall(r"^cp .*", text, re.M)))
    assert all((ROOT / name).is_file() for name in copied)
    assert {"examples/deploy/hello.service", "examples/deploy/hello.socket"} < set(copied)
    assert re.search(r"^cp \S+ /srv/hello/hello\.py$", text, re.M)
