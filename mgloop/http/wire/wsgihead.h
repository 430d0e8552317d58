/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Direct access to the characters of strings that WSGI applications pass as status and headers.
 *
 * Such a string consists of characters up to U+00FF (PEP 3333). CPython then stores one byte per
 * character, so the text is read without encoding it first. */
#ifndef MGLOOP_WSGIHEAD_H
#define MGLOOP_WSGIHEAD_H

#include <Python.h>
#include <stdbool.h>
#include <strings.h>

#include "outgoing.h"

typedef struct {
    const char *at;
    size_t len;
} mgl_text;

/* Sets *text to the characters of `string`; returns whether it is a str without others than latin-1.
 * The text is valid as long as the string. */
static inline bool mgl_latin_text(PyObject *string, mgl_text *text) {
    if (!PyUnicode_Check(string) || PyUnicode_KIND(string) != PyUnicode_1BYTE_KIND) return false;
    text->at = (const char *) PyUnicode_1BYTE_DATA(string);
    text->len = (size_t) PyUnicode_GET_LENGTH(string);
    return true;
}

/* Removes blanks at both ends of a header's value. */
static inline void mgl_strip(mgl_text *text) {
    while (text->len && (text->at[0] == ' ' || text->at[0] == '\t')) {
        text->at++;
        text->len--;
    }
    while (text->len && (text->at[text->len - 1] == ' ' || text->at[text->len - 1] == '\t')) text->len--;
}

/* Returns the status code at the start of a status such as "200 OK", or 0 if the text is none. */
static inline int mgl_status_code(const mgl_text *text) {
    int code = 0;
    size_t i;
    if (text->len < 3 || (text->len > 3 && text->at[3] != ' ')) return 0;
    for (i = 0; i < 3; i++) {
        if (text->at[i] < '0' || text->at[i] > '9') return 0;
        code = code * 10 + (text->at[i] - '0');
    }
    return code;
}

/* Headers that belong to the connection (RFC 9110, 7.6.1), besides those of mgl_header_kind(). */
enum { MGL_HOP_BY_HOP = 100 };

static inline int mgl_wsgi_header_kind(const mgl_text *name) {
    const char *at = name->at;
    bool hop = false;
    switch (name->len) {
        case 2: hop = !strncasecmp(at, "te", 2); break;
        case 7: hop = !strncasecmp(at, "trailer", 7) || !strncasecmp(at, "upgrade", 7); break;
        case 8: hop = !strncasecmp(at, "trailers", 8); break;
        case 10: hop = !strncasecmp(at, "keep-alive", 10); break;
        case 18: hop = !strncasecmp(at, "proxy-authenticate", 18); break;
        case 19: hop = !strncasecmp(at, "proxy-authorization", 19); break;
    }
    return hop ? MGL_HOP_BY_HOP : mgl_header_kind(at, name->len);
}

/* Returns whether the text contains "close", in any case. */
static inline bool mgl_says_close(const mgl_text *text) {
    size_t i;
    for (i = 0; i + 5 <= text->len; i++)
        if (!strncasecmp(text->at + i, "close", 5)) return true;
    return false;
}

#endif
