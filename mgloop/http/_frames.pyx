# SPDX-License-Identifier: GPL-2.0-only
"""The framing of WebSocket (RFC 6455), a server's side, with permessage-deflate (RFC 7692).

Native because it runs per packet: headers are read, payloads unmasked and checked without an object
in between. A FrameReader is fed pieces cut anywhere, and asked for one thing after the other:

    feed(piece); while (kind = advance()) ...

so who asks decides how much is taken apart and decompressed before the application has had it; the
rest stays as it came. advance() returns WS_TEXT, WS_BINARY (a whole message), WS_PING, WS_PONG,
WS_CLOSE, WS_NEED_DATA, or WS_FAILED with the close code that the peer is to get, for ever after.

The reader is in one of these states:

    state    what is missing                        then
    HEADER   2 bytes, then what they ask for:       PAYLOAD, or FAILED if they are not allowed
             0, 2 or 8 of length, 4 of the mask     (the table below, mgl_ws_allowed)
    PAYLOAD  `missing` bytes                        HEADER: the next frame of the message, or
                                                    the message is delivered
    ENDED    nothing: a close frame has come        stays
    FAILED   nothing                                stays

A message that lies in one piece is unmasked into the object that is delivered, or that its text is
decoded from. Any other is gathered in a buffer that grows with what has really come, never with
what a header announces. Its size is checked when a header announces it; what is compressed is
decompressed as it comes, never further than one byte beyond the limit. Text is checked as it comes
too, so that what cannot become valid fails at once (close code 1007).

Memory: a reader owns its buffer, and gives it back after each message. Used in the loop's thread.
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
except ImportError:         # an interpreter without it: deflate.py agrees to no compression
    zlib = None


cdef extern from *:
    """
    /* Is a frame of this opcode allowed? Indexed by whether a message is unfinished. Opcodes 3 to 7
       and 11 to 15 are reserved; control frames may come between the fragments of a message. */
    static inline int mgl_ws_allowed(int opcode, int unfinished)
    {
        static const unsigned short allowed[2] = {
            1 << WS_TEXT         | 1 << WS_BINARY | 1 << WS_CLOSE | 1 << WS_PING | 1 << WS_PONG,
            1 << WS_CONTINUATION                  | 1 << WS_CLOSE | 1 << WS_PING | 1 << WS_PONG,
        };
        return allowed[unfinished] >> opcode & 1;
    }

    /* Codes that may stand in a close frame: of the RFC and of IANA's registry (1012 to 1014), of
       libraries and of applications. 1004 to 1006 and 1015 must not be sent. */
    static inline int mgl_ws_sendable(int code)
    {
        return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014)
            || (code >= 3000 && code <= 4999);
    }

    /* `phase` is how many bytes of the payload came before `in`. */
    static void mgl_ws_unmask(unsigned char *out, const unsigned char *in, size_t n,
                              const unsigned char key[4], size_t phase)
    {
        unsigned char turned[8];
        uint64_t mask, word;
        size_t i;
        for (i = 0; i < 8; i++)
            turned[i] = key[(phase + i) & 3];
        memcpy(&mask, turned, 8);
        for (i = 0; i + 8 <= n; i += 8) {
            memcpy(&word, in + i, 8);
            word ^= mask;
            memcpy(out + i, &word, 8);
        }
        for (; i < n; i++)
            out[i] = in[i] ^ turned[i & 7];
    }

    /* Can what has come so far become valid UTF-8? */
    static int mgl_utf8_feed(mgl_utf8 *u, const unsigned char *p, size_t n)
    {
        const unsigned char *end = p + n;
        while (p < end) {
            unsigned char c = *p++;
            if (u->missing) {
                if (c < u->low || c > u->high)
                    return 0;
                u->missing--;
                u->low = 0x80, u->high = 0xBF;
            } else if (c < 0x80) {
                uint64_t word;
                while (end - p >= 8 && (memcpy(&word, p, 8), !(word & 0x8080808080808080u)))
                    p += 8;
            } else if (c < 0xC2 || c > 0xF4) {
                return 0;
            } else {
                u->missing = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
                /* Neither overlong, nor a surrogate, nor beyond U+10FFFF. */
                u->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
                u->high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
            }
        }
        return 1;
    }
    """
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
    SMALL = 4096                # on the stack while it is unmasked
    FIRST_ROOM = 1024           # of the buffer
    # Shorter messages hardly shrink, and compressing costs more than sending them.
    WORTH_COMPRESSING = 64
    # Behind this header and payload are handed over apart, instead of being copied together.
    LARGE = 64 * 1024
    RSV1 = 0x40
    MAX_STREAMS = 16
    MEMORY_LEVEL = 5            # 16 KiB of hash table in place of 128

cdef bytes FLUSHED = b"\x00\x00\xff\xff"     # the end of what is compressed; not sent


cpdef bint sendable(int code) noexcept:
    """May `code` stand in a close frame?"""
    return may_send(code)


@cython.final
cdef class FrameReader:
    """Takes apart what a client sends.

    `max_size`: bytes of a message, as it is delivered; 0 for no limit. `window_bits`: of the
    compression that was agreed upon, 0 if none was. `takeover`: does a compressed message refer to
    those before?
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
        """Append `data` to what has come."""
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
        """The next thing that is complete."""
        cdef Py_ssize_t size
        cdef int kind, wanted
        while True:
            if self.state == FAILED:
                return WS_FAILED
            if self.state == ENDED:
                return WS_NEED_DATA
            # A frame without a payload needs no further byte.
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
        """`size` bytes of the piece are done with."""
        self.position += size
        if self.position == PyBytes_GET_SIZE(self.piece):
            self.position = 0
            self.piece = self.take_piece() if self.pieces else None
        return 0

    cdef bytes take_piece(self):
        """Take the first of the pieces. pop(0) would move all others, for each piece."""
        cdef bytes piece = self.pieces[self.next_piece]
        self.pieces[self.next_piece] = None
        self.next_piece += 1
        # At least as many as are moved have been taken.
        if 2 * self.next_piece >= len(self.pieces):
            del self.pieces[:self.next_piece]
            self.next_piece = 0
        return piece

    cdef int begin_frame(self) except? -1:
        """What the header asks for has come: 2 bytes first, then all of it."""
        cdef unsigned char first = self.header[0]
        cdef unsigned char second = self.header[1]
        cdef uint64_t length = second & 0x7F
        cdef int extended = 8 if length == 127 else 2 if length == 126 else 0
        cdef int i
        if self.header_size == 2:
            self.opcode = first & 0x0F
            self.fin = first & 0x80
            if first & 0x30:
                return self.fail(1002, "reserved bits are set")
            if not allowed(self.opcode, self.kind != WS_CONTINUATION):
                if self.opcode == WS_CONTINUATION:
                    return self.fail(1002, "nothing to continue")
                if self.opcode <= WS_BINARY:
                    return self.fail(1002, "a message begins within another")
                return self.fail(1002, "reserved opcode")
            if first & RSV1 and (
                    not self.window_bits or self.opcode not in (WS_TEXT, WS_BINARY)):
                return self.fail(1002, "reserved bits are set")
            if self.opcode & 8:
                if not self.fin:
                    return self.fail(1002, "a fragmented control frame")
                if length > 125:
                    return self.fail(1002, "a control frame is too long")
            if not second & 0x80:
                return self.fail(1002, "a frame is not masked")
            self.header_size = 2 + extended + 4
            return 0

        if extended:
            length = 0
            for i in range(extended):
                length = length << 8 | self.header[2 + i]
            if length >> 63:
                return self.fail(1002, "a length has its highest bit set")
        memcpy(self.key, &self.header[2 + extended], 4)
        if self.opcode == WS_TEXT or self.opcode == WS_BINARY:
            self.kind = self.opcode
            self.compressed = first & RSV1
            memset(&self.utf8, 0, sizeof(self.utf8))
        if not self.opcode & 8 and not self.compressed and (
                length > <uint64_t>(self.max_size - self.used)):
            return self.fail_size()
        # Of 63 bits: what is compressed may be of any length.
        self.missing = <Py_ssize_t>length
        self.seen = 0
        self.state = PAYLOAD
        self.header_seen = 0
        self.header_size = 2
        return 0

    cdef int take_payload(self) except? -1:
        """What there is of the frame's payload."""
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
        """A message of one frame, all of which is here."""
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
        """Some of a message."""
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
        """Append what `data` is when decompressed."""
        cdef Py_ssize_t left
        cdef bytes plain
        while data:
            if self.decompressor is None:
                self.decompressor = zlib.decompressobj(wbits=-self.window_bits)
            left = self.max_size - self.used
            try:
                # A byte more than is allowed; 0 would be without limit.
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
            # A block that calls itself the last one: RFC 7692 allows that, and more behind it. But
            # zlib copies what is behind it, which a message of nothing else would make expensive.
            data = self.decompressor.unused_data
            self.decompressor = None
            self.streams_ended += 1
            if self.streams_ended > MAX_STREAMS:
                return self.fail(1007, "invalid compressed data")
        return WS_NEED_DATA

    cdef int append(self, const char *data, Py_ssize_t size) except? -1:
        """Make the message `size` bytes longer; `data` may be NULL, who calls fills them in."""
        cdef Py_ssize_t room = self.room
        cdef char *moved
        if size > room - self.used:
            room = max(2 * room, self.used + size, <Py_ssize_t>FIRST_ROOM)
            moved = <char *>PyMem_Realloc(self.buffer, room)
            if moved is NULL:
                raise MemoryError
            self.buffer = moved
            self.room = room
        # Nothing into no buffer is undefined to memcpy().
        if data is not NULL and size:
            memcpy(self.buffer + self.used, data, size)
        self.used += size
        return 0

    cdef int end_message(self) except? -1:
        """The last frame of a message that was gathered is complete."""
        if self.compressed and self.inflate(FLUSHED) == WS_FAILED:
            return WS_FAILED
        return self.deliver(self.buffer, self.used)

    cdef int deliver(self, const char *data, Py_ssize_t size) except? -1:
        """The message is `data`, which may be the buffer."""
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
        """Nothing is left of the message."""
        PyMem_Free(self.buffer)
        self.buffer = NULL
        self.used = 0
        self.room = 0
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
            return self.fail(1002, "a close code of one byte")
        self.code = 1005
        if size:
            self.code = self.control[0] << 8 | self.control[1]
            if not may_send(self.code):
                return self.fail(1002, "an invalid close code")
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
        """Nothing that comes from now on counts."""
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
        return self.fail(1009, f"a message has more than {self.max_size} bytes")


