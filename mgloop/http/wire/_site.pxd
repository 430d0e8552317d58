# SPDX-License-Identifier: GPL-2.0-only
"""Declare Site, the state that all connections of a loop share, and helpers for HTTP heads.

_site.pyx explains what a site owns.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from mgloop._awaitable cimport Awaitable
from mgloop._hooks cimport HookCore


cdef extern from "outgoing.h":
    ctypedef struct mgl_outgoing:
        char *data
        size_t len

    ctypedef struct mgl_outgoing_pool:
        pass

    enum:
        MGL_DECIMAL_DIGITS
        MGL_CHUNK_LINE

    mgl_outgoing *mgl_pool_take(mgl_outgoing_pool *pool) except NULL
    void mgl_pool_give(mgl_outgoing_pool *pool, mgl_outgoing *out) noexcept
    void mgl_pool_clear(mgl_outgoing_pool *pool) noexcept
    void mgl_out_free(mgl_outgoing *out) noexcept
    int mgl_out_reserve(mgl_outgoing *out, size_t more) except -1
    void mgl_put(mgl_outgoing *out, const char *data, size_t len) noexcept
    void mgl_put_decimal(mgl_outgoing *out, unsigned long long number) noexcept
    void mgl_put_chunk_line(mgl_outgoing *out, size_t size) noexcept
    void mgl_put_field(mgl_outgoing *out, const char *name, size_t name_len, const char *value,
                       size_t len) noexcept
    long long mgl_decimal(const char *text, size_t len) noexcept
    enum:
        MGL_OTHER_HEADER
        MGL_CONTENT_LENGTH
        MGL_TRANSFER_ENCODING
        MGL_CONNECTION
        MGL_DATE
        MGL_SERVER
    int mgl_header_kind(const char *name, size_t len) noexcept
    bint mgl_is_token(const char *text, size_t len) noexcept
    bint mgl_is_method(const char *text, size_t len) noexcept
    bint mgl_is_host(const char *text, size_t len) noexcept
    bint mgl_is_field_value(const char *text, size_t len) noexcept
    void mgl_lower(char *to, const char *source, size_t len) noexcept
    size_t mgl_unquote(char *to, const char *source, size_t len) noexcept


cdef extern from "objects.h":
    ctypedef struct PyMethodDef:
        pass
    enum:
        MGL_FREE_THREADED
    PyMethodDef *mgl_method_of(object descriptor) except NULL
    object bound_method "PyCFunction_NewEx"(PyMethodDef *method, object owner, void *module)


cdef extern from "deadlines.h":
    enum:
        MGL_HEAD
        MGL_BODY
        MGL_KEEP_ALIVE
        MGL_TAIL
        MGL_WRITE
        MGL_LINGER
        MGL_KINDS

    ctypedef struct mgl_deadline:
        mgl_deadline *before
        mgl_deadline *after
        double when
        void *owner

    ctypedef struct mgl_deadlines:
        double *lasts

    void mgl_deadlines_init(mgl_deadlines *all) noexcept
    void mgl_deadlines_clear(mgl_deadlines *all) noexcept
    void mgl_deadline_unset(mgl_deadline *entry) noexcept
    double mgl_deadline_set(mgl_deadlines *all, mgl_deadline *entry, int kind) noexcept
    mgl_deadline *mgl_deadline_first(mgl_deadlines *all, int kind) noexcept
    double mgl_coarse_time() noexcept


# Raise RuntimeError for a header that is not valid as one line of a head.
cdef inline int check_header(bytes name, bytes value) except -1:
    if not mgl_is_token(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
        raise RuntimeError("Invalid HTTP header name.")
    if not mgl_is_field_value(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)):
        raise RuntimeError("Invalid HTTP header value.")
    return 0


# The status lines of responses, as bytes. The index is the status, 0 to 599.
cdef tuple STATUS_LINES

# Return a whole response that the server sends itself, and after which it closes the connection.
# `common`: the result of Site.headers_now().
cdef bytes closing_response(int status, bytes text, bytes common)

# Return `lines` (from Site.headers_now()) without Date if `date` is true, and without Server if
# `server` is true.
cdef bytes without(bytes lines, bint date, bint server)

# Return a header line, as bytes; raise RuntimeError if it is invalid.
cdef bytes header_line(bytes name, bytes value)

# Return a new task for a coroutine. If that raises, close the coroutine. `context`: the context of
# which the task gets a copy, or None for the current one. `options`: the keywords for asyncio.Task,
# or None to let the loop create the task.
cdef object new_task(object loop, object coroutine, object context, dict options)


# The base class of connections, including WebSockets. A site keeps its members alive until they
# have ended.
cdef class Member:
    cdef Site site
    cdef mgl_deadline deadline          # for data that the peer has to send
    cdef mgl_deadline write_deadline    # for data that the peer has to receive

    cdef int set_deadline(self, int kind) except -1
    cdef int timed_out(self, int kind) except -1
    cdef int restart_deadlines(self) except -1


# A TLS handshake in progress. It counts as such while its connection holds this object, but at most
# until its timeout. The timeout is needed because a failed handshake can leave a reference cycle in
# asyncio's loop, which keeps the connection alive until the garbage collector runs.
cdef class Handshake:
    cdef Site site
    cdef mgl_deadline end


cdef class Site:
    cdef readonly object loop
    cdef readonly object app
    cdef readonly object config
    cdef readonly dict state            # the state from the lifespan, or None
    cdef readonly object access_log     # callable, or None
    cdef readonly object proxy          # TrustedProxies, or None
    cdef public object wsgi             # the WsgiRunner of a WSGI application, or None for ASGI
    cdef public object handler          # the HandlerRunner of a compiled handler, or None
    cdef readonly bint draining         # each response is the last of its connection
    cdef readonly bint closing          # idle connections are closed
    cdef bint ended                     # no connection is accepted, not even after a TLS handshake
    cdef public long long requests      # the number of requests started so far
    cdef public long in_flight          # the number of requests whose application runs
    cdef readonly set members
    cdef readonly set running           # requests whose application has been suspended
    cdef object idle                    # the future of wait_drained(), or None
    cdef public object on_limit         # called once when limit_max_requests is reached
    cdef object factory                 # the class of connections
    cdef long handshakes                # the number of TLS handshakes in progress
    cdef mgl_deadline handshakes_end    # the ring of their timeouts, in the order of time
    # The objects below are equal in all sites, but each site has its own. Every request changes
    # their reference counts. Without the GIL, threads that share an object would move its cache
    # line between the cores at each change.
    cdef dict versions                  # what "asgi" of a scope contains
    cdef dict extensions                # "extensions" of a scope, for the next ones
    cdef tuple extension_names          # the keys of `extensions`
    cdef Awaitable ready                # returned by a send() that need not wait
    cdef dict task_options
    cdef HookCore native_loop           # the loop, if its get_task_factory() is mgloop's, else None
    cdef object context                 # a copy of the context in which the site was created

    cdef Py_ssize_t limit_line, limit_head, limit_field, limit_headers, limit_body, body_buffer
    cdef double timeout_write           # in seconds; 0 = no timeout
    cdef long limit_concurrency, limit_connections
    cdef long long limit_requests
    cdef bytes root_path
    cdef str root
    cdef dict common_scope              # the last one that a connection has created, for reuse
    cdef dict common_environ            # likewise, for WSGI

    cdef bytes head_end                 # the lines of Server, Date and the configured headers
    cdef long long made_at              # time.time() of `head_end`, in whole seconds

    cdef mgl_outgoing_pool pool         # buffers that no response uses at present

    cdef mgl_deadlines deadlines
    cdef object timer                   # the TimerHandle for the first deadline, or None
    cdef double timer_expires           # when it expires, as mgl_coarse_time()

    cdef bytes headers_now(self)
    cdef int call_soon(self, object callback) except -1
    cdef int arm_timer(self, double when) except -1
    cdef int arm_timer_for_next(self) except -1
    cdef int expire(self, mgl_deadline *entry, int kind) except -1
    cdef object start(self, object coroutine)
    cdef long count_handshakes(self) noexcept
    cdef dict own_extensions(self)
    cdef int count_request(self) except -1
    cdef int left(self) except -1
    cdef int shorten_times(self) except -1
