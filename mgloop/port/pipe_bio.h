/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The implementation of openssl.h, for the one module that includes it: the look-up of the functions,
 * and the callbacks of a pipe. */
#ifndef MGLOOP_PIPE_BIO_H
#define MGLOOP_PIPE_BIO_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "openssl.h"

static struct mgl_openssl mgl_openssl;

/* Index of the word of an _ssl._SSLSocket that is the session; 0 if OpenSSL must not be called
 * directly, -1 if not determined yet. All threads read it. Release and acquire order make the
 * functions visible that were looked up before it was written. */
static ptrdiff_t mgl_index = -1;
static inline ptrdiff_t mgl_session_index(void) { return __atomic_load_n(&mgl_index, __ATOMIC_ACQUIRE); }
static inline void mgl_set_session_index(ptrdiff_t index) {
    __atomic_store_n(&mgl_index, index, __ATOMIC_RELEASE);
}

static int mgl_pipe_read(mgl_bio *bio, char *buffer, int size) {
    const struct mgl_openssl *lib = &mgl_openssl;
    struct mgl_pipe *p = lib->BIO_get_data(bio);
    int got;
    lib->BIO_clear_flags(bio, MGL_FLAGS_RETRY);
    if (buffer == NULL || size <= 0) return 0;
    if (p->in_left > 0 && !p->in_waits) {
        got = (size_t) size < p->in_left ? size : (int) p->in_left;
        memcpy(buffer, p->in, (size_t) got);
        p->in += got;
        p->in_left -= (size_t) got;
        return got;
    }
    got = lib->BIO_read(p->stored_in, buffer, size);
    p->in_waits = p->in_left > 0 && mgl_stored(lib, p->stored_in) > 0;
    if (got <= 0) lib->BIO_set_flags(bio, lib->BIO_test_flags(p->stored_in, MGL_FLAGS_RETRY));
    return got;
}

static int mgl_pipe_write(mgl_bio *bio, const char *data, int size) {
    const struct mgl_openssl *lib = &mgl_openssl;
    struct mgl_pipe *p = lib->BIO_get_data(bio);
    int written;
    lib->BIO_clear_flags(bio, MGL_FLAGS_RETRY);
    if (data == NULL || size <= 0) return 0;
    if (p->out != NULL) {
        if ((size_t) size <= p->out_size - p->out_used) {
            memcpy(p->out + p->out_used, data, (size_t) size);
            p->out_used += (size_t) size;
            return size;
        }
        if (!mgl_pipe_detach_out(p)) return -1;
    }
    written = lib->BIO_write(p->stored_out, data, size);
    if (written <= 0) lib->BIO_set_flags(bio, lib->BIO_test_flags(p->stored_out, MGL_FLAGS_RETRY));
    return written;
}

static long mgl_pipe_ctrl(mgl_bio *bio, int command, long number, void *pointer) {
    const struct mgl_openssl *lib = &mgl_openssl;
    struct mgl_pipe *p = lib->BIO_get_data(bio);
    (void) number, (void) pointer;
    if (p == NULL) return 0;
    switch (command) {
    case MGL_CTRL_FLUSH: return 1;
    case MGL_CTRL_PENDING: return (long) (p->in_left + mgl_stored(lib, p->stored_in));
    case MGL_CTRL_EOF: return p->in_left == 0 && lib->BIO_ctrl(p->stored_in, command, 0, NULL);
    default: return 0; /* includes kernel TLS */
    }
}

static int mgl_pipe_destroy(mgl_bio *bio) {
    const struct mgl_openssl *lib = &mgl_openssl;
    struct mgl_pipe *p = lib->BIO_get_data(bio);
    if (p != NULL) {
        lib->BIO_set_data(bio, NULL);
        lib->BIO_free(p->stored_in);
        lib->BIO_free(p->stored_out);
        free(p);
    }
    return 1;
}

/* Inserts a pipe, which the session owns, between the session and its memory BIOs. NULL if memory is
 * exhausted. */
static struct mgl_pipe *mgl_pipe_insert(mgl_ssl *ssl) {
    const struct mgl_openssl *lib = &mgl_openssl;
    struct mgl_pipe *p = calloc(1, sizeof(*p));
    mgl_bio *bio = p == NULL ? NULL : lib->BIO_new(lib->method);
    if (bio == NULL) {
        free(p);
        return NULL;
    }
    p->lib = lib;
    p->stored_in = lib->SSL_get_rbio(ssl);
    p->stored_out = lib->SSL_get_wbio(ssl);
    lib->BIO_up_ref(p->stored_in);
    lib->BIO_up_ref(p->stored_out);
    lib->BIO_set_data(bio, p);
    lib->BIO_set_init(bio, 1);
    lib->SSL_set_bio(ssl, bio, bio); /* takes one reference and drops those to the memory BIOs */
    return p;
}

/* Looks the functions up in the library `handle`. Returns NULL, or the name of one that is missing. */
static const char *mgl_openssl_find_functions(void *handle) {
    struct mgl_openssl *lib = &mgl_openssl;
    void *found, *usual;
#define F(type, name, parameters)                                                                  \
    found = dlsym(handle, #name);                                                                  \
    if (found == NULL) return #name;                                                               \
    /* A library that overrides the function (LD_PRELOAD) must be respected. */                    \
    usual = dlsym(RTLD_DEFAULT, #name);                                                            \
    if (usual != NULL && usual != found) return #name;                                             \
    memcpy(&lib->name, &found, sizeof(found));
    MGL_OPENSSL_FUNCTIONS(F)
#undef F
    return NULL;
}

/* Creates the BIO method of pipes. 0 if memory is exhausted. */
static int mgl_openssl_make_method(void) {
    struct mgl_openssl *lib = &mgl_openssl;
    lib->method = lib->BIO_meth_new(lib->BIO_get_new_index() | MGL_TYPE_SOURCE_SINK, "mgloop");
    return lib->method != NULL && lib->BIO_meth_set_read(lib->method, mgl_pipe_read)
        && lib->BIO_meth_set_write(lib->method, mgl_pipe_write)
        && lib->BIO_meth_set_ctrl(lib->method, mgl_pipe_ctrl)
        && lib->BIO_meth_set_destroy(lib->method, mgl_pipe_destroy);
}

/* Returns whether one of the first words at `address` is `word`. The address may be invalid, so the
 * kernel reads the memory and reports an error in that case. `ends` is a pipe(2). */
static int mgl_points_to(const int ends[2], const void *address, const void *word) {
    const void *words[8] = {NULL};
    size_t i;
    long size;
    if (((uintptr_t) address & (sizeof(void *) - 1)) != 0 || address == NULL) return 0;
    /* A direct system call, because sanitizers intercept write() and check the memory. */
    size = syscall(SYS_write, ends[1], address, sizeof(words));
    if (size <= 0 || read(ends[0], words, (size_t) size) != size) return 0;
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (words[i] == word) return 1;
    }
    return 0;
}

#endif
