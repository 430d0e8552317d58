# SPDX-License-Identifier: GPL-2.0-only
"""Declare the native parts of StreamWriter and StreamReaderProtocol; _writer.pyx describes them."""

from mgloop._awaitable cimport Call


cdef class NativeProtocol:
    cdef public object _loop
    cdef public object _stream_reader_wr    # a weak reference to the reader, or None
    cdef public object _drain_waiters       # the futures of the drain() calls that wait
    cdef public bint _paused                # between pause_writing() and resume_writing()
    cdef public bint _connection_lost
    cdef bint plain                         # no subclass overrides what drain() calls


cdef class NativeWriter:
    cdef public object _transport
    cdef public object _protocol
    cdef public object _reader
    cdef public object _loop
    cdef object completed                   # the future _complete_fut, made on first use
    cdef Drain spare                        # the last call that has ended, to be used again


cdef class Drain(Call):
    cdef NativeWriter writer
    cdef object waiters         # the protocol's list that `future` is in
    cdef bint yielded           # the call has let the loop run once

    cdef bint is_closing(self, object transport) except -1
    cdef int check_reader(self) except -1
    cdef object drain(self, NativeProtocol protocol)
    cdef int stop(self) except -1
