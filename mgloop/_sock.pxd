# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native socket methods of the loop; _sock.pyx explains them."""

from mgloop._interest cimport FdCore, FdWatch, Waiter
from mgloop._loop cimport Watcher


cdef class SockCall(Waiter):
    cdef FdCore loop
    cdef object sock
    cdef object argument        # a number of bytes, a buffer or an address
    cdef object future          # the future that the task waits for, or None
    cdef FdWatch watch
    cdef Py_buffer view         # the data to send, if has_view
    cdef Py_ssize_t done        # bytes sent so far
    cdef Py_ssize_t size        # the largest number of bytes that sock_recv() returns
    cdef int kind
    cdef int fd
    cdef bint has_view
    cdef bint again             # try again without waiting for an event of the kernel
    cdef bint looked_twice      # has tried again after an event of the kernel and an EAGAIN
    cdef bint started
    cdef bint finished

    cdef object begin(self)
    cdef object connect(self)
    cdef int check_connection(self) except -1
    cdef object try_call(self)
    cdef bint writes(self) noexcept
    cdef int enlist(self) except -1
    cdef int try_again(self) except -1
    cdef int check(self) except -1


cdef class ConnectCheck(Watcher):
    cdef SockCall call


cdef class SockCore(FdCore):
    pass
