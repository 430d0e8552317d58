# SPDX-License-Identifier: GPL-2.0-only
# cython: always_allow_keywords=False
# _loop.pyx explains the directive.
"""Override methods of asyncio.BaseEventLoop that run per callback, future, task or generator.

The overrides are native because of the number of their calls, or because they access the native
queues. HookCore owns no state. The loop's thread calls the methods, except those that asyncio
allows in any thread: get_debug(), is_running(), is_closed() and _write_to_self().
"""

from cpython.object cimport PyObject

from mgloop._entries cimport is_handle
from mgloop._lifecycle cimport LifecycleCore
from mgloop._loop cimport queue

from . import _stdlib


cdef object asyncgen_begins = _stdlib.asyncgen_begins


cdef class HookCore(LifecycleCore):
    """Add to LifecycleCore the native overrides of BaseEventLoop's small methods."""

    def get_debug(self):
        """Return whether the loop is in debug mode."""
        return self._debug

    # Native because each task that starts eagerly calls it.
    def is_running(self):
        """Return whether the loop is running."""
        return self._thread_id is not None

    def is_closed(self):
        """Return whether the loop was closed."""
        return self._closed

    # Native because anyio calls it for each task group.
    def get_task_factory(self):
        """Return the task factory, or None for the default."""
        return self._task_factory

    # Native because Python calls it for each asynchronous generator. One httpx request has nine.
    def _asyncgen_firstiter_hook(self, agen):
        if self._asyncgens_shutdown_called:
            asyncgen_begins(self, agen)     # warns
        else:
            self._asyncgens.add(agen)

    def _add_callback(self, handle):
        if not handle._cancelled:
            if not is_handle(<PyObject *>handle):
                # It is asyncio's own Handle, which inherited code has made.
                handle = self.make_handle(_stdlib.run_handle, (handle,), None)
            queue(self, <PyObject *>handle)

    def _add_callback_signalsafe(self, handle):
        self._add_callback(handle)
        self._write_to_self()

    def _write_to_self(self):
        self.wake()

    def create_future(self):
        """Return a new Future that is attached to this loop."""
        return self.new_future()

    @property
    def _wakeup_enabled(self):
        return self.wakeup_enabled
