# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: makes asyncio's reactor the default one, as ``trial --reactor asyncio`` does.

It must be installed before any module imports ``twisted.internet.reactor``. The package is the one
of the sources, in whose folder pytest starts: the ids of tests outside that folder name no file.
The suite's timeouts are extended: some give five seconds to an interpreter that starts, which also
imports the loop here.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path("src").resolve()))

from twisted.internet import asyncioreactor
from twisted.trial import unittest

asyncioreactor.install()

_get_timeout = unittest.TestCase.getTimeout


def _extended(self):
    return 10 * _get_timeout(self)


unittest.TestCase.getTimeout = _extended
