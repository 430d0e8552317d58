# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin: makes tests of aiortc's peer connections wait for the state that they assert.

They wait until ICE is completed, and expect that DTLS is connected as well when they close the
connection. That depends on the load of the machine.
"""

#: Seconds.
_TIME_LIMIT = 30


def _until_connected(assert_ice_completed):
    async def assert_completed(self, pc1, pc2):
        await assert_ice_completed(self, pc1, pc2)
        await self.sleepWhile(
            lambda: "connecting" in (pc1.connectionState, pc2.connectionState), _TIME_LIMIT
        )

    return assert_completed


def pytest_collection_modifyitems(items) -> None:
    """Extend the waits of the test classes that make peer connections."""
    for test_class in {item.cls for item in items}:
        if hasattr(test_class, "assertIceCompleted"):
            test_class.sleepWhile.__defaults__ = (_TIME_LIMIT,)
            test_class.assertIceCompleted = _until_connected(test_class.assertIceCompleted)
