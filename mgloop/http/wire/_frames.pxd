# SPDX-License-Identifier: GPL-2.0-only
"""Declare the reader and the writer of WebSocket frames.

They convert bytes to messages and control frames, and back. They know nothing of asyncio, HTTP or
ASGI. _frames.pyx explains how they work.
"""


cdef extern from "framing.h":
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
    ctypedef struct mgl_utf8:
        unsigned char missing
        unsigned char low
        unsigned char high


cdef class FrameReader:
    # The result of advance(). `payload`: the bytes of a message or of a control frame, or the str
    # of a text message. `code` and `reason`: those of a close frame or of a failure.
    cdef readonly object payload
    cdef readonly int code
    cdef readonly str reason

    # The data that has been fed and is not parsed yet.
    cdef bytes piece                # the one that is being parsed, or None
    cdef Py_ssize_t position        # the first byte in `piece` that is not parsed
    cdef list pieces                # those after `piece`
    cdef Py_ssize_t next_piece      # the index in `pieces` of the next one

    # The frame that is being read.
    cdef int state
    cdef unsigned char header[14]
    cdef int header_seen            # bytes in `header`
    cdef int header_size            # bytes that `header` needs: 2 first, then all of them
    cdef unsigned char key[4]       # the masking key
    cdef int opcode
    cdef bint fin
    cdef Py_ssize_t missing         # bytes of its payload that are still to come
    cdef Py_ssize_t seen            # bytes of its payload that have been read
    cdef unsigned char control[125]  # the payload of a control frame

    # The message that is being read. The buffer is used unless a message arrives in one part.
    cdef int kind                   # WS_TEXT or WS_BINARY; WS_CONTINUATION between messages
    cdef bint compressed
    cdef mgl_utf8 utf8
    cdef char *buffer
    cdef Py_ssize_t used            # bytes in the buffer
    cdef Py_ssize_t capacity        # of the buffer, in bytes

    cdef Py_ssize_t max_size        # most bytes of a message; PY_SSIZE_T_MAX for no limit
    cdef object decompressor        # created for the first compressed message
    cdef int window_bits            # 0: compression was not negotiated
    cdef bint takeover              # the decompressor is kept from message to message
    cdef int streams_ended          # deflate streams that have ended within this message

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
    cdef object compressor          # kept from message to message if `takeover` is true
    cdef int window_bits            # 0: compression was not negotiated
    cdef bint takeover

    cpdef list message(self, object data)
    cdef bytes deflate(self, object data)

cpdef bytes control_frame(int opcode, bytes payload)
cpdef bytes close_frame(int code, str reason)
cpdef bint sendable(int code) noexcept
