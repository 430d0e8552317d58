# SPDX-License-Identifier: GPL-2.0-only
"""Declare LifecycleCore, the base class of HookCore."""

from mgloop._counters cimport CounterCore


cdef class LifecycleCore(CounterCore):
    cdef int cache_keywords(self) except -1
