# SPDX-License-Identifier: GPL-2.0-only
"""Declare the interface for compiled programs, which read it through `cimport mgloop`.

This file is installed, together with __init__.pxd, and it declares nothing of mgloop's internals.
The names of its classes end with the version of the interface. A compiled module looks the classes
up by these names when it is imported, and gets an ImportError if mgloop has another version. So
change the version, here and in _compiled.pyx, with every change of a field, of a method, or of
their order.
"""


# The transport that a Protocol writes to. All other methods are those of the loop's own transport.
cdef class Transport_1:
    cdef readonly object wrapped        # the loop's own transport; None before connection_made()
    cdef object loop                    # the loop that runs the transport, or None
    cdef bint closed                    # close(), abort() or connection_lost() was called

    # Send data[:size], or copy it to send it later; the memory is not used after the call. Raise
    # RuntimeError before connection_made() and after write_eof().
    cdef int write_bytes(self, const char *data, Py_ssize_t size) except -1


# The methods of a Protocol for loops that know Python methods only.
cdef class Methods_1:
    pass


# A protocol to subclass. The loop calls each method as asyncio calls that of asyncio.Protocol.
cdef class Protocol_1(Methods_1):
    cdef readonly Transport_1 transport     # never None; connected before connection_made()

    cdef int connection_made(self, Transport_1 transport) except -1
    # The memory belongs to mgloop and is valid during the call only.
    cdef int data_received(self, const char *data, Py_ssize_t size) except -1
    # Return True to keep the connection open for writing.
    cdef bint eof_received(self) except -1
    cdef int connection_lost(self, object exc) except -1
    cdef int pause_writing(self) except -1
    cdef int resume_writing(self) except -1


# A function for call_soon() and call_later().
ctypedef int (*callback)(object argument) except -1

# Call function(argument) in the next iteration of the loop, or in `delay` seconds, and return the
# loop's handle. Exceptions go to the exception handler of the loop.
cdef object call_soon(object loop, callback function, object argument)
cdef object call_later(object loop, double delay, callback function, object argument)
