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

/* Returns whether a header belongs to the connection (RFC 9110, 7.6.1), which the server manages. */
static inline bool mgl_is_hop_by_hop(const mgl_text *name) {
    switch (name->len) {
        case 2: return !strncasecmp(name->at, "te", 2);
        case 7: return !strncasecmp(name->at, "trailer", 7) || !strncasecmp(name->at, "upgrade", 7);
        case 8: return !strncasecmp(name->at, "trailers", 8);
        case 10: return !strncasecmp(name->at, "connection", 10) || !strncasecmp(name->at, "keep-alive", 10);
        case 17: return !strncasecmp(name->at, "transfer-encoding", 17);
        case 18: return !strncasecmp(name->at, "proxy-authenticate", 18);
        case 19: return !strncasecmp(name->at, "proxy-authorization", 19);
        default: return false;
    }
}

/* Returns whether the text contains "close", in any case. */
static inline bool mgl_says_close(const mgl_text *text) {
    size_t i;
    for (i = 0; i + 5 <= text->len; i++)
        if (!strncasecmp(text->at + i, "close", 5)) return true;
    return false;
}

#endif
