# SPDX-License-Identifier: GPL-2.0-only
"""Declare the functions that check, measure and copy the headers of a response."""

from mgloop.http.wire._site cimport mgl_outgoing


cdef struct HeaderInfo:
    # The headers of a message: their size, and their meaning for the response.
    Py_ssize_t size     # bytes of all header lines
    long long length    # the value of Content-Length, or -1
    bint chunked        # Transfer-Encoding: chunked
    bint closes         # Connection: close
    bint upgrades       # Connection: upgrade
    bint date           # there is a Date
    bint server         # there is a Server
    bint omits          # there are headers that put_headers() omits


# Return the data if it is a bytes object, else a copy of it as bytes.
cdef bytes as_bytes(object data)

# Return the headers as a list or tuple of pairs of bytes objects, which does not change before
# Python code runs again. This function may run code of the application, which may send other
# messages. So check the state of the response afterwards.
cdef object plain_headers(object headers)

# Check the headers from plain_headers() and fill in `info`; raise RuntimeError for an invalid
# header. `trailing`: they are trailers, which must not contain headers of the framing.
cdef int measure_headers(object plain, bint trailing, HeaderInfo *info) except -1

# Store the meaning of a header that the server handles itself in `info`; raise RuntimeError if it
# is invalid. `kind`: from mgl_header_kind(), but not MGL_OTHER_HEADER.
cdef int interpret_header(int kind, bytes value, bint trailing, HeaderInfo *info) except -1

# Copy the lines of headers that measure_headers() has checked into the buffer.
cdef int put_headers(mgl_outgoing *out, object plain, HeaderInfo *info) noexcept

# Return a list or tuple with the items of `items`, which does not change before Python code runs
# again.
cdef object settled(object items)
