# SPDX-License-Identifier: GPL-2.0-only
"""Declare CounterCore, the base class of LifecycleCore."""

from mgloop._iteration cimport IterationCore


cdef class CounterCore(IterationCore):
    pass
