# SPDX-License-Identifier: GPL-2.0-only
"""Declare the access to the interpreter's own OpenSSL, where it can be called safely."""

cdef extern from "openssl.h":
    ctypedef struct mgl_ssl:
        pass

    ctypedef struct mgl_bio:
        pass

    cdef struct mgl_openssl:
        int (*SSL_read)(mgl_ssl *, void *, int) noexcept
        int (*SSL_write)(mgl_ssl *, const void *, int) noexcept
        int (*SSL_pending)(const mgl_ssl *) noexcept
        int (*SSL_get_error)(const mgl_ssl *, int) noexcept
        int (*SSL_is_server)(const mgl_ssl *) noexcept
        mgl_bio *(*SSL_get_rbio)(const mgl_ssl *) noexcept
        mgl_bio *(*SSL_get_wbio)(const mgl_ssl *) noexcept
        const void *(*TLS_client_method)() noexcept
        const void *(*TLS_server_method)() noexcept
        const char *(*OpenSSL_version)(int) noexcept
        unsigned long (*OpenSSL_version_num)() noexcept
        int (*BIO_read)(mgl_bio *, void *, int) noexcept
        int (*BIO_write)(mgl_bio *, const void *, int) noexcept
        void *method

    cdef struct mgl_pipe:
        const mgl_openssl *lib
        mgl_bio *stored_in
        mgl_bio *stored_out
        size_t in_left
        char *out
        size_t out_size
        size_t out_used

    enum:
        MGL_WANT_READ
        MGL_WANT_WRITE

    size_t mgl_stored(const mgl_openssl *lib, mgl_bio *bio) noexcept
    void mgl_pipe_attach_in(mgl_pipe *pipe, const char *data, size_t size) noexcept
    bint mgl_pipe_detach_in(mgl_pipe *pipe) noexcept
    bint mgl_pipe_detach_out(mgl_pipe *pipe) noexcept


# Return the session of an `_ssl._SSLSocket`, or NULL if it must not be called directly.
cdef mgl_ssl *session_of(object raw) except? NULL
# Insert a pipe (pipe_bio.h) between the session and its memory BIOs, and return it. The session
# owns the pipe.
cdef mgl_pipe *insert_pipe(mgl_ssl *session) except NULL
