# SPDX-License-Identifier: GPL-2.0-only
"""Implement the interface for compiled programs: protocols whose methods are C functions.

A program subclasses Protocol in Cython. Its methods are entries of a table of C functions. Only
data_received() and write_bytes() run per packet. A native Stream calls the first one directly, with
a pointer to the data in a buffer that no other read uses meanwhile. The second one writes to a
native Stream without a bytes object. Everything else, and every other loop and transport, uses the
Python methods of the class Methods. So a compiled protocol works on asyncio's loop, over TLS and
over pipes.

A Transport wraps the loop's transport and holds a reference to it. A protocol and its Transport
are made together, so that compiled code never meets None. Only the thread of the loop may use these
objects. This module is loaded on first use; it then registers itself in transports/_receiving.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject

from mgloop._loop cimport LoopCore, own_thread
from mgloop.transports._receiving cimport CompiledCalls, set_compiled
from mgloop.transports._stream cimport Stream

from asyncio import events

from ._loop import VERSION


cdef extern from "attributes.h":
    bint mgl_has_attributes(PyObject *o)


cdef extern from *:
    """
    /* Return whether no program can replace a method of the object or of its type. */
    static int mgl_has_fixed_methods(PyObject *o) {
        PyTypeObject *type = Py_TYPE(o);
        int fixed = !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) ||
                    type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE;
        return fixed && type->tp_dictoffset == 0;
    }
    """
    bint mgl_has_fixed_methods(PyObject *o)


cdef extern from *:
    """
    #include "result.h"

    #define mgl_call_data_received(p, data, size) \\
        mgl_checked_result((p)->__pyx_vtab->data_received(p, data, size), "data_received")
    """
    int mgl_call_data_received(Protocol_1 p, const char *data, Py_ssize_t size) except -1
    # For a function that passes the exception on by its result.
    int mgl_deliver "mgl_call_data_received"(
        Protocol_1 p, const char *data, Py_ssize_t size) noexcept


cdef enum:
    INTERFACE_VERSION = 1       # the number at the end of the names in _compiled.pxd


def raise_for_version(module, name, kinds):
    """Raise ImportError if *name* is one of the classes *kinds* in another version.

    Otherwise raise AttributeError, as for a name that the module named *module* lacks.
    """
    kind, _, version = name.rpartition("_")
    if kind in kinds and version.isdigit():
        raise ImportError(
            f"this module was built against version {version} of mgloop's compiled interface, and"
            f" mgloop {VERSION} has version {INTERFACE_VERSION}: build the module again with this"
            " mgloop")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def __getattr__(name):
    """Raise ImportError for the classes of another version of the interface."""
    raise_for_version(__name__, name, ("Methods", "Protocol", "Transport"))


cdef class Transport_1:
    """The transport of a compiled protocol.

    It has write_bytes() for compiled code, and all methods of the loop's transport, which is the
    attribute `wrapped`.
    """

    def __cinit__(self, transport=None):
        if transport is not None:
            connect(self, transport)

    cdef int write_bytes(self, const char *data, Py_ssize_t size) except -1:
        cdef object wrapped = self.wrapped
        cdef Stream stream
        if type(wrapped) is not Stream or mgl_has_attributes(<PyObject *>wrapped) or size < 0:
            return write_copy(self, data, size)
        stream = <Stream>wrapped
        if stream.loop._debug:
            check_use(self)
        stream._write(None, data, size)
        return 0

    def close(self):
        """Send the write buffer, then close; see asyncio.Transport.close()."""
        self.closed = True
        wrapped_of(self).close()

    def abort(self):
        """Discard the write buffer and close."""
        self.closed = True
        wrapped_of(self).abort()

    def __getattr__(self, name):
        if self.wrapped is None:
            raise AttributeError(f"{name!r}: the transport is not connected")
        return getattr(self.wrapped, name)

    def __repr__(self):
        return f"<mgloop.Transport of {self.wrapped!r}>"


cdef int connect(Transport_1 self, object transport) except -1:
    if isinstance(transport, Transport_1):
        transport = wrapped_of(transport)
    self.loop = events._get_running_loop()
    self.wrapped = transport
    return 0


cdef object wrapped_of(Transport_1 self):
    if self.wrapped is None:
        raise RuntimeError("the transport is not connected")
    return self.wrapped


cdef int write_copy(Transport_1 self, const char *data, Py_ssize_t size) except -1:
    """Write to a transport that takes Python objects only."""
    cdef object wrapped = wrapped_of(self)
    if size < 0:
        raise ValueError("the size of the data is negative")
    check_use(self)
    wrapped.write(PyBytes_FromStringAndSize(data, size))
    return 0


cdef int check_use(Transport_1 self) except -1:
    """In debug mode, raise RuntimeError in another thread and after the end of the transport."""
    cdef object loop = self.loop
    if loop is None or not loop.get_debug():
        return 0
    if isinstance(loop, LoopCore):
        own_thread(loop)
    elif loop.is_running() and events._get_running_loop() is not loop:
        raise RuntimeError(
            "Non-thread-safe operation invoked on an event loop other than the current one")
    if self.closed:
        raise RuntimeError("write_bytes() was called after the transport was closed")
    return 0


cdef class Methods_1:
    """The Python methods of a compiled protocol, which call the C functions."""

    def __cinit__(self):
        # The methods below rely on this.
        if not isinstance(self, Protocol_1):
            raise TypeError("subclass mgloop.Protocol instead")

    def connection_made(self, transport):
        """Begin to use the transport, as asyncio.BaseProtocol.connection_made()."""
        cdef Protocol_1 protocol = <Protocol_1>self
        if isinstance(transport, Transport_1):
            protocol.transport = transport
        else:
            if protocol.transport is None or protocol.transport.wrapped is not None:
                protocol.transport = Transport_1.__new__(Transport_1)
            connect(protocol.transport, transport)
        protocol.connection_made(protocol.transport)

    def data_received(self, data):
        """Process received data, a bytes-like object."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            mgl_call_data_received(<Protocol_1>self, <const char *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def eof_received(self):
        """Return whether the connection stays open for writing after the end of the data."""
        return (<Protocol_1>self).eof_received()

    def connection_lost(self, exc):
        """Process the end of the connection; *exc* is an exception or None."""
        cdef Protocol_1 protocol = <Protocol_1>self
        if protocol.transport is not None:
            protocol.transport.closed = True
        protocol.connection_lost(exc)

    def pause_writing(self):
        """Stop writing, because the write buffer is above its high-water mark."""
        (<Protocol_1>self).pause_writing()

    def resume_writing(self):
        """Write again."""
        (<Protocol_1>self).resume_writing()


