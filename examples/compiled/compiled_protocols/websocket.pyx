# SPDX-License-Identifier: GPL-2.0-only
"""Implement a WebSocket server (RFC 6455) that passes frames to compiled code.

WebSocket does the opening handshake, checks and unmasks the frames of the client, and answers Ping
and Close. A subclass gets the other frames with a pointer to their payload. Extensions, such as
compression, are not supported, and the encoding of text is not checked.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from compiled_protocols.framed cimport Framed, load, store

from . import handshake


cdef extern from "<string.h>":
    void *memmem(const void *data, size_t size, const void *wanted, size_t wanted_size) nogil


cdef enum:
    MAX_HEAD = 8 * 1024         # bytes of the opening request
    MAX_PAYLOAD = 1024 * 1024   # bytes of a frame
    KEPT = 4 * 1024             # bytes of memory that an idle connection may keep

cdef enum:
    # Opcodes. Those of control frames have the bit CONTROL.
    CONTINUATION = 0
    BINARY = 2
    CONTROL = 8
    CLOSE = 8
    PING = 9
    PONG = 10

cdef enum:
    # Codes of Close frames.
    PROTOCOL_ERROR = 1002
    TOO_BIG = 1009


cdef void unmask(char *target, const char *source, Py_ssize_t size, const char *key) noexcept:
    """Copy the payload of a frame, combined with the key of four bytes by exclusive or."""
    cdef uint64_t word, wide
    cdef Py_ssize_t i = 0
    memcpy(&wide, key, 4)
    memcpy(<char *>&wide + 4, key, 4)
    while i + 8 <= size:
        memcpy(&word, source + i, 8)
        word ^= wide
        memcpy(target + i, &word, 8)
        i += 8
    while i < size:
        target[i] = source[i] ^ key[i & 3]
        i += 1


cdef class WebSocket(Framed):
    """The server's side of a WebSocket; a subclass implements frame_received()."""

    cdef bint opened            # the handshake is complete
    cdef bint in_message        # a message has begun, and its last frame has not arrived
    cdef bytearray payload      # memory for the unmasked payload

    def __cinit__(self):
        self.payload = bytearray()

    cdef int frame_received(self, int opcode, bint final,
                            const char *payload, Py_ssize_t size) except -1:
        """Process a frame of a message. The payload is valid during the call only."""
        return 0

    cdef int send_frame(self, int opcode, bint final,
                        const char *payload, Py_ssize_t size) except -1:
        cdef char head[10]
        cdef int used = 2
        head[0] = <char>(opcode | final << 7)
        if size < 126:
            head[1] = <char>size
        elif size < 1 << 16:
            head[1] = 126
            store(head + 2, size, 2)
            used = 4
        else:
            head[1] = 127
            store(head + 2, size, 8)
            used = 10
        return self.send(head, used, payload, size)

    cdef int close(self, int code) except -1:
        """Send a Close frame and end the connection."""
        cdef char payload[2]
        store(payload, code, 2)
        self.send_frame(CLOSE, True, payload, 2)
        return self.finish()

    cdef Py_ssize_t take_frame(self, const char *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t length, head
        cdef int opcode, error
        if not self.opened:
            return self.take_request(data, size)
        if size < 2:
            return 0
        length = data[1] & 0x7F
        head = 2 + (8 if length == 127 else 2 if length == 126 else 0) + 4
        error = self.check_start(data[0], data[1])
        if not error and size >= head and length >= 126:
            error = check_length(load(data + 2, <int>head - 6), <int>head - 6)
            length = <Py_ssize_t>load(data + 2, <int>head - 6)
        if error:
            self.close(error)
            return 0
        if size < head or size < head + length:
            return 0
        opcode = data[0] & 0x0F
        if PyByteArray_GET_SIZE(self.payload) < length:
            PyByteArray_Resize(self.payload, length)
        unmask(PyByteArray_AS_STRING(self.payload), data + head, length, data + head - 4)
        if opcode & CONTROL:
            self.control_received(opcode, PyByteArray_AS_STRING(self.payload), length)
        else:
            self.in_message = not data[0] & 0x80
            self.frame_received(opcode, not self.in_message,
                                PyByteArray_AS_STRING(self.payload), length)
        if length > KEPT:
            self.payload = bytearray()
        return head + length

    cdef int check_start(self, unsigned char first, unsigned char second) noexcept:
        """Return 0 if a client may send a frame that begins with these bytes, else an error code.
        """
        cdef int opcode = first & 0x0F
        if first & 0x70 or not second & 0x80 or opcode & 7 > BINARY:
            return PROTOCOL_ERROR       # reserved bits, not masked, a reserved opcode
        if opcode & CONTROL:            # not in fragments, and at most 125 bytes
            return 0 if first & 0x80 and second & 0x7F < 126 else PROTOCOL_ERROR
        return 0 if self.in_message == (opcode == CONTINUATION) else PROTOCOL_ERROR

    cdef int control_received(self, int opcode, const char *payload, Py_ssize_t size) except -1:
        if opcode == PING:
            return self.send_frame(PONG, True, payload, size)
        if opcode != CLOSE:
            return 0
        if size > 0 and not (size >= 2 and may_be_sent(<int>load(payload, 2))):
            return self.close(PROTOCOL_ERROR)
        self.send_frame(CLOSE, True, payload, 2 if size else 0)
        return self.finish()

    cdef Py_ssize_t take_request(self, const char *data, Py_ssize_t size) except -1:
        """Answer the HTTP request of the opening handshake, and return its size."""
        cdef const char *end = <const char *>memmem(data, size, b"\r\n\r\n", 4)
        cdef Py_ssize_t used = end + 4 - data if end is not NULL else 0
        cdef bytes response
        if used == 0 and size <= MAX_HEAD:
            return 0
        try:
            if used == 0 or used > MAX_HEAD:
                handshake.refuse("431 Request Header Fields Too Large")
            response = handshake.accept(data[:used - 4])
            self.opened = True
        except handshake.RefusedError as exc:
            response = exc.args[0]
        self.send(response, len(response), NULL, 0)
        if not self.opened:
            self.finish()
        return used


cdef int check_length(uint64_t length, int size) noexcept:
    """Return 0 for a length that a field of `size` bytes may have, else an error code."""
    if length < (126 if size == 2 else 1 << 16):
        return PROTOCOL_ERROR           # a shorter field exists
    return 0 if length <= MAX_PAYLOAD else TOO_BIG


cdef bint may_be_sent(int code) noexcept:
    """Return whether a Close frame may have the code (RFC 6455, section 7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


cdef class EchoSocket(WebSocket):
    """Send each frame back."""

    cdef int frame_received(self, int opcode, bint final,
                            const char *payload, Py_ssize_t size) except -1:
        return self.send_frame(opcode, final, payload, size)
