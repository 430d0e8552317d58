# SPDX-License-Identifier: GPL-2.0-only
"""The framing of WebSocket (RFC 6455) on the side of a server, with permessage-deflate (RFC 7692).

The module is native because it runs per packet: it parses headers, and unmasks and checks payloads,
without intermediate objects. The stream is passed to a FrameReader in pieces of any size, and is
parsed on demand:

    feed(piece); while (kind = advance()) ...

So the caller decides how much is parsed and decompressed before the application has received it.
Data after that stays in the form in which it arrived. advance() returns

    WS_TEXT, WS_BINARY            after a whole message,
    WS_PING, WS_PONG, WS_CLOSE    after a control frame,
    WS_NEED_DATA                  if the pieces do not hold a whole message or control frame,
    WS_FAILED                     after a violation of the protocol, and from then on always;
                                  `code` is the close code to send to the peer.

The reader is in one of these states:

    state    bytes that it needs                    next state
    HEADER   2 bytes, then as many as these         PAYLOAD, or FAILED if the frame is not allowed
             announce: 0, 2 or 8 of the length,     (mgl_ws_allowed() in framing.h)
             and 4 of the masking key
    PAYLOAD  `missing` bytes                        HEADER, for the next frame
    ENDED    none: a close frame has been read      ENDED
    FAILED   none                                   FAILED

If all of a message lies in one piece, it is unmasked directly into the bytes object that is
delivered or from which its text is decoded. Other messages are collected in a buffer. The buffer
grows with the bytes that have arrived, not with the length that a header announces. The announced
length is compared with the limit when the header has been read. Compressed data is decompressed as
it arrives, up to one byte more than the limit. The UTF-8 of a text is also checked as it arrives,
so that an invalid text fails immediately (close code 1007).

Memory: a reader owns its buffer, and frees it after each message. A reader and a writer belong to
the thread of their loop.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

try:
    import zlib
except ImportError:         # an interpreter without zlib: deflate.py does not negotiate compression
    zlib = None


cdef extern from "framing.h":
    bint allowed "mgl_ws_allowed"(int opcode, bint unfinished) noexcept nogil
    bint may_send "mgl_ws_sendable"(int code) noexcept nogil
    void unmask "mgl_ws_unmask"(unsigned char *out, const unsigned char *data, size_t n,
                                const unsigned char *key, size_t phase) noexcept nogil
    bint check_utf8 "mgl_utf8_feed"(mgl_utf8 *u, const unsigned char *p, size_t n) noexcept nogil
    const Py_ssize_t PY_SSIZE_T_MAX


cdef enum State:
    HEADER
    PAYLOAD
    ENDED
    FAILED

cdef enum:
    SMALL = 4096                # most bytes of a text that is unmasked on the stack
    INITIAL_CAPACITY = 1024     # the first capacity of the buffer, in bytes
    # Shorter messages (in bytes) hardly shrink, and compressing them costs more than sending them.
    WORTH_COMPRESSING = 64
    # The header and the payload of a longer message (in bytes) are written separately, instead of
    # being copied into one object.
    LARGE = 64 * 1024
    RSV1 = 0x40
    MAX_STREAMS = 16            # most deflate streams in one message
    MEMORY_LEVEL = 5            # zlib's memLevel: 16 KiB of hash table instead of 128 KiB

cdef bytes FLUSHED = b"\x00\x00\xff\xff"     # the end of each compressed message, which is not sent


cpdef bint sendable(int code) noexcept:
    """Return whether a close frame may contain `code`."""
    return may_send(code)


@cython.final
cdef class FrameReader:
    """Parse the frames that a client sends.

    `max_size`: most bytes of a message after decompression; 0 for no limit. `window_bits`: the size
    of the negotiated compression window (its binary logarithm); 0 without compression. `takeover`:
    whether a compressed message may refer to earlier ones.
    """

    def __cinit__(self, Py_ssize_t max_size=0, int window_bits=0, bint takeover=True):
        self.max_size = max_size if max_size > 0 else PY_SSIZE_T_MAX
        self.window_bits = window_bits
        self.takeover = takeover
        self.pieces = []
        self.header_size = 2
        self.reason = ""

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    cpdef int feed(self, bytes data) except -1:
        """Append `data` to the stream; ignore it after a close frame or a failure."""
        if self.state >= ENDED or not data:
            return 0
        if self.piece is None:
            self.piece = data
            self.position = 0
        else:
            self.pieces.append(data)
        return 0

    cdef bint has_data(self) noexcept:
        return self.piece is not None

    cpdef int advance(self) except? -1:
        """Parse up to the end of the next message or control frame, and return its opcode.

        Return WS_NEED_DATA if it is incomplete, WS_FAILED after a violation of the protocol. Store
        the results in `payload`, `code` and `reason`.
        """
        cdef Py_ssize_t size
        cdef int kind, wanted
        while True:
            if self.state == FAILED:
                return WS_FAILED
            if self.state == ENDED:
                return WS_NEED_DATA
            # A frame with an empty payload is complete without further bytes.
            if self.state == PAYLOAD and (self.missing == 0 or self.piece is not None):
                kind = self.take_payload()
                if kind != WS_NEED_DATA:
                    return kind
                continue
            if self.piece is None:
                return WS_NEED_DATA
            size = PyBytes_GET_SIZE(self.piece) - self.position
            wanted = self.header_size - self.header_seen
            if size > wanted:
                size = wanted
            memcpy(&self.header[self.header_seen],
                   PyBytes_AS_STRING(self.piece) + self.position, size)
            self.header_seen += size
            self.consume(size)
            if self.header_seen == self.header_size and self.begin_frame() == WS_FAILED:
                return WS_FAILED

    cdef inline int consume(self, Py_ssize_t size) except -1:
        """Skip `size` bytes of the piece, which have been parsed."""
        self.position += size
        if self.position == PyBytes_GET_SIZE(self.piece):
            self.position = 0
            self.piece = self.take_piece() if self.pieces else None
        return 0

    cdef bytes take_piece(self):
        """Remove the first of the pieces and return it.

        list.pop(0) would move all other pieces each time, which takes quadratic time.
        """
        cdef bytes piece = self.pieces[self.next_piece]
        self.pieces[self.next_piece] = None
        self.next_piece += 1
        # This moves no more entries than have been removed since it was last done.
        if 2 * self.next_piece >= len(self.pieces):
            del self.pieces[:self.next_piece]
            self.next_piece = 0
        return piece

    cdef int begin_frame(self) except? -1:
        """Parse the header: first its 2 fixed bytes, and in a second call all of it."""
        cdef unsigned char first = self.header[0]
        cdef unsigned char second = self.header[1]
        cdef uint64_t length = second & 0x7F
        cdef int extended = 8 if length == 127 else 2 if length == 126 else 0
        cdef int i
        if self.header_size == 2:
            self.opcode = first & 0x0F
            self.fin = first & 0x80
            if first & 0x30:
                return self.fail(1002, "reserved bits must be 0")
            if not allowed(self.opcode, self.kind != WS_CONTINUATION):
                if self.opcode == WS_CONTINUATION:
                    return self.fail(1002, "unexpected continuation frame")
                if self.opcode <= WS_BINARY:
                    return self.fail(1002, "expected a continuation frame")
                return self.fail(1002, "invalid opcode")
            if first & RSV1 and (
                    not self.window_bits or self.opcode not in (WS_TEXT, WS_BINARY)):
                return self.fail(1002, "reserved bits must be 0")
            if self.opcode & 8:
                if not self.fin:
                    return self.fail(1002, "fragmented control frame")
                if length > 125:
                    return self.fail(1002, "control frame too long")
            if not second & 0x80:
                return self.fail(1002, "frame is not masked")
            self.header_size = 2 + extended + 4
            return 0

        if extended:
            length = 0
            for i in range(extended):
                length = length << 8 | self.header[2 + i]
            if length >> 63:
                return self.fail(1002, "invalid frame length")
        memcpy(self.key, &self.header[2 + extended], 4)
        if self.opcode == WS_TEXT or self.opcode == WS_BINARY:
            self.kind = self.opcode
            self.compressed = first & RSV1
            memset(&self.utf8, 0, sizeof(self.utf8))
        if not self.opcode & 8 and not self.compressed and (
                length > <uint64_t>(self.max_size - self.used)):
            return self.fail_size()
        # The length may have up to 63 bits, because the size of a compressed message is not limited
        # before it is decompressed.
        self.missing = <Py_ssize_t>length
        self.seen = 0
        self.state = PAYLOAD
        self.header_seen = 0
        self.header_size = 2
        return 0

    cdef int take_payload(self) except? -1:
        """Read the part of the frame's payload that has arrived; return as advance() does."""
        cdef Py_ssize_t size = 0
        cdef int kind
        cdef const unsigned char *data = NULL
        cdef bytes held = self.piece        # `data` points into it
        if held is not None:
            size = min(self.missing, PyBytes_GET_SIZE(held) - self.position)
            data = <const unsigned char *>PyBytes_AS_STRING(held) + self.position
        if self.opcode & 8:
            unmask(&self.control[self.seen], data, size, self.key, self.seen)
            kind = WS_NEED_DATA
        elif size == self.missing and self.fin and self.opcode and not self.seen:
            kind = self.take_whole(data, size)
        else:
            kind = self.take_part(data, size)
        if kind == WS_FAILED:
            return kind
        self.seen += size
        self.missing -= size
        if size:
            self.consume(size)
        if self.missing == 0:
            self.state = HEADER
            if self.opcode & 8:
                return self.end_control()
            if self.fin and kind == WS_NEED_DATA:
                return self.end_message()
        return kind

    cdef int take_whole(self, const unsigned char *data, Py_ssize_t size) except? -1:
        """Deliver a message that is one frame and lies in one piece."""
        cdef unsigned char small[SMALL]
        cdef unsigned char *plain
        cdef bytes whole
        cdef int kind = self.kind
        if self.compressed:
            whole = PyBytes_FromStringAndSize(NULL, size + 4)
            plain = <unsigned char *>PyBytes_AS_STRING(whole)
            unmask(plain, data, size, self.key, 0)
            memcpy(plain + size, PyBytes_AS_STRING(FLUSHED), 4)
            if self.inflate(whole) == WS_FAILED:
                return WS_FAILED
            return self.deliver(self.buffer, self.used)
        if kind == WS_TEXT and size <= SMALL:
            unmask(small, data, size, self.key, 0)
            return self.deliver(<const char *>small, size)
        whole = PyBytes_FromStringAndSize(NULL, size)
        plain = <unsigned char *>PyBytes_AS_STRING(whole)
        unmask(plain, data, size, self.key, 0)
        if kind == WS_TEXT:
            return self.deliver(<const char *>plain, size)
        self.payload = whole
        self.kind = WS_CONTINUATION
        return kind

    cdef int take_part(self, const unsigned char *data, Py_ssize_t size) except? -1:
        """Unmask a part of a message, decompress it if necessary, and append it to the buffer."""
        cdef bytes part
        cdef unsigned char *plain
        if self.compressed:
            if not size:
                return WS_NEED_DATA
            part = PyBytes_FromStringAndSize(NULL, size)
            unmask(<unsigned char *>PyBytes_AS_STRING(part), data, size, self.key, self.seen)
            return self.inflate(part)
        self.append(NULL, size)
        plain = <unsigned char *>self.buffer + self.used - size
        unmask(plain, data, size, self.key, self.seen)
        if self.kind == WS_TEXT and not check_utf8(&self.utf8, plain, size):
            return self.fail(1007, "invalid UTF-8")
        return WS_NEED_DATA

    cdef int inflate(self, bytes data) except? -1:
        """Decompress `data` and append it to the buffer."""
        cdef Py_ssize_t left
        cdef bytes plain
        while data:
            if self.decompressor is None:
                self.decompressor = zlib.decompressobj(wbits=-self.window_bits)
            left = self.max_size - self.used
            try:
                # Ask for one byte more than the limit, because a maximum of 0 means no maximum.
                plain = self.decompressor.decompress(
                    data, left + 1 if self.max_size != PY_SSIZE_T_MAX else 0)
            except zlib.error:
                plain = None
            if plain is None:
                return self.fail(1007, "invalid compressed data")
            if PyBytes_GET_SIZE(plain) > left:
                return self.fail_size()
            if self.kind == WS_TEXT and not check_utf8(
                    &self.utf8, <const unsigned char *>PyBytes_AS_STRING(plain),
                    PyBytes_GET_SIZE(plain)):
                return self.fail(1007, "invalid UTF-8")
            self.append(PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
            if not self.decompressor.eof:
                break
            # The data has a block that is marked as the last one. RFC 7692 allows that, and allows
            # further blocks after it. But zlib copies all data after such a block, so a message
            # that consists of such blocks takes quadratic time. So the number of them is limited.
            data = self.decompressor.unused_data
            self.decompressor = None
            self.streams_ended += 1
            if self.streams_ended > MAX_STREAMS:
                return self.fail(1007, "invalid compressed data")
        return WS_NEED_DATA

    cdef int append(self, const char *data, Py_ssize_t size) except? -1:
        """Make the buffer `size` bytes longer, and copy `data` there unless it is NULL.

        If it is NULL, the caller fills in the bytes.
        """
        cdef Py_ssize_t capacity = self.capacity
        cdef char *moved
        if size > capacity - self.used:
            capacity = max(2 * capacity, self.used + size, <Py_ssize_t>INITIAL_CAPACITY)
            moved = <char *>PyMem_Realloc(self.buffer, capacity)
            if moved is NULL:
                raise MemoryError
            self.buffer = moved
            self.capacity = capacity
        # memcpy() to a null pointer is undefined, even of 0 bytes.
        if data is not NULL and size:
            memcpy(self.buffer + self.used, data, size)
        self.used += size
        return 0

    cdef int end_message(self) except? -1:
        """Deliver the message in the buffer, whose last frame is complete."""
        if self.compressed and self.inflate(FLUSHED) == WS_FAILED:
            return WS_FAILED
        return self.deliver(self.buffer, self.used)

    cdef int deliver(self, const char *data, Py_ssize_t size) except? -1:
        """Store the message in `payload` and return its kind; `data` may point to the buffer."""
        cdef int kind = self.kind
        if self.compressed and (self.streams_ended or not self.takeover):
            self.decompressor = None
            self.streams_ended = 0
        if kind == WS_TEXT:
            try:
                self.payload = PyUnicode_DecodeUTF8(data, size, NULL) if size else ""
            except UnicodeDecodeError:
                self.payload = None
            if self.payload is None:
                return self.fail(1007, "invalid UTF-8")
        else:
            self.payload = PyBytes_FromStringAndSize(data, size)
        self.forget()
        return kind

    cdef inline int forget(self) except? -1:
        """Free the buffer and reset the state of the message."""
        PyMem_Free(self.buffer)
        self.buffer = NULL
        self.used = 0
        self.capacity = 0
        self.kind = WS_CONTINUATION
        self.compressed = False
        return 0

    cdef int end_control(self) except? -1:
        cdef Py_ssize_t size = self.seen
        cdef const char *data = <const char *>self.control
        if self.opcode != WS_CLOSE:
            self.payload = PyBytes_FromStringAndSize(data, size)
            return self.opcode
        if size == 1:
            return self.fail(1002, "close frame with one byte of payload")
        self.code = 1005
        if size:
            self.code = self.control[0] << 8 | self.control[1]
            if not may_send(self.code):
                return self.fail(1002, "invalid close code")
            try:
                self.reason = PyUnicode_DecodeUTF8(data + 2, size - 2, NULL)
            except UnicodeDecodeError:
                self.reason = None
            if self.reason is None:
                return self.fail(1007, "invalid UTF-8")
        self.payload = None
        self.end(ENDED)
        return WS_CLOSE

    cdef inline int end(self, int state) except? -1:
        """Enter ENDED or FAILED, and drop all data that is not parsed."""
        self.state = state
        self.piece = None
        self.pieces.clear()
        self.next_piece = 0
        self.decompressor = None
        self.forget()
        return 0

    cdef int fail(self, int code, str reason) except? -1:
        self.end(FAILED)
        self.payload = None
        self.code = code
        self.reason = reason
        return WS_FAILED

    cdef int fail_size(self) except? -1:
        return self.fail(1009, f"message exceeds {self.max_size} bytes")


cdef inline int put_header(unsigned char *out, int first, Py_ssize_t size) noexcept:
    """Write the header of an unmasked frame of `size` bytes; return its length, at most 10."""
    cdef int i
    out[0] = first
    if size < 126:
        out[1] = size
        return 2
    if size < 65536:
        out[1] = 126
        out[2] = size >> 8
        out[3] = size & 0xFF
        return 4
    out[1] = 127
    for i in range(8):
        out[2 + i] = (<uint64_t>size >> (56 - 8 * i)) & 0xFF
    return 10


cdef bytes put_frame(int first, const void *data, Py_ssize_t size):
    cdef unsigned char header[10]
    cdef int length = put_header(header, first, size)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, length + size)
    memcpy(PyBytes_AS_STRING(frame), header, length)
    if size:
        memcpy(PyBytes_AS_STRING(frame) + length, data, size)
    return frame