cdef class Protocol_1(Methods_1):
    """A protocol with methods in Cython, to be subclassed.

    The class is mgloop.Protocol. It works like asyncio.Protocol, on every loop.
    """

    def __cinit__(self):
        self.transport = Transport_1.__new__(Transport_1)

    cdef int connection_made(self, Transport_1 transport) except -1:
        return 0

    cdef int data_received(self, const char *data, Py_ssize_t size) except -1:
        return 0

    cdef bint eof_received(self) except -1:
        return False

    cdef int connection_lost(self, object exc) except -1:
        return 0

    cdef int pause_writing(self) except -1:
        return 0

    cdef int resume_writing(self) except -1:
        return 0


# ------------------------------------------------------------------ for native streams ----

cdef object DATA_RECEIVED = Methods_1.data_received


cdef bint accepts(object protocol) except -1:
    """Return whether data_received() of the protocol is certainly its C function.

    A subclass in Python can replace the method, also later and on an instance.
    """
    return (isinstance(protocol, Protocol_1) and mgl_has_fixed_methods(<PyObject *>protocol)
            and type(protocol).data_received is DATA_RECEIVED)


cdef int deliver(PyObject *protocol, const char *data, Py_ssize_t size) noexcept:
    return mgl_deliver(<Protocol_1><object>protocol, data, size)


cdef CompiledCalls CALLS
CALLS.accepts = accepts
CALLS.deliver = deliver
set_compiled(&CALLS)


# ------------------------------------------------------------------ callbacks ----

cdef class FunctionCall:
    """A call of a C function, which the loop makes through a handle."""

    cdef callback function
    cdef object argument

    def __call__(self):
        if self.function is NULL:       # made by Python code, not by new_call()
            raise TypeError("FunctionCall is made by call_soon() and call_later()")
        self.function(self.argument)

    def __repr__(self):
        return f"<C function at {<size_t>self.function:#x} with {self.argument!r}>"


cdef FunctionCall new_call(callback function, object argument):
    if function is NULL:
        raise ValueError("the function is NULL")
    cdef FunctionCall call = FunctionCall.__new__(FunctionCall)
    call.function = function
    call.argument = argument
    return call


cdef object call_soon(object loop, callback function, object argument):
    return loop.call_soon(new_call(function, argument))


cdef object call_later(object loop, double delay, callback function, object argument):
    return loop.call_later(delay, new_call(function, argument))