cdef inline int put_header(unsigned char *out, int first, Py_ssize_t size) noexcept:
    """A header for a payload of `size`, which is not masked; its length, 10 at most."""
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
    """Makes the frames of messages, as a server sends them.

    `window_bits`: of the compression that was agreed upon, 0 if none was. `takeover`: may a
    compressed message refer to those before?
    """

    def __cinit__(self, int window_bits=0, bint takeover=True):
        self.window_bits = window_bits
        self.takeover = takeover

    cpdef list message(self, object data):
        """One frame with all of `data` (str, or any buffer): what is to be written, in order."""
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
                # It grew, perhaps beyond what the peer takes. Nothing is lost with the compressor:
                # of what may be referred to, a whole window is this message.
                self.compressor = None
            if view.len <= LARGE:
                return [put_frame(first, view.buf, view.len)]
            length = put_header(header, first, view.len)
            # The transport may keep it for a while, when it belongs to the application again.
            if type(data) is not bytes:
                data = PyBytes_FromStringAndSize(<char *>view.buf, view.len)
            return [PyBytes_FromStringAndSize(<char *>header, length), data]
        finally:
            PyBuffer_Release(&view)

    cdef bytes deflate(self, object data):
        """`data` compressed; the last four bytes are FLUSHED."""
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
    """A ping or pong; `payload` has 125 bytes at most."""
    return put_frame(0x80 | opcode, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))


cpdef bytes close_frame(int code, str reason):
    """1005 stands for a frame without a code. ValueError if the frame cannot be sent."""
    cdef bytes payload
    if code == 1005 and not reason:
        return control_frame(WS_CLOSE, b"")
    if not may_send(code):
        raise ValueError(f"{code} cannot be sent as a WebSocket close code")
    payload = code.to_bytes(2, "big") + reason.encode()
    if len(payload) > 125:
        raise ValueError("the reason of a WebSocket's closing has more than 123 bytes")
    return control_frame(WS_CLOSE, payload)
