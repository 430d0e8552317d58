# SPDX-License-Identifier: GPL-2.0-only
"""Which files --reload watches."""

import os

import pytest

from mgloop.http import Config
from mgloop.http.config import OPTIONS, RELOAD_EXCLUDES, RELOAD_INCLUDES
from mgloop.http.process.reloading import _Patterns

FILES = {
    *("main.py", "main.pyc", ".hidden.py", "page.html", "tests/test_a.py", "tests/deep/b.py"),
    *("src/tests/c.py", "__pycache__/d.py", "templates/e.html", ".env", "src/.env", ".git/.env"),
}
DEFAULT = {"main.py", "tests/test_a.py", "tests/deep/b.py", "src/tests/c.py"}
TESTS = {"tests/test_a.py", "tests/deep/b.py"}


@pytest.mark.parametrize(
    ("includes", "excludes", "watched"),
    [
        ([], [], DEFAULT),
        (["*.html"], [], DEFAULT | {"page.html", "templates/e.html"}),
        (["templates/*.html"], [], DEFAULT | {"templates/e.html"}),
        (["./*.html"], [], DEFAULT | {"page.html"}),
        ([".env"], [], DEFAULT | {".env", "src/.env"}),
        (["./.env"], [], DEFAULT | {".env"}),
        ([".env"], ["src/*"], (DEFAULT | {".env"}) - {"src/tests/c.py"}),
        ([".env"], [".env"], DEFAULT),
        ([".*"], [], DEFAULT | {".hidden.py", ".env", "src/.env", ".git/.env"}),
        (["*.html"], ["*.py"], {"page.html", "templates/e.html"}),
        ([], ["tests"], {"main.py"}),
        ([], ["tests/"], {"main.py"}),
        ([], ["tests/*"], {"main.py"}),
        ([], ["tests/test_*"], DEFAULT - {"tests/test_a.py"}),
        ([], ["./tests"], DEFAULT - TESTS),
        ([], ["{here}/tests"], DEFAULT - TESTS),
        ([], ["{here}/tests/*"], DEFAULT - TESTS),
        ([], ["src/tests"], DEFAULT - {"src/tests/c.py"}),
        ([""], ["", "."], DEFAULT),
    ],
)
def test_given_patterns_are_added_to_the_defaults(
    tmp_path, monkeypatch, includes, excludes, watched
):
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    excludes = [pattern.format(here=here) for pattern in excludes]
    patterns = _Patterns(Config(app="main:app", reload_includes=includes, reload_excludes=excludes))
    assert {name for name in FILES if patterns.want([here], os.path.join(here, name))} == watched


@pytest.mark.parametrize(
    ("option", "known"),
    [("reload_includes", RELOAD_INCLUDES), ("reload_excludes", RELOAD_EXCLUDES)],
)
def test_help_names_what_is_known(option, known):
    told = " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
    assert f"in addition to {told};" in OPTIONS[option].help
