# SPDX-License-Identifier: GPL-2.0-only
"""The errors that a user of the benchmarks can cause or meet, each one clear sentence."""

import re

# A folder in a message: what is kept of it is its last name.
_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[\w.+~-]+/)+")


def scrub(text: str) -> str:
    """*text* without the folders of this machine: results files are published."""
    return _FOLDERS.sub("", text)


class BenchError(Exception):
    """Ends the command with its text on stderr and exit status 2; what was measured is kept."""


class MissingToolError(BenchError):
    """A program is not installed: what needs it is left out with this sentence, and no failure."""


class UnsupportedError(Exception):
    """The loop says that it cannot do this workload; its text is printed in the table's notes."""


class RunError(Exception):
    """One measurement failed: a server died or hung, a client did not end. The run goes on."""
