# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._schedule: a step in the loop's inheritance, with nothing to call from C."""

from mgloop._loop cimport LoopCore


cdef class ScheduleCore(LoopCore):
    pass
