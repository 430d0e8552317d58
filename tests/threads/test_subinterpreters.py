# SPDX-License-Identifier: GPL-2.0-only
"""Subinterpreters: mgloop supports only the main interpreter, and raises an error in the others."""

import concurrent.futures
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
    assert "mgloop runs in the main interpreter only; in other interpreters use asyncio" in out


@pytest.mark.skipif(
    not hasattr(concurrent.futures, "InterpreterPoolExecutor"),
    reason="InterpreterPoolExecutor came with CPython 3.14",
)
def test_jobs_in_a_pool_of_interpreters(loop_kind):
    out, _ = support.run_python(
        loop_kind,
        """
        import math
        from concurrent.futures import InterpreterPoolExecutor

        async def main():
            loop = asyncio.get_running_loop()
            with InterpreterPoolExecutor(max_workers=2) as pool:
                jobs = [loop.run_in_executor(pool, math.factorial, i) for i in range(6)]
                print(*await asyncio.gather(*jobs))
                try:
                    await loop.run_in_executor(pool, math.sqrt, -1)
                except ValueError:
                    print("raised")

        run(main())
        """,
    )
    assert out.splitlines() == ["1 1 2 6 24 120", "raised"]