@cython.final
cdef class FrameWriter:
    """Create the frames that a server sends.

    `window_bits`: the size of the negotiated compression window (its binary logarithm); 0 without
    compression. `takeover`: whether a compressed message may refer to earlier ones.
    """

    def __cinit__(self, int window_bits=0, bint takeover=True):
        self.window_bits = window_bits
        self.takeover = takeover

    cpdef list message(self, object data):
        """Create a frame of `data`, a str or any buffer.

        Return a list of the bytes objects to write, in order.
        """
        cdef Py_buffer view
        cdef unsigned char header[10]
        cdef Py_ssize_t length
        cdef bytes deflated
        cdef int first = 0x80 | WS_BINARY
        if isinstance(data, str):
            first = 0x80 | WS_TEXT
            data = (<str>data).encode()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if self.window_bits and view.len >= WORTH_COMPRESSING:
                deflated = self.deflate(data)
                length = PyBytes_GET_SIZE(deflated) - 4
                if length < view.len or view.len < <Py_ssize_t>1 << self.window_bits:
                    return [put_frame(first | RSV1, PyBytes_AS_STRING(deflated), length)]
                # The message became longer, perhaps longer than the peer accepts, so send it
                # uncompressed. Drop the compressor, because the peer's decompressor will not see
                # this message. That costs nothing: this message fills the whole window, so later
                # messages could not have referred to earlier ones.
                self.compressor = None
            if view.len <= LARGE:
                return [put_frame(first, view.buf, view.len)]
            length = put_header(header, first, view.len)
            # The transport may keep a reference for a while. By then the application may change its
            # buffer, so copy it.
            if type(data) is not bytes:
                data = PyBytes_FromStringAndSize(<char *>view.buf, view.len)
            return [PyBytes_FromStringAndSize(<char *>header, length), data]
        finally:
            PyBuffer_Release(&view)

    cdef bytes deflate(self, object data):
        """Return `data` compressed; the last four bytes are FLUSHED."""
        cdef object compressor = self.compressor
        cdef bytes head, tail
        if compressor is None:
            compressor = zlib.compressobj(wbits=-self.window_bits, memLevel=MEMORY_LEVEL)
            if self.takeover:
                self.compressor = compressor
        head = compressor.compress(data)
        tail = compressor.flush(zlib.Z_SYNC_FLUSH)
        return head + tail


cpdef bytes control_frame(int opcode, bytes payload):
    """Create a ping or pong frame; `payload` has at most 125 bytes."""
    return put_frame(0x80 | opcode, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))


cpdef bytes close_frame(int code, str reason):
    """Create a close frame; the code 1005 stands for a frame without a code.

    Raise ValueError if the code must not be sent, or if the reason is longer than 123 bytes.
    """
    cdef bytes payload
    if code == 1005 and not reason:
        return control_frame(WS_CLOSE, b"")
    if not may_send(code):
        raise ValueError(f"invalid WebSocket close code {code}")
    payload = code.to_bytes(2, "big") + reason.encode()
    if len(payload) > 125:
        raise ValueError("the reason of a WebSocket close frame is longer than 123 bytes")
    return control_frame(WS_CLOSE, payload)
