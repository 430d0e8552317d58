# SPDX-License-Identifier: GPL-2.0-only
"""Declare patched_run(), which the loop calls when it begins to run and before each wait."""


# Return the function that replaces asyncio's Handle._run(), or None if it is the original.
cdef object patched_run()
