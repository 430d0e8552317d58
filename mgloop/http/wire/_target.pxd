# SPDX-License-Identifier: GPL-2.0-only
"""Declare Target, the parts of a request's target; _target.pyx explains the forms of a target."""


# The parts of a target. The pointers point into the target.
cdef struct Target:
    const char *path        # still percent-encoded
    Py_ssize_t path_len     # never 0
    const char *query       # after the "?"; NULL if there is no "?"
    Py_ssize_t query_len
    const char *host        # of a target in absolute form, which replaces the Host header, or NULL
    Py_ssize_t host_len


# Store the parts of the target of a request with this method. Return None, or the reason if the
# target is invalid.
cdef str split_target(bytes raw, str method, Target *target)

# Return `n` bytes of a path with their percent-encoding decoded. `latin_1`: one character for each
# byte, as in WSGI. Otherwise the bytes are UTF-8, and invalid ones become U+FFFD.
cdef str decode_path(const char *path, Py_ssize_t n, bint latin_1)
