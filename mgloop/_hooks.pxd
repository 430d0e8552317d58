# SPDX-License-Identifier: GPL-2.0-only
"""Declare HookCore, the base class of ScheduleCore. It adds no native methods."""

from mgloop._lifecycle cimport LifecycleCore


cdef class HookCore(LifecycleCore):
    pass
