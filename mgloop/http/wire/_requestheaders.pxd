# SPDX-License-Identifier: GPL-2.0-only
"""Declare the table of frequent request headers, and the interface that receives the headers.

_requestheaders.pyx explains both.
"""

from cpython.object cimport PyObject


# The headers that change the meaning of a head for the parser.
cdef enum:
    HEADER_PLAIN                # all others
    HEADER_HOST
    HEADER_CONTENT_TYPE
    HEADER_FORWARDED            # Forwarded, X-Forwarded-For and X-Forwarded-Proto
    HEADER_TRANSFER_ENCODING
    HEADER_EXPECT
    HEADER_UPGRADE
    HEADER_DISGUISED            # Content_Length or Transfer_Encoding, with an underscore

cdef enum:
    LONGEST_KNOWN = 40          # bytes; no name in the table is longer


cdef struct KnownHeader:
    const char *text            # the name in lower case; NULL in an empty slot of the table
    Py_ssize_t length
    PyObject *name              # the same as bytes
    PyObject *key               # of the WSGI environ: an interned str
    int kind                    # HEADER_...


# Return the entry of a name of `n` > 0 bytes in lower case, or NULL.
cdef const KnownHeader *known_header(const char *name, Py_ssize_t n) noexcept


# Receives the headers of the requests of one connection from the parser.
cdef class HeaderSink:
    # A head begins. Forget an earlier one.
    cdef int begin_head(self) except -1
    # Add a header. `known`: its entry, or NULL; then `name` is the name in lower case. `value` has
    # `n` bytes.
    cdef int add_header(self, const KnownHeader *known, bytes name, const char *value,
                        Py_ssize_t n) except -1


cdef class HeaderList(HeaderSink):
    cdef list pairs             # (name, value) as bytes, or None between two heads


# Return a copy of a dict whose keys are strings, in CPython's form for such dicts. Cython makes
# dicts of more than five items in the form for any keys, and dict.copy() keeps the form. The form
# for any keys needs half as much memory again, and each access takes longer.
cdef dict dict_of_str(dict items)
