# SPDX-License-Identifier: GPL-2.0-only
"""Bytes that arrive in pieces, kept in linear time and in memory proportional to their number.

`kept + piece` copies everything again for each piece, which is quadratic. A list of pieces costs 40
bytes and more for each piece, even if the piece is a single byte. A bytearray costs neither. One
piece alone stays bytes, because that is the usual case and bytes need no second copy.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromObject, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy


cdef extern from "Python.h":
    bint PyBytes_CheckExact(object o)


# Return `kept` (None, bytes or bytearray) and n more bytes. The result takes the place of `kept`.
cdef inline object gather(object kept, const char *data, Py_ssize_t n):
    cdef Py_ssize_t size
    if kept is None:
        return PyBytes_FromStringAndSize(data, n)
    if PyBytes_CheckExact(kept):
        kept = PyByteArray_FromObject(kept)
    size = PyByteArray_GET_SIZE(kept)
    PyByteArray_Resize(kept, size + n)
    memcpy(PyByteArray_AS_STRING(kept) + size, data, n)
    return kept


# Return what gather() has kept as bytes.
cdef inline bytes gathered(object kept):
    if PyBytes_CheckExact(kept):
        return <bytes>kept
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(kept), PyByteArray_GET_SIZE(kept))
