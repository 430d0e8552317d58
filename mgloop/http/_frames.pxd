# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._frames: bytes in, messages and control frames out, and back; nothing of
asyncio, of HTTP or of ASGI.
"""


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* Of a frame; a control frame has bit 3. */
    enum {
        WS_CONTINUATION = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10
    };

    /* What advance() returns besides the opcodes of a message or of a control frame. */
    enum { WS_NEED_DATA = -1, WS_FAILED = -2 };
    """
    enum:
        WS_CONTINUATION
        WS_TEXT
        WS_BINARY
        WS_CLOSE
        WS_PING
        WS_PONG
    enum:
        WS_NEED_DATA
        WS_FAILED


cdef extern from *:
    """
    /* What has been seen of a character: how many bytes are missing, and the range of the next. */
    typedef struct { unsigned char missing, low, high; } mgl_utf8;
    """
    ctypedef struct mgl_utf8:
        unsigned char missing
        unsigned char low
        unsigned char high


cdef class FrameReader:
    # What advance() has found: bytes, or str for a text; of a close frame or of a failure the code
    # and the reason.
    cdef readonly object payload
    cdef readonly int code
    cdef readonly str reason

    # The piece that is being taken apart, and those behind it.
    cdef bytes piece
    cdef Py_ssize_t position
    cdef list pieces
    cdef Py_ssize_t next_piece      # the index in `pieces` of the one that follows

    # The frame.
    cdef int state
    cdef unsigned char header[14]
    cdef int header_seen
    cdef int header_size
    cdef unsigned char key[4]
    cdef int opcode
    cdef bint fin
    cdef Py_ssize_t missing         # of its payload
    cdef Py_ssize_t seen            # of its payload
    cdef unsigned char control[125]

    # The message: what is there of it, while it does not arrive all at once.
    cdef int kind                   # WS_TEXT, WS_BINARY; WS_CONTINUATION between messages
    cdef bint compressed
    cdef mgl_utf8 utf8
    cdef char *buffer
    cdef Py_ssize_t used
    cdef Py_ssize_t room

    cdef Py_ssize_t max_size        # of a message; PY_SSIZE_T_MAX if there is no limit
    cdef object decompressor        # made for the first compressed message
    cdef int window_bits            # 0: no compression was agreed upon
    cdef bint takeover
    cdef int streams_ended          # within this message

    cpdef int feed(self, bytes data) except -1
    cpdef int advance(self) except? -1
    cdef bint has_data(self) noexcept
    cdef int consume(self, Py_ssize_t size) except -1
    cdef bytes take_piece(self)
    cdef int begin_frame(self) except? -1
    cdef int take_payload(self) except? -1
    cdef int take_whole(self, const unsigned char *data, Py_ssize_t size) except? -1
    cdef int take_part(self, const unsigned char *data, Py_ssize_t size) except? -1
    cdef int end_message(self) except? -1
    cdef int end_control(self) except? -1
    cdef int end(self, int state) except? -1
    cdef int forget(self) except? -1
    cdef int deliver(self, const char *data, Py_ssize_t size) except? -1
    cdef int append(self, const char *data, Py_ssize_t size) except? -1
    cdef int inflate(self, bytes data) except? -1
    cdef int fail(self, int code, str reason) except? -1
    cdef int fail_size(self) except? -1


cdef class FrameWriter:
    cdef object compressor          # kept from message to message, unless `takeover` is off
    cdef int window_bits            # 0: no compression was agreed upon
    cdef bint takeover

    cpdef list message(self, object data)
    cdef bytes deflate(self, object data)

cpdef bytes control_frame(int opcode, bytes payload)
cpdef bytes close_frame(int code, str reason)
cpdef bint sendable(int code) noexcept
