/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The bytes of a response that have not been passed to the transport yet.
 *
 * Each response in progress has its own buffer, which no other response can access. The buffer is
 * taken from the pool of the Site when the response writes its first byte, and is returned after the
 * transport has received a copy. In between, Python code can run at many points (the garbage
 * collector, finalizers, objects of the application, logging), and that code may send on other
 * connections. A shared buffer would mix the bytes of different clients.
 *
 * A message of the application is written in two steps. The first step checks it, computes its number
 * of bytes and reserves them. This step may run Python code and may fail. The second step copies with
 * mgl_put*(), which cannot fail and runs no Python code. A message is therefore either completely in
 * the buffer or not at all. */
#ifndef MGLOOP_OUTGOING_H
#define MGLOOP_OUTGOING_H

#include <Python.h>
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

typedef struct mgl_outgoing {
    char *data;
    size_t len;
    size_t capacity;
    struct mgl_outgoing *next; /* in the pool */
} mgl_outgoing;

/* Buffers that no response uses at present. One is enough unless responses wait with bytes unsent. */
typedef struct mgl_outgoing_pool {
    mgl_outgoing *first;
    int count;
} mgl_outgoing_pool;

enum {
    MGL_POOL_COUNT = 8,              /* buffers that a pool keeps */
    MGL_POOL_CAPACITY = 256 << 10,   /* bytes; a larger buffer is freed instead of kept */
    MGL_DECIMAL_DIGITS = 20,         /* of the largest unsigned 64-bit number */
    MGL_CHUNK_LINE = 18,             /* "ffffffffffffffff\r\n" */
};

static inline void mgl_out_free(mgl_outgoing *out) {
    if (out == NULL) return;
    PyMem_Free(out->data);
    PyMem_Free(out);
}

/* Returns an empty buffer, or NULL with MemoryError. */
static inline mgl_outgoing *mgl_pool_take(mgl_outgoing_pool *pool) {
    mgl_outgoing *out = pool->first;
    if (out != NULL) {
        assert(out->len == 0);
        pool->first = out->next;
        pool->count--;
    } else {
        out = (mgl_outgoing *) PyMem_Calloc(1, sizeof(*out));
        if (out == NULL) PyErr_NoMemory();
    }
    return out;
}

static inline void mgl_pool_give(mgl_outgoing_pool *pool, mgl_outgoing *out) {
    if (out == NULL) return;
    if (pool->count >= MGL_POOL_COUNT || out->capacity > MGL_POOL_CAPACITY) {
        mgl_out_free(out);
        return;
    }
    out->len = 0;
    out->next = pool->first;
    pool->first = out;
    pool->count++;
}

static inline void mgl_pool_clear(mgl_outgoing_pool *pool) {
    while (pool->first != NULL) {
        mgl_outgoing *out = pool->first;
        pool->first = out->next;
        mgl_out_free(out);
    }
    pool->count = 0;
}

/* Reserves `more` bytes for the following mgl_put*() calls; -1 with MemoryError. Afterwards the
 * buffer has memory, even if `more` is 0, because memcpy() must not get NULL. */
