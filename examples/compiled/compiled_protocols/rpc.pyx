# SPDX-License-Identifier: GPL-2.0-only
"""Implement remote calls over a connection.

A frame begins with its length: the number of the bytes that follow. Integers are big-endian.

    request     length (4 bytes)    number (4)    method (1)    argument
    reply       length (4 bytes)    number (4)    status (1)    result, or a message

The client chooses the number, and the reply has the same. So replies may have another order than
the requests. A length that no request can have ends the connection.
"""

from libc.stdint cimport uint32_t, uint64_t

from compiled_protocols.framed cimport Framed, load, store


cdef enum:
    MAX_LENGTH = 64 * 1024      # of a request, in bytes
    FIXED = 5                   # bytes of number and method, or of number and status

cdef enum:
    SUCCEEDED = 0
    FAILED = 1


cdef class Rpc(Framed):
    """Receive requests and send replies; a subclass implements call()."""

    cdef Py_ssize_t take_frame(self, const char *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t length
        if size < 4:
            return 0
        length = <Py_ssize_t>load(data, 4)
        if not FIXED <= length <= MAX_LENGTH:
            self.finish()
            return 0
        if size < 4 + length:
            return 0
        self.call(<uint32_t>load(data + 4, 4), <unsigned char>data[8],
                  data + 4 + FIXED, length - FIXED)
        return 4 + length

    cdef int call(self, uint32_t number, int method,
                  const char *argument, Py_ssize_t size) except -1:
        return self.fail(number, b"unknown method")

    cdef int reply(self, uint32_t number, int status,
                   const char *result, Py_ssize_t size) except -1:
        cdef char head[4 + FIXED]
        store(head, FIXED + size, 4)
        store(head + 4, number, 4)
        head[8] = <char>status
        return self.send(head, 4 + FIXED, result, size)

    cdef int fail(self, uint32_t number, bytes message) except -1:
        return self.reply(number, FAILED, message, len(message))


cdef enum:
    RETURN = 0                  # the result is the argument
    SUM = 1                     # the argument is a list of 32-bit integers, the result has 64 bits


cdef class Calculator(Rpc):
    """Answer the calls of two methods."""

    cdef int call(self, uint32_t number, int method,
                  const char *argument, Py_ssize_t size) except -1:
        cdef uint64_t total = 0
        cdef Py_ssize_t i
        cdef char result[8]
        if method == RETURN:
            return self.reply(number, SUCCEEDED, argument, size)
        if method != SUM:
            return Rpc.call(self, number, method, argument, size)
        if size % 4:
            return self.fail(number, b"the argument is not a list of 32-bit integers")
        for i in range(0, size, 4):
            total += load(argument + i, 4)
        store(result, total, 8)
        return self.reply(number, SUCCEEDED, result, 8)
