# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native socket methods of the loop; _sock.pyx explains them."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from mgloop._interest cimport FdCore, FdWatch, Waiter
from mgloop._loop cimport Watcher


cdef class SockCall(Waiter):
    cdef FdCore loop
    cdef object sock
    cdef object argument        # a number of bytes, a buffer or an address
    cdef FdWatch watch          # while the call is in its queue
    cdef int fd
    cdef bint retry             # try again without waiting for an event of the kernel
    cdef bint retried           # has tried again after an event of the kernel and an EAGAIN

    cdef SockCall prepare(self, FdCore loop, object sock, object argument, uint32_t event)
    cdef int check(self) except -1
    cdef object begin(self)
    cdef object try_call(self)
    cdef object unfinished(self, int error)
    cdef int enlist(self) except -1
    cdef int schedule_retry(self) except -1


cdef class Recv(SockCall):
    cdef Py_ssize_t size        # the largest number of bytes to return

    cdef object receive_large(self)
    cdef PyObject *copy_to_reserve(self, Py_ssize_t n) except NULL


cdef class RecvInto(SockCall):
    pass


cdef class SendAll(SockCall):
    cdef Py_buffer view         # the data, if has_view
    cdef bint has_view
    cdef Py_ssize_t sent        # bytes sent so far


cdef class Connect(SockCall):
    cdef int check_connection(self) except -1


# Checks a connection attempt in the iteration after connect().
cdef class ConnectCheck(Watcher):
    cdef Connect call


cdef class SockCore(FdCore):
    pass
