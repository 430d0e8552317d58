# SPDX-License-Identifier: GPL-2.0-only
"""Declare ScheduleCore, the base class of FdCore. It adds no native methods to HookCore's."""

from mgloop._hooks cimport HookCore


cdef class ScheduleCore(HookCore):
    pass
