/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The parts of WebSocket's framing that run per byte or are tables, in C: permitted opcodes and close
 * codes, unmasking, and the check of UTF-8. _frames.pyx uses them. They own nothing. */
#ifndef MGLOOP_FRAMING_H
#define MGLOOP_FRAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The opcodes of frames. Bit 3 is set in those of control frames. */
enum {
    WS_CONTINUATION = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10
};

/* The results of advance() that are not opcodes. */
enum { WS_NEED_DATA = -1, WS_FAILED = -2 };

/* The state of a UTF-8 check within a character: the number of bytes that are missing, and the range
   in which the next byte must be. */
typedef struct { unsigned char missing, low, high; } mgl_utf8;

/* Returns whether a frame with this opcode is allowed. The table has a row for each value of
   `unfinished`, which says whether a message has begun and has not ended. Opcodes 3 to 7 and 11
   to 15 are reserved. Control frames may come between the fragments of a message. */
static inline int mgl_ws_allowed(int opcode, int unfinished)
{
    static const unsigned short allowed[2] = {
        1 << WS_TEXT         | 1 << WS_BINARY | 1 << WS_CLOSE | 1 << WS_PING | 1 << WS_PONG,
        1 << WS_CONTINUATION                  | 1 << WS_CLOSE | 1 << WS_PING | 1 << WS_PONG,
    };
    return allowed[unfinished] >> opcode & 1;
}

/* Returns whether a close frame may contain the code. Those of the RFC, of IANA's registry (1012
   to 1014), of libraries and of applications are allowed. 1004 to 1006 and 1015 must not be
   sent. */
static inline int mgl_ws_sendable(int code)
{
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014)
        || (code >= 3000 && code <= 4999);
}

/* Unmasks n bytes. `phase` is the number of bytes of the payload before `in`. */
static inline void mgl_ws_unmask(unsigned char *out, const unsigned char *in, size_t n,
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

/* Returns whether the bytes checked so far are the beginning of valid UTF-8. */
static inline int mgl_utf8_feed(mgl_utf8 *u, const unsigned char *p, size_t n)
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
            /* Exclude overlong forms, surrogates, and code points above U+10FFFF. */
            u->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
            u->high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        }
    }
    return 1;
}

#endif
