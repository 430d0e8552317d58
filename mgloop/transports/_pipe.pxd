# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native interface of the two pipe transports; _pipe.pyx describes them."""

from libc.stdint cimport uint32_t

from mgloop._loop cimport LoopCore
from mgloop.transports._common cimport WriteLimits
from mgloop.transports._writequeue cimport mgl_queue


cdef class Pipe:
    cdef dict __dict__          # lets programs and tests replace methods on an instance
    cdef object __weakref__
    cdef LoopCore loop          # None after connection_lost()
    cdef object protocol
    cdef object pipe            # the user's file object; None after it is closed
    cdef dict extra             # the items of get_extra_info()
    cdef int fd
    cdef bint device            # the file is a character device, such as a terminal
    cdef bint fifo              # the file is a FIFO
    cdef bint closing
    cdef bint ending            # connection_lost() is scheduled or done

    cdef int adopt(self, LoopCore loop, object pipe, object protocol, dict extra,
                   str refusal) except -1
    cdef int end(self, object exc) except -1
    cdef int fail(self, object exc, str message, bint expected) except -1
    cdef int stop(self, object exc) except -1
    cdef bint polling(self)


cdef class ReadPipe(Pipe):
    cdef uint32_t hint          # expected size of the next read, in bytes
    cdef bint paused            # pause_reading() was called
    cdef bint watched           # registered with add_reader()

    cdef int watch(self) except -1
    cdef object receive(self)


cdef class WritePipe(Pipe):
    cdef mgl_queue queue        # data that the kernel has not accepted yet
    cdef WriteLimits limits
    cdef unsigned int conn_lost  # number of writes that failed or came after the end
    cdef bint blocked           # the pipe is full; registered with add_writer()

    cdef int count_write(self, ssize_t sent) noexcept
    cdef ssize_t write_some(self, const char *start, Py_ssize_t n) except -2
    cdef ssize_t write_queued(self) except -2
    cdef int send_queue(self) except -1
    cdef int block(self) except -1
    cdef int unblock(self) except -1
    cdef int write_failed(self, int error) except -1
    cdef bint refuses(self) except -1
    cdef int pause_protocol(self) except -1
    cdef int resume_protocol(self) except -1
