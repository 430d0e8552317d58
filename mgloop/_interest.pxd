# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop._interest: descriptors that belong to the user."""

from libc.stdint cimport uint32_t

from mgloop._awaitable cimport Awaitable
from mgloop._handle cimport Handle
from mgloop._loop cimport Watcher
from mgloop._schedule cimport ScheduleCore


# A waiting sock_*() call; see FdWatch.
cdef class Waiter(Awaitable):
    cdef Waiter next

    # Try the call again; True = done, False = not yet.
    cdef bint attempt(self) except -1
    # The descriptor has been closed, and its number given away, under the waiting call.
    cdef int fail(self, object exc) except -1


# Interest in a descriptor that belongs to the user.
cdef class FdWatch(Watcher):
    cdef Handle reader
    cdef Handle writer
    cdef Waiter read_waiters
    cdef Waiter write_waiters
    cdef object file            # what add_reader() was given: it stays open, and is known if closed
    cdef object sock            # weak reference to the socket of a lasting registration, or None
    cdef uint32_t mask          # as registered with the kernel

    cdef uint32_t wanted(self) noexcept
    cdef int sync(self) except -1
    cdef int try_sync(self) except -1
    cdef bint pop_attempt(self, bint write) except -1
    cdef int enlist(self, Waiter waiter, bint write, object sock) except -1
    cdef int delist(self, Waiter waiter, bint write) except -1
    cdef int fail_waiters(self) except -1


cdef class FdCore(ScheduleCore):
    cdef object shared          # asyncio's own transports by descriptor; None before the first

    cdef int check_shared(self, int fileno) except -1
    cdef int watched_fd(self, object fd) except -1
    cdef int number_of_watched_file(self, object file) except -2
    cdef int users_fd(self, object fd, bint watched=*) except -1
    cdef Handle add_interest(self, object file, int fd, object callback, tuple args, bint write)
    cdef int remove_interest(self, int fd, bint write) except -1
    # The interest in a user's descriptor, or None if there is none and none is to be made.
    cdef FdWatch fd_watch(self, int fd, bint create)
