# SPDX-License-Identifier: GPL-2.0-only
"""CPython's own asyncio tests, run over another event loop.

``python -m tests.conformance`` takes ``test.test_asyncio`` of the *running* interpreter and
replaces the loop by the loop under test wherever those tests make a loop (``binding``). It runs
every test in a separate process (``worker``), so that a hang, a crash or a leaked thread is one
line of the report and does not end the run. The same run over the standard library's loop is the
control: a test that also fails there reveals a problem of the machine, not of the loop.

No code of CPython is copied: the tests are imported from the running interpreter.
"""
