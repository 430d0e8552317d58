# SPDX-License-Identifier: GPL-2.0-only
"""Declare the queue of unsent data, which writequeue.h describes."""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t


cdef extern from "writequeue.h":
    cdef struct iovec:
        void *iov_base
        size_t iov_len

    ctypedef struct mgl_queue:
        uint32_t len
        size_t offset
        size_t size

    int mgl_queue_push(mgl_queue *q, PyObject *data, size_t sent) except -1
    int mgl_queue_iov(mgl_queue *q, iovec *iov, int max)
    void mgl_queue_consume(mgl_queue *q, size_t n)
    void mgl_queue_clear(mgl_queue *q)
