# SPDX-License-Identifier: GPL-2.0-only
"""Contract of mgloop.http._site; _site.pyx says what it is."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from mgloop._awaitable cimport Awaitable


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


# RuntimeError for what would be more than one line of a head, or none.
cdef inline int check_header(bytes name, bytes value) except -1:
    if not mgl_is_token(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
        raise RuntimeError("Invalid HTTP header name.")
    if not mgl_is_field_value(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)):
        raise RuntimeError("Invalid HTTP header value.")
    return 0


# What a Content-Length of the application's says.
cdef inline long long content_length(bytes value) except -1:
    cdef long long length = mgl_decimal(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    if length < 0:
        raise RuntimeError(f"Content-Length {value!r} is not a number of bytes")
    return length


# A piece of the body has n bytes: at most what is left of the length, and all of it in the end.
cdef inline int check_piece(Py_ssize_t n, long long left, bint more) except -1:
    if n > left:
        raise RuntimeError("Response content longer than Content-Length")
    if not more and n < left:
        raise RuntimeError("Response content shorter than Content-Length")
    return 0


# The first line of a response, by its status.
cdef tuple STATUS_LINES

# A response of the server's own, the last of its connection; `common`: Site.headers_now().
cdef bytes closing_response(int status, bytes text, bytes common)

# The lines of Site.headers_now() but for those that the application has given itself.
cdef bytes without(bytes lines, bint date, bint server)

# A line of a head, checked.
cdef bytes header_line(bytes name, bytes value)


# What a site keeps until it has ended: connections, websockets.
cdef class Member:
    cdef Site site
    cdef mgl_deadline deadline          # of what it waits for from the peer
    cdef mgl_deadline write_deadline    # of what the peer is to take

    cdef int set_deadline(self, int kind) except -1
    cdef int timed_out(self, int kind) except -1
    cdef int restart_deadlines(self) except -1


# A TLS handshake in progress. It counts as long as its connection holds this object, but no longer
# than its time-out: of a handshake that has failed, asyncio's loop can leave a reference cycle.
cdef class Handshake:
    cdef Site site
    cdef mgl_deadline end


cdef class Site:
    cdef readonly object loop
    cdef readonly object app
    cdef readonly object config
    cdef readonly dict state            # of the lifespan, or None
    cdef readonly object access_log     # callable, or None
    cdef readonly object proxy          # TrustedProxies, or None
    cdef readonly bint draining         # each response is the last of its connection
    cdef readonly bint closing          # idle connections are closed
    cdef bint ended                     # no connection is accepted, from no handshake either
    cdef public long long requests      # begun until now
    cdef public long in_flight          # now
    cdef readonly set members
    cdef readonly set running           # requests that wait for something
    cdef object idle                    # future of wait_drained(), or None
    cdef public object on_limit         # called once when limit_max_requests is reached
    cdef object factory                 # of connections
    cdef long handshakes                # of TLS, in progress
    cdef mgl_deadline handshakes_end    # the ring of their time-outs, in order
    # Its own, though they are the same in all: without the GIL, what every thread counts the
    # references of for each request is fetched from the other cores each time.
    cdef dict versions, extensions      # of each scope
    cdef tuple offered_names, offered   # the keys and the values in `extensions`
    cdef Awaitable ready                # what a send() returns that need not wait
    cdef dict task_options
    cdef bint asyncios_factory          # the loop's get_task_factory() is
    cdef object context                 # that the site was made in: a copy

    cdef Py_ssize_t limit_line, limit_head, limit_field, limit_headers, limit_body, body_buffer
    cdef double timeout_write           # in seconds; 0 = without end
    cdef long limit_concurrency, limit_connections
    cdef long long limit_requests
    cdef bytes root_path
    cdef str root
    cdef dict common_scope              # the last that a connection has made, for others like it

    cdef bytes head_end                 # server, date and the configured headers
    cdef long long made_at              # in seconds of time.time()

    cdef mgl_outgoing_pool pool         # buffers for the responses that begin

    cdef mgl_deadlines deadlines
    cdef object alarm                   # TimerHandle, or None
    cdef double rings_at

    cdef bytes headers_now(self)
    cdef int call_soon(self, object callback) except -1
    cdef int ring_by(self, double when) except -1
    cdef int ring_for_next(self) except -1
    cdef int expire(self, mgl_deadline *entry, int kind) except -1
    cdef object start(self, object coroutine)
    cdef long count_handshakes(self) noexcept
    cdef dict own_extensions(self)
    cdef int count_request(self) except -1
    cdef int left(self) except -1
    cdef int shorten_times(self) except -1
