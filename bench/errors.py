# SPDX-License-Identifier: GPL-2.0-only
"""The errors that a user of the benchmarks can cause or meet, each with one clear sentence."""

import re

# The folders of a path in a message; only the last component of the path is kept.
_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[\w.+~-]+/)+")


def scrub(text: str) -> str:
    """Return *text* without the folders of this machine, because results files are published."""
    return _FOLDERS.sub("", text)


class BenchError(Exception):
    """Ends the command with its text on stderr and exit status 2; earlier measurements are kept."""


class MissingToolError(BenchError):
    """A program is not installed: its workloads are skipped with this sentence, without failure."""


class UnsupportedError(Exception):
    """The loop does not support this workload; the text is printed in the table's notes."""


class RunError(Exception):
    """One measurement failed: a server died or hung, or a client did not end. The run continues."""
