# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, freethreading_compatible=True
"""Protocols that test_compiled.py builds against the installed interface."""

cimport mgloop
from mgloop cimport Protocol, Transport

from cpython.exc cimport PyErr_SetString


cdef class Echo(Protocol):
    """Send everything back."""

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        return self.transport.write_bytes(data, size)


cdef class Recorder(Protocol):
    """Record all calls, and call the Python functions that the constructor gets for them."""

    cdef public list events
    cdef dict actions
    cdef object __weakref__

    def __init__(self, **actions):
        self.events = []
        self.actions = actions

    cdef object note(self, name, tuple arguments=()):
        self.events.append((name, *arguments))
        action = self.actions.get(name)
        return action(self, *arguments) if action else None

    cdef int connection_made(self, Transport transport) except -1:
        assert transport is self.transport
        self.note("connection_made")

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        received = data[:size]
        self.note("data_received", (received,))
        if data[:size] != received:
            self.events.append("overwritten")

    cdef bint eof_received(self) except -1:
        return bool(self.note("eof_received"))

    cdef int connection_lost(self, object exc) except -1:
        self.note("connection_lost", (exc,))

    cdef int pause_writing(self) except -1:
        self.note("pause_writing")

    cdef int resume_writing(self) except -1:
        self.note("resume_writing")

    def received(self):
        return b"".join(event[1] for event in self.events if event[0] == "data_received")

    def write(self, bytes data):
        self.transport.write_bytes(data, len(data))

    def write_size(self, Py_ssize_t size):
        self.transport.write_bytes(b"abc", size)


cdef class Failing(Protocol):
    """Break the rules for results and exceptions."""

    cdef int result

    def __init__(self, result):
        self.result = result

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        if self.result == 0:
            PyErr_SetString(ValueError, "left behind")
        return self.result


cdef class Keeping(Protocol):
    """Use the received data after the call."""

    cdef const char *data
    cdef Py_ssize_t size

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        self.data = data
        self.size = size

    def kept(self):
        return self.data[:self.size]


cdef int run(object argument) except -1:
    function, value = argument
    function(value)
    return 0


def soon(loop, function, value):
    return mgloop.call_soon(loop, run, (function, value))


def later(loop, delay, function, value):
    return mgloop.call_later(loop, delay, run, (function, value))


def null(loop):
    return mgloop.call_soon(loop, NULL, None)
