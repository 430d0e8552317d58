# SPDX-License-Identifier: GPL-2.0-only
"""CPython's own asyncio tests, run over another event loop.

``python -m tests.conformance`` takes ``test.test_asyncio`` of the *running* interpreter, swaps the
loop under test in wherever those tests make a loop (``binding``), and runs every test in a process
of its own (``runner``), so that a hang, a crash or a leaked thread is one line of the report
and not the end of it.  The same run over the standard library's loop is the control: what fails
there too says something about the machine, not about the loop.

No code of CPython is copied: the tests are imported from the interpreter that runs this.
"""
