/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Direct calls to the OpenSSL library of the interpreter, without the `ssl` module.
 *
 * OpenSSL is neither linked nor included. tls/_openssl.pyx looks the functions up in the libraries that
 * the module `_ssl` has loaded, and finds the `SSL *` of a Python object. The C interface of the
 * functions is the same from OpenSSL 1.1.1 to 3. pipe_bio.h implements pipes.
 *
 * A pipe (struct mgl_pipe) is the BIO through which a session then reads and writes. It wraps the two
 * memory BIOs that were passed to ssl.SSLContext.wrap_bio(). Received data is attached to it (`in`), so
 * OpenSSL reads the records directly from the buffer of recv(). Outgoing data is written to an attached
 * buffer (`out`), which all connections of a loop share. Without attached buffers the pipe uses only
 * the memory BIOs, so the `ssl` module can use the session as before. Data in a memory BIO always comes
 * before data in an attached buffer.
 *
 * Only the thread of the connection's loop may use it. */
#ifndef MGLOOP_OPENSSL_H
#define MGLOOP_OPENSSL_H

#include <stddef.h>

typedef struct mgl_ssl mgl_ssl;   /* SSL */
typedef struct mgl_bio mgl_bio;   /* BIO */
typedef struct mgl_bio_method mgl_bio_method;

enum { /* constants of openssl/ssl.h and openssl/bio.h */
    MGL_WANT_READ = 2,
    MGL_WANT_WRITE = 3,
    MGL_ZERO_RETURN = 6,
    MGL_CTRL_EOF = 2,
    MGL_CTRL_PENDING = 10,
    MGL_CTRL_FLUSH = 11,
    MGL_FLAGS_RETRY = 1 | 2 | 4 | 8, /* READ, WRITE, IO_SPECIAL, SHOULD_RETRY */
    MGL_TYPE_SOURCE_SINK = 0x0400
};

/* The functions with their types. */
#define MGL_OPENSSL_FUNCTIONS(F)                                                                   \
    F(int, SSL_read, (mgl_ssl *, void *, int))                                                     \
    F(int, SSL_write, (mgl_ssl *, const void *, int))                                              \
    F(int, SSL_pending, (const mgl_ssl *))                                                         \
    F(int, SSL_get_error, (const mgl_ssl *, int))                                                  \
    F(int, SSL_is_server, (const mgl_ssl *))                                                       \
    F(mgl_bio *, SSL_get_rbio, (const mgl_ssl *))                                                  \
    F(mgl_bio *, SSL_get_wbio, (const mgl_ssl *))                                                  \
    F(void, SSL_set_bio, (mgl_ssl *, mgl_bio *, mgl_bio *))                                        \
    F(const void *, TLS_client_method, (void))                                                     \
    F(const void *, TLS_server_method, (void))                                                     \
    F(const char *, OpenSSL_version, (int))                                                        \
    F(unsigned long, OpenSSL_version_num, (void))                                                  \
    F(int, BIO_get_new_index, (void))                                                              \
    F(mgl_bio_method *, BIO_meth_new, (int, const char *))                                         \
    F(int, BIO_meth_set_read, (mgl_bio_method *, int (*)(mgl_bio *, char *, int)))                 \
    F(int, BIO_meth_set_write, (mgl_bio_method *, int (*)(mgl_bio *, const char *, int)))          \
    F(int, BIO_meth_set_ctrl, (mgl_bio_method *, long (*)(mgl_bio *, int, long, void *)))          \
    F(int, BIO_meth_set_destroy, (mgl_bio_method *, int (*)(mgl_bio *)))                           \
    F(mgl_bio *, BIO_new, (const mgl_bio_method *))                                                \
    F(int, BIO_free, (mgl_bio *))                                                                  \
    F(int, BIO_up_ref, (mgl_bio *))                                                                \
    F(void, BIO_set_data, (mgl_bio *, void *))                                                     \
    F(void *, BIO_get_data, (mgl_bio *))                                                           \
    F(void, BIO_set_init, (mgl_bio *, int))                                                        \
    F(void, BIO_set_flags, (mgl_bio *, int))                                                       \
    F(void, BIO_clear_flags, (mgl_bio *, int))                                                     \
    F(int, BIO_test_flags, (const mgl_bio *, int))                                                 \
    F(int, BIO_read, (mgl_bio *, void *, int))                                                     \
    F(int, BIO_write, (mgl_bio *, const void *, int))                                              \
    F(long, BIO_ctrl, (mgl_bio *, int, long, void *))

struct mgl_openssl {
#define F(type, name, parameters) type(*name) parameters;
    MGL_OPENSSL_FUNCTIONS(F)
#undef F
    mgl_bio_method *method; /* BIO method of pipes */
};

struct mgl_pipe {
    const struct mgl_openssl *lib;
    mgl_bio *stored_in, *stored_out; /* the memory BIOs, owned references */
    const char *in;                  /* attached: unread received data */
    size_t in_left;
    int in_waits; /* stored_in must be read first */
    char *out; /* attached buffer for outgoing data, or NULL */
    size_t out_size, out_used;
};

static inline size_t mgl_stored(const struct mgl_openssl *lib, mgl_bio *bio) {
    return (size_t) lib->BIO_ctrl(bio, MGL_CTRL_PENDING, 0, NULL);
}

static inline void mgl_pipe_attach_in(struct mgl_pipe *p, const char *data, size_t size) {
    p->in = data;
    p->in_left = size;
    p->in_waits = mgl_stored(p->lib, p->stored_in) > 0;
}

/* Detach a buffer: copy unread or unsent data to the memory BIO. 0 if memory is exhausted. */
static inline int mgl_pipe_detach_in(struct mgl_pipe *p) {
    int ok = p->in_left == 0
        || p->lib->BIO_write(p->stored_in, p->in, (int) p->in_left) == (int) p->in_left;
    p->in = NULL;
    p->in_left = 0;
    return ok;
}

static inline int mgl_pipe_detach_out(struct mgl_pipe *p) {
    int ok = p->out_used == 0
        || p->lib->BIO_write(p->stored_out, p->out, (int) p->out_used) == (int) p->out_used;
    p->out = NULL;
    p->out_used = p->out_size = 0;
    return ok;
}

#endif
