# SPDX-License-Identifier: GPL-2.0-only
"""The lint rejects statements that crash without a traceback, and accepts all others."""

import sys
import textwrap
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_except.py"

pytest.importorskip("Cython")
sys.path.append(str(ROOT / "tools"))

import check_except  # noqa: E402


def found(body):
    """Return the first words of the findings in a function with *body*."""
    source = "def function(f, g):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return [(finding.line, finding.message.split("'")[1]) for finding in check_except.check(source)]


@pytest.mark.parametrize("jump", ["return", "return f()", "break", "continue", "yield 1"])
def test_jump_out_of_an_except_clause(jump):
    body = f"""
        while True:
            try:
                f()
            except ValueError as exc:
                {jump}
        """
    assert found(body) == [(6, jump.split()[0])]


def test_await_in_an_except_clause():
    source = "async def function(f):\n try:\n  f()\n except ValueError:\n  await f()\n"
    assert [finding.line for finding in check_except.check(source)] == [1, 5]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("f(x for x in g)", "generator expression"),
        ("def f():\n    yield 1", "yield"),
        ("def f():\n    yield from g", "yield"),
        ("async def f():\n    await g", "async def"),
        ("class C:\n    async def f(self):\n        return 1", "async def"),
    ],
)
def test_generators(source, name):
    assert [finding.message.split("'")[1] for finding in check_except.check(source)] == [name]


@pytest.mark.parametrize(
    "statement",
    [
        "if g: return",
        "for n in g:\n    return",
        "try:\n    return\nfinally:\n    g()",
        "try:\n    g()\nexcept KeyError:\n    g()\nelse:\n    return",
        "with nogil:\n    return",
    ],
)
def test_jump_deep_in_an_except_clause(statement):
    clause = textwrap.indent(statement, "    ")
    body = "try:\n    f()\nexcept BaseException:\n    g()\n" + clause
    assert [name for _, name in found(body)] == ["return"]


def test_jump_in_the_else_clause_of_a_loop():
    body = """
        while True:
            try:
                f()
            except ValueError:
                for n in g:
                    break
                else:
                    continue
        """
    assert found(body) == [(9, "continue")]


def test_every_kind_of_function():
    source = """
cdef int counted() except -1:
    try:
        f()
    except ValueError:
        return 0
    return 1

cdef class Class:
    def method(self):
        try:
            f()
        except ValueError:
            return
"""
    assert [finding.line for finding in check_except.check(source)] == [6, 14]


def test_with_on_an_object():
    assert found("with f:\n    g()") == [(2, "with")]


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    return f()\nexcept ValueError:\n    pass\nreturn g",
        "try:\n    f()\nexcept ValueError:\n    raise",
        "try:\n    f()\nexcept ValueError:\n    g()\nelse:\n    return",
        "try:\n    f()\nfinally:\n    return",
        "try:\n    f()\nexcept ValueError:\n    for n in g:\n        break",
        "try:\n    f()\nexcept ValueError:\n    while g:\n        continue",
        "try:\n    f()\nexcept ValueError:\n    g(lambda: 1)",
        "try:\n    f()\nexcept ValueError:\n    def inner():\n        return 1\n    g(inner)",
        "with nogil:\n    pass",
        "with cython.critical_section(f):\n    g()",
    ],
)
def test_accepts(body):
    assert found(body) == []


def run_tool(path):
    return support.finished([sys.executable, TOOL, path], timeout=60)


def test_command_line(tmp_path):
    bad = tmp_path / "bad.pyx"
    bad.write_text("def f(g):\n    try:\n        g()\n    except ValueError:\n        return 1\n")
    (tmp_path / "good.pxd").write_text("cdef int f(object g, bint h=*) except -1\n")
    done = run_tool(tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"{bad}:5:8: 'return' leaves an 'except' clause")


def test_mgloop_passes():
    done = run_tool(ROOT / "mgloop")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
