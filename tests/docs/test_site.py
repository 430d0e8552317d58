# SPDX-License-Identifier: GPL-2.0-only
"""The site that `make docs` makes fetches nothing from other sites, and has every page."""

import importlib.util
import re
import subprocess
import sys

import pytest
import support
from markdown_pages import ROOT

sys.path.append(str(ROOT))

from bench import figures

CHECK = ROOT / "tools" / "site" / "check.py"


@pytest.fixture
def external(monkeypatch):
    monkeypatch.syspath_prepend(CHECK.parent)
    return importlib.import_module("check").external


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<link rel="stylesheet" href="https://elsewhere.test/a.css">'),
        ("a.html", '<link rel="preconnect" href="//elsewhere.test">'),
        ("a.html", '<script src="https://elsewhere.test/a.js"></script>'),
        ("a.html", '<img alt="" src="http://elsewhere.test/a.png">'),
        ("a.html", '<p style="background: url(https://elsewhere.test/a.png)">'),
        ("a.html", "<style>@font-face { src: url('https://elsewhere.test/a.woff') }</style>"),
        ("a.html", '<pre class="mermaid">graph</pre>'),
        ("a.css", '@import "https://elsewhere.test/a.css";'),
        ("a.svg", '<svg><image xlink:href="https://elsewhere.test/a.png"/></svg>'),
    ],
)
def test_resources_of_other_hosts_are_found(external, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert len(external(tmp_path)) == 1


def test_links_and_local_files_are_not_found(external, tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="https://elsewhere.test/">there</a> <img alt="" src="b.png">'
        '<link rel="canonical" href="https://elsewhere.test/"> <script src="a.js"></script>'
    )
    assert external(tmp_path) == []


def test_an_empty_folder_is_no_site(tmp_path):
    done = subprocess.run([sys.executable, CHECK, tmp_path], check=False)
    assert done.returncode == 1


def test_the_figures_of_the_readme_are_those_of_the_results():
    found = figures.MARKS.search((ROOT / "README.md").read_text())
    assert found, "README has no place for figures"
    inside = found[0].removeprefix(found[1]).removesuffix(found[2])
    assert inside == figures.text(), "python -m bench.figures --write puts the last ones there"


def test_the_first_screen_has_the_figure_of_the_server():
    measured = re.search(r"`mgloop serve` \| \*\*([\d.]+)\*\*", figures.text())[1]
    assert f"({measured} times the requests per CPU second)" in (ROOT / "README.md").read_text()


def test_the_theme_loads_no_fonts():
    assert re.search(r"^  font: false$", (ROOT / "mkdocs.yml").read_text(), re.M)


def test_the_nav_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"([\w/.-]+\.md)$", text, re.M))
    folder = ROOT / "docs"
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")}
    assert {name for name in listed if not name.startswith("repository/")} == pages


def test_the_site_can_be_made(external, tmp_path):
    """Strict mode: a broken link or anchor is an error."""
    for module in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("the dependency group docs is not installed: make docs is the test")
    done = support.finished(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path], cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert external(tmp_path) == []
    landing = (tmp_path / "index.html").read_text()
    assert "version 2 only" in landing
    assert "<table>" in landing, "README's figures are not on the landing page"
    assert "mgloop.http.Server" in (tmp_path / "reference" / "http.html").read_text()
