# SPDX-License-Identifier: GPL-2.0-only
"""tools/prose.py finds the lines of prose in each kind of file, and keeps to its budgets."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")


def load(path):
    """Import a file of the repository that is not in a package."""
    name = Path(path).stem.replace("-", "_")
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prose():
    return load("tools/prose.py")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.md", "one two\n```\nthree four\n```\nfive six\n", ["one two", "five six"]),
        ("a.c", "/* one two\n * three */\nint four, five;\n", ["/* one two", " * three */"]),
        ("a.py", 'x = 1  # one two\n"""three four\nfive six"""\ny = 2\n',
         ["one two", '"""three four', 'five six"""']),
        ("a.pyx", "#: one two\ncdef int three\n", ["one two"]),
        ("a.py", "# SPDX-License-Identifier: GPL-2.0-only\n# word\n", []),
    ],
)  # fmt: skip
def test_lines_of_prose(prose, path, text, expected):
    assert [line for _, line in prose.prose(path, text)] == expected


def test_flagged(prose):
    assert prose.flagged("The thread who posts it is told.") is not None
    assert prose.flagged("The thread that posts it is notified.") is None


@needs_git
def test_kinds(prose):
    kinds = {prose.kind_of(path) for path in prose.git("ls-files").splitlines()}
    assert kinds - {None} == set(prose.BUDGETS)
    assert prose.kind_of("CHANGELOG.md") == "CHANGELOG"
    assert prose.kind_of("mgloop/_loop.pyx") == "mgloop, Cython"


@needs_git
def test_a_share_above_its_budget_fails(prose, monkeypatch, capsys):
    assert prose.check() == 0
    too_low = {kind: (form, -1.0) for kind, (form, _) in prose.BUDGETS.items()}
    monkeypatch.setattr(prose, "BUDGETS", too_low)
    assert prose.check() == 1
    assert capsys.readouterr().out.count("exceeds its budget") == len(too_low)


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        ("stream: flush deferred writes before the wait", True),
        ("http, tls: close idle connections\n\nBecause they are idle.\n", True),
        ("Merge branch 'main' of somewhere", True),
        ("stream: " + "x" * 70, False),
        ("Flush deferred writes", False),
        ("stream: one\nno empty line", False),
        ("", False),
    ],
)
def test_commit_messages(message, accepted):
    hook = load("tools/hooks/commit-msg")
    assert (hook.fault(message) is None) == accepted