static inline int mgl_out_reserve(mgl_outgoing *out, size_t more) {
    size_t capacity = out->capacity ? out->capacity : 4096;
    char *data;
    if (out->data != NULL && out->capacity - out->len >= more) return 0;
    if (more > (size_t) PY_SSIZE_T_MAX / 2 - out->len) {
        PyErr_NoMemory();
        return -1;
    }
    while (capacity < out->len + more) capacity *= 2;
    data = (char *) PyMem_Realloc(out->data, capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->data = data;
    out->capacity = capacity;
    return 0;
}

static inline void mgl_put(mgl_outgoing *out, const char *data, size_t len) {
    assert(out->capacity - out->len >= len);
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

static inline void mgl_put_decimal(mgl_outgoing *out, unsigned long long number) {
    char digits[MGL_DECIMAL_DIGITS];
    size_t i = sizeof(digits);
    do digits[--i] = (char) ('0' + number % 10);
    while (number /= 10);
    mgl_put(out, digits + i, sizeof(digits) - i);
}

/* Writes the line before a chunk. */
static inline void mgl_put_chunk_line(mgl_outgoing *out, size_t size) {
    char digits[MGL_CHUNK_LINE];
    size_t i = sizeof(digits);
    digits[--i] = '\n';
    digits[--i] = '\r';
    do digits[--i] = "0123456789abcdef"[size & 15];
    while (size >>= 4);
    mgl_put(out, digits + i, sizeof(digits) - i);
}

/* Writes a header line of name_len + len + 4 bytes. */
static inline void mgl_put_field(mgl_outgoing *out, const char *name, size_t name_len, const char *value,
                                 size_t len) {
    mgl_put(out, name, name_len);
    mgl_put(out, ": ", 2);
    mgl_put(out, value, len);
    mgl_put(out, "\r\n", 2);
}

/* Returns the number, or -1 unless the text consists of 1 to 18 digits. */
static inline long long mgl_decimal(const char *text, size_t len) {
    long long number = 0;
    size_t i;
    if (len == 0 || len > 18) return -1;
    for (i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        number = number * 10 + (text[i] - '0');
    }
    return number;
}

/* Returns whether the text is a token of RFC 9110, such as the name of a header or a method. The loop
 * has no early exit, because nearly all texts are valid. */
static inline bool mgl_is_token(const char *text, size_t len) {
    static const unsigned char allowed[256] = {
        ['!'] = 1,         ['#' ... '\''] = 1, ['*'] = 1,         ['+'] = 1, ['-'] = 1, ['.'] = 1,
        ['0' ... '9'] = 1, ['A' ... 'Z'] = 1,  ['^' ... 'z'] = 1, ['|'] = 1, ['~'] = 1,
    };
    unsigned char valid = len > 0;
    size_t i;
    for (i = 0; i < len; i++) valid &= allowed[(unsigned char) text[i]];
    return valid;
}

/* Accepts tokens of 3 to 20 characters without lower-case letters. Lower-case methods are rejected
 * because they are a probe for request smuggling: proxies may treat "get" as "GET" or not. */
static inline bool mgl_is_method(const char *text, size_t len) {
    size_t i;
    for (i = 0; i < len; i++)
        if ((text[i] >= 'a' && text[i] <= 'z') || text[i] == '#') return false;
    return len >= 3 && len <= 20 && mgl_is_token(text, len);
}

/* Returns whether none of the eight bytes of `word` is a control character. It may also return false
 * if the word has none: then the bytes have to be checked one by one. */
static inline bool mgl_has_no_control(uint64_t word) {
    const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    uint64_t del = word ^ ones * 127;
    /* A byte below 32 borrows from its high bit, and so does a byte that is zero. */
    return !((((word - ones * 32) & ~word) | ((del - ones) & ~del)) & high);
}

/* Returns whether the text is a valid header value, in particular without line ends and NUL. */
static inline bool mgl_is_field_value(const char *text, size_t len) {
    size_t i = 0;
    uint64_t word;
    for (; i + sizeof(word) <= len; i += sizeof(word)) {
        memcpy(&word, text + i, sizeof(word));
        if (!mgl_has_no_control(word)) break;
    }
    for (; i < len; i++) {
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

/* Returns whether the text is uri-host [":" port] (RFC 9110, 7.2), without other parts of a URL. */
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

/* Response headers that the server handles itself. */
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

/* Returns the eight bytes of `word` with the letters A to Z in lower case. */
static inline uint64_t mgl_lower_word(uint64_t word) {
    const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    /* The additions cannot carry into the next byte, because the high bits are clear. They set the high
     * bit of each byte that is at least 'A', and of each that is greater than 'Z'. */
    uint64_t low = word & ~high, from_a = low + ones * (128 - 'A'), after_z = low + ones * (127 - 'Z');
    return word | ((from_a ^ after_z) & ~word & high) >> 2;
}

static inline void mgl_lower(char *to, const char *from, size_t len) {
    size_t i = 0;
    uint64_t word;
    for (; i + sizeof(word) <= len; i += sizeof(word)) {
        memcpy(&word, from + i, sizeof(word));
        word = mgl_lower_word(word);
        memcpy(to + i, &word, sizeof(word));
    }
    for (; i < len; i++) {
        unsigned char c = (unsigned char) from[i];
        to[i] = (char) (c | ((unsigned) (c - 'A') < 26) << 5);
    }
}

static inline int mgl_hex(unsigned char c) {
    if ((unsigned) (c - '0') < 10) return c - '0';
    c |= 32;
    return (unsigned) (c - 'a') < 6 ? c - 'a' + 10 : -1;
}

/* Decodes percent-encoding and keeps invalid sequences. Returns the length of the result. */
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
