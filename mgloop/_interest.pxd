# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of mgloop._interest, which watches descriptors of the user."""

from libc.stdint cimport uint32_t

from mgloop._awaitable cimport Call
from mgloop._handle cimport Handle
from mgloop._loop cimport Watcher
from mgloop._schedule cimport ScheduleCore


# A waiting sock_*() call. The calls that wait for a direction of a descriptor form a linked list.
cdef class Waiter(Call):
    cdef Waiter next
    cdef uint32_t event         # the event that the call waits for: EPOLLIN or EPOLLOUT

    # Try the system call again. Return whether the sock_*() call is done.
    cdef bint attempt(self) except -1
    # Fail the call, because the descriptor was closed and its number may belong to another file.
    cdef int fail(self, object exc) except -1


# Reading or writing of one descriptor.
cdef class Direction:
    cdef uint32_t event         # EPOLLIN or EPOLLOUT
    cdef Handle callback        # of add_reader() or add_writer(), or None
    cdef Waiter first
    cdef Waiter last

    cdef bint in_use(self) noexcept
    cdef void append(self, Waiter waiter) noexcept
    cdef bint remove(self, Waiter waiter) noexcept
    cdef bint attempt_all(self) except -1
    cdef int fail_all(self, object exc) except -1
    cdef int cancel_callback(self) except -1


# The registration of a descriptor that belongs to the user.
cdef class FdWatch(Watcher):
    cdef Direction reading
    cdef Direction writing
    # The argument of add_reader(). The reference keeps the file open, and identifies it when the
    # user closes it before remove_reader().
    cdef object file
    cdef object sock            # weak reference to the socket of a lasting registration, or None
    cdef uint32_t mask          # events that are registered with the kernel

    cdef Direction direction(self, uint32_t event)
    cdef bint has_callback(self) noexcept
    cdef uint32_t wanted(self) noexcept
    cdef int sync(self) except -1
    cdef int try_sync(self) except -1
    cdef int enlist(self, Waiter waiter, object sock) except -1
    cdef int delist(self, Waiter waiter) except -1
    cdef int fail_waiters(self) except -1


cdef class FdCore(ScheduleCore):
    cdef object shared          # {fd: transport} of asyncio's own transports, or None
    cdef bytes sock_reserve     # memory for a sock_recv() that has read and cannot allocate

    cdef int check_shared(self, int fileno) except -1
    cdef int watched_fd(self, object fd) except -1
    cdef int number_of_watched_file(self, object file) except -2
    cdef int check_owner(self, int fileno, object fd=*) except -1
    cdef int users_fd(self, object fd, bint watched=*) except -1
    cdef Handle add_interest(self, object file, int fd, object callback, tuple args,
                             uint32_t event, object context)
    cdef int remove_interest(self, int fd, uint32_t event) except -1
    # Return the FdWatch of a user's descriptor. If it does not exist, make one or return None.
    cdef FdWatch fd_watch(self, int fd, bint create)
