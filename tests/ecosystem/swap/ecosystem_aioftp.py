# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: extends the timeout of aioftp's fixtures from one second to 30.

Its conftest imports ``async_timeout.timeout`` and gives each test one second, which is too short
for some tests on a loaded machine.
"""

import async_timeout

_timeout = async_timeout.timeout


def _extended(seconds):
    return _timeout(30 * seconds)


async_timeout.timeout = _extended
