# SPDX-License-Identifier: GPL-2.0-only
"""Subinterpreters: mgloop supports only the main interpreter, and raises an error in the others."""

import sys

import pytest
import support

PREAMBLE = """
import datetime     # CPython 3.12.1 crashes in the main interpreter if another one was first

try:
    import _interpreters as interpreters        # since 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

def run(interpreter, code):
    '''Return the printed text of an exception, or None.'''
    try:
        failure = interpreters.run_string(interpreter, code)
    except Exception as exc:
        return str(exc)
    return None if failure is None else failure.msg
"""


@pytest.mark.mgloop_only
@pytest.mark.skipif(sys.version_info < (3, 12), reason="run_string() came with CPython 3.12")
@pytest.mark.parametrize("first", ["the main interpreter", "another"])
def test_another_interpreter_gets_an_import_error(loop_kind, first):
    """The main interpreter continues, whichever was first."""
    out, _ = support.run_python(
        "asyncio",
        PREAMBLE
        + f"""
def in_main():
    import mgloop
    assert mgloop.run(asyncio.sleep(0, 5)) == 5

other = interpreters.create()
if {first!r} == "the main interpreter":
    in_main()
print(run(other, "import mgloop"))
in_main()
interpreters.destroy(other)
""",
    )
    assert "does not support loading in subinterpreters" in out
