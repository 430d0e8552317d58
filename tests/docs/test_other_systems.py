# SPDX-License-Identifier: GPL-2.0-only
"""The README's advice for a project that is also developed where mgloop does not run."""

import sys
import tomllib
from pathlib import Path

import pytest
import support
from markdown_pages import ROOT, blocks

pytestmark = pytest.mark.mgloop_only


@pytest.fixture
def readme():
    """Return the README's blocks that are written for such a project, by language."""
    found = {}
    for block in blocks(ROOT / "README.md"):
        if block.language == "toml" or block.name == "start.py":
            found[block.language] = block.text
    return found


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_requirement_applies_to_linux_only(readme, platform):
    requirements = pytest.importorskip("packaging.requirements")
    (text,) = tomllib.loads(readme["toml"])["dependencies"]
    requirement = requirements.Requirement(text)
    assert requirement.name == "mgloop"
    assert requirement.marker.evaluate({"sys_platform": platform}) == (platform == "linux")


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_code_runs_with_and_without_mgloop(readme, tmp_path, platform):
    Path(tmp_path, "start.py").write_text(readme["python"])
    program = (
        "import asyncio, runpy, sys\n"
        "asyncio.new_event_loop().close()\n"  # 3.15 chooses its class by the platform, once
        f"sys.platform = {platform!r}\n"
        "if sys.platform != 'linux': sys.modules['mgloop'] = None\n"
        "runpy.run_path('start.py')\n"
        "print(bool(sys.modules.get('mgloop')))\n"
    )
    done = support.finished([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert done.stdout == f"done\n{platform == 'linux'}\n"
