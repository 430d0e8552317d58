# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.transports._pipe: the two pipe transports."""

from libc.stdint cimport uint32_t

from mgloop._loop cimport LoopCore
from mgloop.transports._base cimport WriteLimits


cdef extern from "writequeue.h":
    ctypedef struct mgl_queue:
        uint32_t len
        size_t offset
        size_t size


cdef class Pipe:
    cdef dict __dict__          # programs and tests put methods of their own over ours
    cdef object __weakref__
    cdef LoopCore loop          # None once connection_lost() has been called
    cdef object protocol
    cdef object pipe            # the file object given by the user; None once it is closed
    cdef dict extra
    cdef int fd
    cdef bint device            # a character device, such as a terminal
    cdef bint fifo
    cdef bint closing
    cdef bint ending            # connection_lost() is scheduled or done

    cdef int adopt(self, LoopCore loop, object pipe, object protocol, dict extra,
                   str refusal) except -1
    cdef int end(self, object exc) except -1
    cdef int report(self, str message, exc) except -1
    cdef bint polling(self)


cdef class ReadPipe(Pipe):
    cdef uint32_t hint          # how much the next read may bring
    cdef bint paused
    cdef bint watched

    cdef int watch(self) except -1
    cdef object receive(self)


cdef class WritePipe(Pipe):
    cdef mgl_queue queue
    cdef WriteLimits limits
    cdef unsigned int conn_lost  # writes that came too late
    cdef bint blocked           # the kernel's buffer is full: the poll loop will tell

    cdef int count_write(self, ssize_t sent) noexcept
    cdef ssize_t write_some(self, const char *start, Py_ssize_t n) except -2
    cdef ssize_t write_queued(self) except -2
    cdef int send_queue(self) except -1
    cdef int block(self) except -1
    cdef int unblock(self) except -1
    cdef int write_failed(self, int error) except -1
    cdef bint refuses(self) except -1
    cdef int stop(self, object exc) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
