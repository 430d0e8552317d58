/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What a response has written and the transport has not been given yet: bytes in a row, that grow.
 *
 * One for all connections of a loop, since only one request runs at a time; it belongs to the
 * response that writes until that flushes it. */
#ifndef MGLOOP_OUTGOING_H
#define MGLOOP_OUTGOING_H

#include <Python.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

typedef struct mgl_outgoing {
    char *data;
    size_t len;
    size_t room;
} mgl_outgoing;

static inline int mgl_out_grow(mgl_outgoing *out, size_t more) {
    size_t room = out->room ? out->room : 4096;
    char *data;
    while (room < out->len + more) room *= 2;
    data = (char *) PyMem_Realloc(out->data, room);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->data = data;
    out->room = room;
    return 0;
}

static inline int mgl_out_reserve(mgl_outgoing *out, size_t more) {
    return out->room - out->len < more ? mgl_out_grow(out, more) : 0;
}

static inline int mgl_out_add(mgl_outgoing *out, const char *data, size_t len) {
    if (mgl_out_reserve(out, len) < 0) return -1;
    memcpy(out->data + out->len, data, len);
    out->len += len;
    return 0;
}

static inline int mgl_out_decimal(mgl_outgoing *out, unsigned long long number) {
    char digits[24];
    size_t i = sizeof(digits);
    do digits[--i] = (char) ('0' + number % 10);
    while (number /= 10);
    return mgl_out_add(out, digits + i, sizeof(digits) - i);
}

/* The number, or -1 if it is none of at most 18 digits. */
static inline long long mgl_decimal(const char *text, size_t len) {
    long long number = 0;
    size_t i;
    for (i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        number = number * 10 + (text[i] - '0');
        if (i >= 18) return -1;
    }
    return len > 0 ? number : -1;
}

/* The line before a chunk. */
static inline int mgl_out_chunk_size(mgl_outgoing *out, size_t size) {
    char digits[20];
    size_t i = sizeof(digits);
    digits[--i] = '\n';
    digits[--i] = '\r';
    do digits[--i] = "0123456789abcdef"[size & 15];
    while (size >>= 4);
    return mgl_out_add(out, digits + i, sizeof(digits) - i);
}

/* Given back where one large response has made it large. */
static inline void mgl_out_clear(mgl_outgoing *out) {
    out->len = 0;
    if (out->room > 256 << 10) {
        PyMem_Free(out->data);
        out->data = NULL;
        out->room = 0;
    }
}

/* What RFC 9110 calls a token: the name of a header, of a method. */
static inline bool mgl_is_token(const char *text, size_t len) {
    /* !#$%&'*+-.^_`|~ and letters and digits */
    static const unsigned int allowed[8] = {
        0x00000000, 0x03ff6cfa, 0xc7fffffe, 0x57ffffff, 0, 0, 0, 0,
    };
    size_t i;
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char) text[i];
        if (!(allowed[c >> 5] >> (c & 31) & 1)) return false;
    }
    return len > 0;
}

/* A method that somebody may mean: a token of 3 to 20 characters, with no small letter, for those
 * come from whoever wonders whether "get" is treated as "GET" on the way. */
static inline bool mgl_is_method(const char *text, size_t len) {
    size_t i;
    for (i = 0; i < len; i++)
        if ((text[i] >= 'a' && text[i] <= 'z') || text[i] == '#') return false;
    return len >= 3 && len <= 20 && mgl_is_token(text, len);
}

/* No line ends in it, no NUL. */
static inline bool mgl_is_field_value(const char *text, size_t len) {
    size_t i;
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char) text[i];
        if (c < 32 ? c != '\t' : c == 127) return false;
    }
    return true;
}

static inline bool mgl_is_digits(const char *text, size_t len) {
    size_t i;
    for (i = 0; i < len; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return true;
}

/* uri-host [":" port] of RFC 9110, 7.2: a name or address, and nothing of a URL's that is about it. */
static inline bool mgl_is_host(const char *text, size_t len) {
    static const char others[] = "-._~%!$&'()*+,;=";
    size_t i = 0;
    bool literal = len > 0 && text[0] == '[';
    if (literal) i++;
    for (; i < len; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9') continue;
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) continue;
        if (c == ':' && literal) continue;
        if (c == '\0' || strchr(others, c) == NULL) break;
    }
    if (literal) {
        if (i < 2 || i == len || text[i] != ']') return false;
        i++;
    }
    if (i == len) return i > 0;
    return i > 0 && text[i] == ':' && mgl_is_digits(text + i + 1, len - i - 1);
}

/* Headers of a response that say something of its framing. */
enum { MGL_OTHER_HEADER, MGL_CONTENT_LENGTH, MGL_TRANSFER_ENCODING, MGL_CONNECTION, MGL_DATE, MGL_SERVER };

static inline int mgl_header_kind(const char *name, size_t len) {
    switch (len) {
        case 4: return strncasecmp(name, "date", 4) ? MGL_OTHER_HEADER : MGL_DATE;
        case 6: return strncasecmp(name, "server", 6) ? MGL_OTHER_HEADER : MGL_SERVER;
        case 10: return strncasecmp(name, "connection", 10) ? MGL_OTHER_HEADER : MGL_CONNECTION;
        case 14: return strncasecmp(name, "content-length", 14) ? MGL_OTHER_HEADER : MGL_CONTENT_LENGTH;
        case 17: return strncasecmp(name, "transfer-encoding", 17) ? MGL_OTHER_HEADER : MGL_TRANSFER_ENCODING;
        default: return MGL_OTHER_HEADER;
    }
}

/* A header's line. */
static inline int mgl_out_field(mgl_outgoing *out, const char *name, size_t name_len, const char *value, size_t len) {
    char *to;
    if (mgl_out_reserve(out, name_len + len + 4) < 0) return -1;
    to = out->data + out->len;
    memcpy(to, name, name_len);
    to += name_len;
    *to++ = ':';
    *to++ = ' ';
    memcpy(to, value, len);
    to += len;
    *to++ = '\r';
    *to++ = '\n';
    out->len = (size_t) (to - out->data);
    return 0;
}

static inline void mgl_lower(char *to, const char *from, size_t len) {
    size_t i;
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char) from[i];
        to[i] = (char) (c | ((unsigned) (c - 'A') < 26) << 5);
    }
}

static inline int mgl_hex(unsigned char c) {
    if ((unsigned) (c - '0') < 10) return c - '0';
    c |= 32;
    return (unsigned) (c - 'a') < 6 ? c - 'a' + 10 : -1;
}

/* Undoes percent-encoding; what is no such sequence stays. Returns the length of the result. */
static inline size_t mgl_unquote(char *to, const char *from, size_t len) {
    size_t i, n = 0;
    for (i = 0; i < len; i++) {
        if (from[i] == '%' && i + 2 < len) {
            int high = mgl_hex((unsigned char) from[i + 1]), low = mgl_hex((unsigned char) from[i + 2]);
            if (high >= 0 && low >= 0) {
                to[n++] = (char) (high << 4 | low);
                i += 2;
                continue;
            }
        }
        to[n++] = from[i];
    }
    return n;
}

#endif
