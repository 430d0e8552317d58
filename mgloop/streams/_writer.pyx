# SPDX-License-Identifier: GPL-2.0-only
"""Implement the native parts of StreamWriter and StreamReaderProtocol.

The module is native because data_received(), write() and drain() run once per packet. All other
methods are asyncio's. They use the attributes of the native parts, which have the same names as in
asyncio. A drain() that need not wait ends in its first step, without a future.

A writer has references to its transport, protocol and reader. A protocol has a weak reference to
its reader, so that a connection ends if the program drops its streams. Only the thread of the loop
may use these objects.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from mgloop._awaitable cimport CALL_CLOSED, CALL_CREATED, PENDING, Call, Waiting
from mgloop._loop cimport own_thread
from mgloop.streams._reader cimport NativeReader, inherits, new_future
from mgloop.transports._stream cimport Stream

from .. import _stdlib


cdef extern from "attributes.h":
    bint mgl_has_attributes(PyObject *o)
    bint mgl_only_reference(PyObject *o)


cdef object AsyncioReader = _stdlib.StreamReader
cdef object AsyncioWriter = _stdlib.StreamWriter

# The class mgloop.StreamReaderProtocol. __init__.py sets it.
cdef object PUBLIC = None

# Methods of a protocol that drain() calls. If a subclass overrides one, asyncio's code calls it.
cdef tuple HOOKS = ("_drain_helper",)


def set_public(public):
    """Set the protocol class that programs use."""
    global PUBLIC
    PUBLIC = public


cdef inline bint is_plain_stream(object transport) noexcept:
    """Return whether it is a native transport whose methods no program has replaced."""
    return type(transport) is Stream and not mgl_has_attributes(<PyObject *>transport)


cdef class NativeProtocol:
    """The native part of StreamReaderProtocol."""

    def __cinit__(self):
        self.plain = type(self) is PUBLIC or (
            PUBLIC is not None and inherits(type(self), PUBLIC, HOOKS))

    def data_received(self, data):
        """Pass the data to the reader, if the program still has it."""
        cdef object reference = self._stream_reader_wr
        cdef object reader
        if reference is None:
            return
        reader = reference()
        if reader is None:
            return
        if isinstance(reader, NativeReader) and (<NativeReader>reader).plain:
            (<NativeReader>reader).feed(data)
        else:
            reader.feed_data(data)


cdef class NativeWriter:
    """The native part of StreamWriter."""

    def __init__(self, transport, protocol, reader, loop):
        self._transport = transport
        self._protocol = protocol
        assert reader is None or isinstance(reader, AsyncioReader)
        self._reader = reader
        self._loop = loop

    @property
    def _complete_fut(self):
        if self.completed is None:
            self.completed = self._loop.create_future()
            self.completed.set_result(None)
        return self.completed

    @property
    def transport(self):
        """The transport that the data is written to."""
        return self._transport

    def write(self, data):
        """Write the data to the transport."""
        cdef Stream stream
        if PyBytes_CheckExact(data) and is_plain_stream(self._transport):
            stream = <Stream>self._transport
            own_thread(stream.loop)
            stream._write(data, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        else:
            self._transport.write(data)

    def writelines(self, data):
        """Write an iterable of bytes-like objects to the transport."""
        self._transport.writelines(data)

    def close(self):
        """Close the transport."""
        return self._transport.close()

    def is_closing(self):
        """Return whether the transport is closed or closing."""
        return self._transport.is_closing()

    def drain(self):
        """Wait until the write buffer is below its low-water mark, as asyncio's drain()."""
        cdef Drain call
        cdef object protocol = self._protocol
        if not isinstance(protocol, NativeProtocol) or not (<NativeProtocol>protocol).plain:
            return AsyncioWriter.drain(self)
        if self.spare is not None and mgl_only_reference(<PyObject *>self.spare):
            call = self.spare
            self.spare = None
        else:
            call = Drain.__new__(Drain)
        call.writer = self
        call.state = CALL_CREATED
        return call


@cython.final
cdef class Drain(Call):
    """A call of drain(), to be awaited."""

    def __del__(self):
        if self.state == CALL_CREATED:
            Call.__del__(self)
        elif self.writer is not None:
            # The call was dropped while it waited, without close().
            self.stop()

    cdef str qualname(self):
        return "StreamWriter.drain"

    cdef object run(self):
        cdef object future = self.future
        if future is not None:
            if not future.done():
                return PENDING
            self.stop()
            return future.result()
        if not self.yielded:
            self.check_reader()
            if self.is_closing(self.writer._transport):
                # Let the loop call connection_lost(). A program that only writes and drains would
                # otherwise never learn that the connection is lost.
                self.yielded = True
                return PENDING
        return self.drain(self.writer._protocol)

    cdef bint is_closing(self, object transport) except -1:
        if is_plain_stream(transport):
            return (<Stream>transport).closing
        return transport.is_closing()

    cdef int check_reader(self) except -1:
        """Raise the exception of the reader."""
        cdef object reader = self.writer._reader
        cdef object exception
        if reader is None:
            return 0
        if isinstance(reader, NativeReader) and (<NativeReader>reader).plain:
            exception = (<NativeReader>reader)._exception
        else:
            exception = reader.exception()
        if exception is not None:
            raise exception
        return 0

    cdef object drain(self, NativeProtocol protocol):
        """Return None if the protocol is not paused, or begin to wait and return PENDING."""
        if protocol._connection_lost:
            raise ConnectionResetError("Connection lost")
        if not protocol._paused:
            return None
        self.future = new_future(protocol._loop)
        self.waiters = protocol._drain_waiters
        self.waiters.append(self.future)
        return PENDING

    cdef object suspend(self):
        # A task that gets None runs again in the next iteration.
        return None if self.future is None else Waiting.suspend(self)

    cdef int stop(self) except -1:
        """Stop waiting."""
        cdef object future = self.future
        if future is not None:
            self.future = None
            self.waiters.remove(future)
            self.waiters = None
        return 0

    cdef int finish(self) except -1:
        cdef NativeWriter writer = self.writer
        self.state = CALL_CLOSED
        if writer is not None:
            self.writer = None
            self.yielded = False
            writer.spare = self
            self.stop()
        return 0
