# SPDX-License-Identifier: GPL-2.0-only
"""Declare Target, the parts of a request's target; _target.pyx explains the forms of a target."""

from mgloop.http.wire._parser cimport HeadParser


# The parts of a target. The pointers point into `head.target`.
cdef struct Target:
    const char *path        # still percent-encoded
    Py_ssize_t path_len     # never 0
    const char *query       # after the "?"; NULL if there is no "?"
    Py_ssize_t query_len


# Store the parts of the target of the head in `target`. Return False after head.reject().
cdef bint split_target(HeadParser head, Target *target) except -1
