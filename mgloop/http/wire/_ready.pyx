# SPDX-License-Identifier: GPL-2.0-only
"""An awaitable that is done already, and a check for broken connections.

They are native because send() uses them for each message. A site owns one Ready.
"""

from mgloop._awaitable cimport Awaitable


cdef class Ready(Awaitable):
    """An awaitable that returns None immediately: returned by a send() that need not wait."""

    cdef object step(self, bint *returned):
        returned[0] = True
        return None
