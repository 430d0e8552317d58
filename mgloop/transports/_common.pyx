# SPDX-License-Identifier: GPL-2.0-only
"""Implement the flow control and the reports that socket transports and pipes share.

The transports have no common base class, because a pipe is not a watcher. These are functions over
the WriteLimits of a transport and over the transport itself. They are native because has_exceeded()
and has_drained() run once per write. Only the loop's thread may call them. They own no state.
"""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from mgloop._loop cimport LoopCore, mgl_count

from asyncio.log import logger

from .. import _stdlib


cdef extern from "Python.h":
    int PyContext_Exit(PyObject *context) except -1
    int try_enter "PyContext_Enter"(PyObject *context)
    void PyErr_Clear()
    Py_ssize_t PyNumber_AsSsize_t(object number, PyObject *overflow) except? -1
    Py_ssize_t PY_SSIZE_T_MAX


cdef enum:
    DEFAULT_HIGH = 64 * 1024    # default high-water mark in bytes, as in asyncio


cdef int set_limits(WriteLimits *limits, object high, object low) except -1:
    """Set a transport's high-water and low-water marks, in bytes.

    A mark that is None becomes a multiple of the other one. Raise ValueError unless
    high >= low >= 0, and TypeError if a mark is not an integer.
    """
    # Convert each mark once before the comparison, because an int subclass may override the
    # comparison operators. A mark beyond Py_ssize_t becomes the largest Py_ssize_t.
    cdef Py_ssize_t low_size = 0, high_size
    if low is not None:
        low_size = PyNumber_AsSsize_t(low, NULL)
    if high is not None:
        high_size = PyNumber_AsSsize_t(high, NULL)
    elif low is None:
        high_size = DEFAULT_HIGH
    else:
        high_size = 4 * min(max(low_size, -1), PY_SSIZE_T_MAX // 4)
    if low is None:
        low_size = high_size // 4
    if not high_size >= low_size >= 0:
        raise ValueError(f"high ({high_size}) must be >= low ({low_size}) must be >= 0")
    limits.high = high_size
    limits.low = low_size
    return 0


cdef int pause_above_limit(WriteLimits *limits, Py_ssize_t pending, LoopCore loop,
                           object transport, object protocol, object context) except -1:
    """Call pause_writing() if `pending` bytes exceed the high-water mark."""
    if has_exceeded(limits, pending):
        if loop is not None:
            mgl_count(&loop.count.pauses, 1)
        call_flow_control("pause_writing", loop, transport, protocol, context)
    return 0


cdef int resume_below_limit(WriteLimits *limits, Py_ssize_t pending, LoopCore loop,
                            object transport, object protocol, object context) except -1:
    """Call resume_writing() if `pending` bytes no longer exceed the low-water mark."""
    if has_drained(limits, pending):
        call_flow_control("resume_writing", loop, transport, protocol, context)
    return 0


cdef int call_flow_control(str method, LoopCore loop, object transport, object protocol,
                           object context) except -1:
    """Call the protocol's pause_writing() or resume_writing() and report its exceptions.

    The transport's context, if it has one, may already be entered, when data_received() calls
    write().
    """
    cdef bint entered = False
    if context is not None:
        entered = try_enter(<PyObject *>context) == 0
        if not entered:
            PyErr_Clear()
    try:
        getattr(protocol, method)()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as exc:
        report_exception(loop, transport, protocol, f"protocol.{method}() failed", exc)
    finally:
        if entered:
            PyContext_Exit(<PyObject *>context)
    return 0


cdef int report_exception(LoopCore loop, object transport, object protocol, str message,
                          object exc) except -1:
    """Pass an exception to the loop's exception handler."""
    loop.call_exception_handler({
        "message": message,
        "exception": exc,
        "transport": transport,
        "protocol": protocol,
    })
    return 0


cdef int report_fatal(LoopCore loop, object transport, object protocol, str message, object exc,
                      bint expected) except -1:
    """Report an exception that ends a transport.

    An `expected` one, such as an OSError because the peer has gone, is only logged in debug mode.
    """
    if not expected:
        report_exception(loop, transport, protocol, message, exc)
    elif loop._debug:
        logger.debug("%r: %s", transport, message, exc_info=exc)
    return 0


cdef int count_lost_write(unsigned int *lost, str warning) except -1:
    """Count a write after the end of the transport; log a warning after repeated writes."""
    if lost[0] >= <unsigned int>_stdlib.LOG_THRESHOLD:
        logger.warning(warning)
    lost[0] += 1
    return 0


cdef list chunks_of(object lines):
    """Return the non-empty bytes-like objects of an iterable as bytes objects, for writelines()."""
    cdef list chunks = []
    for data in lines:
        if not PyBytes_CheckExact(data):
            data = bytes(memoryview(data))
        if PyBytes_GET_SIZE(data):
            chunks.append(data)
    return chunks
