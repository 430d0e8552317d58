# SPDX-License-Identifier: GPL-2.0-only
"""Implement the native part of StreamReader.

    ByteQueue (_buffer)            the received data
      +- NativeReader              feed_data(), read() and related methods
           +- mgloop.StreamReader  also a subclass of asyncio.StreamReader (__init__.py)

The module is native because its code runs once per packet and once per read. The methods that wait
return calls (_awaitable) in place of coroutines. A call that finds its data returns it in its first
step, without a future. A call that waits uses a future, as in asyncio.

The attributes have the same names as in asyncio.StreamReader, because libraries and asyncio's own
code use them. asyncio's code handles everything that is not worth native code: a separator of
another type than bytes, a size or a limit of another type than int, the traceback of debug mode,
and readers of a subclass that overrides one of the methods in HOOKS.

A call has a reference to the reader, and the reader has one to the future that the call waits for.
Only the thread of the reader's loop may use a reader.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsSsize_t
from cpython.object cimport PyObject

from mgloop._awaitable cimport CALL_CLOSED, CALL_CREATED, PENDING, Call
from mgloop._loop cimport LoopCore
from mgloop.streams._buffer cimport ByteQueue

from asyncio.exceptions import IncompleteReadError, LimitOverrunError

from .. import _stdlib
from .._hooks import HookCore


cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef extern from "attributes.h":
    bint mgl_only_reference(PyObject *o)


cdef object AsyncioReader = _stdlib.StreamReader
cdef object DEFAULT_LIMIT = _stdlib.STREAM_LIMIT

# The class mgloop.StreamReader. __init__.py sets it.
cdef object PUBLIC = None

# The last class of a loop that was seen to have mgloop's create_future().
cdef object NATIVE_LOOP = None
cdef object create_future = HookCore.create_future

# Methods that others of the class call. If a subclass overrides one, asyncio's code calls it.
cdef tuple HOOKS = (
    "__anext__", "_maybe_resume_transport", "_wait_for_data", "_wakeup_waiter", "exception",
    "feed_data", "read", "readline", "readuntil",
)


def set_public(public):
    """Set the class that programs use."""
    global PUBLIC
    PUBLIC = public


cdef bint inherits(type kind, object public, tuple methods) except -1:
    for name in methods:
        if getattr(kind, name) is not getattr(public, name):
            return False
    return True


cdef object new_future(object loop):
    global NATIVE_LOOP
    if type(loop) is not NATIVE_LOOP:
        if not isinstance(loop, LoopCore) or type(loop).create_future is not create_future:
            return loop.create_future()
        NATIVE_LOOP = type(loop)
    return (<LoopCore>loop).new_future()


cdef Py_ssize_t in_bytes(object number) except? -1:
    """Return an int as a size, and the nearest possible size if it is too large or too small."""
    try:
        return PyLong_AsSsize_t(number)
    except OverflowError:
        pass
    return PY_SSIZE_T_MAX if number > 0 else -PY_SSIZE_T_MAX


cdef class NativeReader(ByteQueue):
    """The native part of StreamReader."""

    def __cinit__(self):
        self.plain = type(self) is PUBLIC or (
            PUBLIC is not None and inherits(type(self), PUBLIC, HOOKS))

    def __init__(self, limit=DEFAULT_LIMIT, loop=None):
        if loop is None or loop.get_debug():
            # asyncio finds the loop, or warns, and stores the stack of the caller.
            AsyncioReader.__init__(self, limit, loop)
            return
        if limit <= 0:
            raise ValueError("Limit cannot be <= 0")
        self.set_limit(limit)
        self._loop = loop

    cdef int set_limit(self, object limit) except -1:
        self.given_limit = limit
        if type(limit) is int:
            self.limit = in_bytes(limit)
        else:
            self.limit = PY_SSIZE_T_MAX
            self.plain = False
        return 0

    @property
    def _limit(self):
        return self.given_limit

    @_limit.setter
    def _limit(self, limit):
        self.set_limit(limit)

    @property
    def _buffer(self):
        return self.share()

    @_buffer.setter
    def _buffer(self, bytearray data not None):
        self.clear()
        self.shared = data

    def exception(self):
        """Return the exception that was set, or None."""
        return self._exception

    # -------------------------------------------------------------- the transport's side ----

    def feed_data(self, data):
        """Add received data, and pause the transport if the buffer is full."""
        if self.plain:
            self.feed(data)
        else:
            AsyncioReader.feed_data(self, data)

    def feed_eof(self):
        """Mark the end of the stream."""
        if self.plain:
            self._eof = True
            self.wake_up()
        else:
            AsyncioReader.feed_eof(self)

    cdef int feed(self, object data) except -1:
        cdef object transport
        cdef bint failed = False
        assert not self._eof, "feed_data after feed_eof"
        if PyBytes_CheckExact(data):
            if PyBytes_GET_SIZE(data) == 0:
                return 0
            self.append(<bytes>data)
        else:
            if not data:
                return 0
            self.extend(data)
        if self._waiter is not None:
            self.wake_up()
        if not self._paused and self.length() - self.limit > self.limit:
            transport = self._transport
            if transport is not None:
                try:
                    transport.pause_reading()
                except NotImplementedError:
                    # Do not try again.
                    self._transport = None
                    failed = True
                if not failed:
                    self._paused = True
        return 0

    cdef int wake_up(self) except -1:
        cdef object waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.cancelled():
                waiter.set_result(None)
                self.woken = waiter
        return 0

    cdef int resume_transport(self) except -1:
        if self._paused and self.length() <= self.limit:
            self._paused = False
            self._transport.resume_reading()
        return 0

    # -------------------------------------------------------------- the program's side ----

    cdef ReaderCall reusable(self, type kind):
        """Return an ended call of that class to be used again, or None."""
        cdef ReaderCall call
        if (self.spare is None or type(self.spare) is not kind
                or not mgl_only_reference(<PyObject *>self.spare)):
            return None
        call = self.spare
        self.spare = None
        return call

    def at_eof(self):
        """Return whether the stream has ended and all data was read."""
        return self._eof and self.length() == 0

    def read(self, n=-1):
        """Read up to n bytes, as asyncio.StreamReader.read()."""
        cdef Read call
        cdef ReadAll rest
        if not self.plain or type(n) is not int:
            return AsyncioReader.read(self, n)
        cdef Py_ssize_t size = in_bytes(n)
        if size < 0:
            rest = ReadAll.__new__(ReadAll)
            rest.reader = self
            rest.state = CALL_CREATED
            return rest
        call = <Read>self.reusable(Read)
        if call is None:
            call = Read.__new__(Read)
        call.reader = self
        call.size = size
        call.state = CALL_CREATED
        return call

    def readexactly(self, n):
        """Read exactly n bytes, as asyncio.StreamReader.readexactly()."""
        cdef ReadExactly call
        if not self.plain or type(n) is not int:
            return AsyncioReader.readexactly(self, n)
        call = <ReadExactly>self.reusable(ReadExactly)
        if call is None:
            call = ReadExactly.__new__(ReadExactly)
        call.reader = self
        call.expected = n
        call.size = in_bytes(n)
        call.state = CALL_CREATED
        return call

    def readuntil(self, separator=b"\n"):
        """Read data until a separator is found, as asyncio.StreamReader.readuntil()."""
        cdef ReadUntil call
        if not self.plain or not PyBytes_CheckExact(separator) or not separator:
            return AsyncioReader.readuntil(self, separator)
        call = <ReadUntil>self.reusable(ReadUntil)
        if call is None:
            call = ReadUntil.__new__(ReadUntil)
        call.reader = self
        call.separator = <bytes>separator
        call.offset = 0
        call.state = CALL_CREATED
        return call

    def readline(self):
        """Read one line, as asyncio.StreamReader.readline()."""
        return self.read_line(False) if self.plain else AsyncioReader.readline(self)

    def __anext__(self):
        return self.read_line(True) if self.plain else AsyncioReader.__anext__(self)

    cdef ReaderCall read_line(self, bint iterates):
        """Return a call that reads one line; `iterates`: for __anext__()."""
        cdef ReadLine call = <ReadLine>self.reusable(ReadLine)
        if call is None:
            call = ReadLine.__new__(ReadLine)
        call.reader = self
        call.separator = b"\n"
        call.offset = 0
        call.iterates = iterates
        call.state = CALL_CREATED
        return call


cdef class ReaderCall(Call):
    """One call of a method that reads, to be awaited."""

    def __del__(self):
        if self.state == CALL_CREATED:
            Call.__del__(self)
        elif self.reader is not None:
            # The call was dropped while it waited, without close().
            self.stop()

    cdef int begin(self) except -1:
        """Make the checks of the first step."""
        if self.reader._exception is not None:
            raise self.reader._exception
        return 0

    cdef object attempt(self, bint woken):
        """Return the result, or the result of wait(). woken: whether the call has waited."""
        raise NotImplementedError

    cdef object run(self):
        cdef object future = self.future
        if future is None:
            self.begin()
            return self.attempt(False)
        if future is self.reader.woken:
            self.reader.woken = None
            self.stop()
        else:
            if not future.done():
                return PENDING
            self.stop()
            future.result()
        return self.attempt(True)

    cdef object wait(self, str method):
        """Begin to wait for data or the end of the stream, and return PENDING."""
        cdef NativeReader reader = self.reader
        if reader._waiter is not None:
            raise RuntimeError(
                f"{method}() called while another coroutine is already waiting for incoming data")
        assert not reader._eof, "_wait_for_data after EOF"
        # The transport has to deliver more data than the limit for a long readexactly().
        if reader._paused:
            reader._paused = False
            reader._transport.resume_reading()
        self.future = reader._waiter = new_future(reader._loop)
        return PENDING

    cdef int stop(self) except -1:
        """Stop waiting."""
        if self.future is not None:
            if self.reader is not None and self.reader._waiter is self.future:
                self.reader._waiter = None
            self.future = None
        return 0

    cdef int finish(self) except -1:
        cdef NativeReader reader = self.reader
        self.state = CALL_CLOSED
        if reader is not None:
            self.stop()
            self.reader = None
            reader.spare = self
        return 0


@cython.final
cdef class Read(ReaderCall):
    """A call of read() with a size."""

    cdef Py_ssize_t size

    cdef str qualname(self):
        return "StreamReader.read"

    cdef object attempt(self, bint woken):
        cdef NativeReader reader = self.reader
        cdef bytes data
        if self.size == 0:
            return b""
        if not woken and reader.length() == 0 and not reader._eof:
            return self.wait("read")
        data = reader.take(self.size)
        reader.resume_transport()
        return data


@cython.final
cdef class ReadAll(ReaderCall):
    """A call of read() that reads until the end of the stream."""

    cdef list blocks

    cdef str qualname(self):
        return "StreamReader.read"

    cdef object attempt(self, bint woken):
        cdef NativeReader reader = self.reader
        cdef bytes data
        cdef bint ended = woken and reader.length() == 0
        while reader.length():
            data = reader.take_all()
            if self.blocks is None:
                self.blocks = []
            self.blocks.append(data)
            reader.resume_transport()
            self.begin()
        if not ended and not reader._eof:
            return self.wait("read")
        # The transport may still be paused because a call that failed has emptied the buffer.
        reader.resume_transport()
        return b"" if self.blocks is None else b"".join(self.blocks)

    cdef int finish(self) except -1:
        self.blocks = None
        return ReaderCall.finish(self)


@cython.final
cdef class ReadExactly(ReaderCall):
    """A call of readexactly()."""

    cdef object expected        # the argument of the call
    cdef Py_ssize_t size        # the same as a size

    cdef str qualname(self):
        return "StreamReader.readexactly"

    cdef int begin(self) except -1:
        if self.size < 0:
            raise ValueError("readexactly size can not be less than zero")
        return ReaderCall.begin(self)

    cdef object attempt(self, bint woken):
        cdef NativeReader reader = self.reader
        cdef bytes data
        if self.size == 0:
            return b""
        if reader.length() < self.size:
            if not reader._eof:
                return self.wait("readexactly")
            data = reader.take_all()
            raise IncompleteReadError(data, self.expected)
        data = reader.take(self.size)
        reader.resume_transport()
        return data


cdef class ReadUntil(ReaderCall):
    """A call of readuntil()."""

    cdef bytes separator
    cdef Py_ssize_t offset      # no separator begins before this position of the buffer

    cdef str qualname(self):
        return "StreamReader.readuntil"

    cdef object attempt(self, bint woken):
        cdef NativeReader reader = self.reader
        cdef Py_ssize_t length = PyBytes_GET_SIZE(self.separator)
        cdef Py_ssize_t size = reader.length()
        cdef Py_ssize_t found
        cdef bytes data
        if size - self.offset >= length:
            found = reader.find(self.separator, self.offset)
            if found >= 0:
                if found > reader.limit:
                    self.overrun("Separator is found, but chunk is longer than limit", found,
                                 found + length)
                data = reader.take(found + length)
                reader.resume_transport()
                return data
            self.offset = size + 1 - length
            if self.offset > reader.limit:
                self.overrun("Separator is not found, and chunk exceed the limit", self.offset,
                             size)
        if reader._eof:
            return self.incomplete(reader.take_all())
        return self.wait("readuntil")

    cdef object incomplete(self, bytes data):
        """Return or raise the result if the stream has ended without a separator."""
        raise IncompleteReadError(data, None)

    cdef int overrun(self, str message, Py_ssize_t consumed, Py_ssize_t end) except -1:
        """Raise the exception for a line above the limit. `end` is the position after the line."""
        raise LimitOverrunError(message, consumed)


@cython.final
cdef class ReadLine(ReadUntil):
    """A call of readline() or of __anext__()."""

    cdef bint iterates

    cdef str qualname(self):
        return "StreamReader.__anext__" if self.iterates else "StreamReader.readline"

    cdef object incomplete(self, bytes data):
        if self.iterates and not data:
            raise StopAsyncIteration
        return data

    cdef int overrun(self, str message, Py_ssize_t consumed, Py_ssize_t end) except -1:
        self.reader.drop(end)
        self.reader.resume_transport()
        raise ValueError(message)
