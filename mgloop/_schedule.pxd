# SPDX-License-Identifier: GPL-2.0-only
"""Declare ScheduleCore, a base class of FdCore. It adds no native methods to LoopCore's."""

from mgloop._loop cimport LoopCore


cdef class ScheduleCore(LoopCore):
    pass
