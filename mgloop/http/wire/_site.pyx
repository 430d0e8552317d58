# SPDX-License-Identifier: GPL-2.0-only
"""Site: the state that all connections of one loop share while an application is served.

A site owns the application, the limits (as C integers, because they are checked per request), the
headers that all responses have, the pool of buffers for responses, and the timeouts. It also owns
the set of connections and requests that a shutdown has to wait for.

The module is native because each request passes through it. A site belongs to the thread of its
loop, and each loop of a process has a site of its own. The server and the connections keep it
alive.
"""

cimport cython
from cpython.object cimport PyObject
from libc.time cimport time, time_t

from mgloop._hooks cimport HookCore
from mgloop.http.wire._ready cimport Ready

import asyncio
import contextvars
import logging
import sys
from email.utils import formatdate
from http import HTTPStatus

from . import _coroutines


cdef object logger = logging.getLogger("mgloop.http")
cdef object Task = asyncio.Task


cdef extern from "Python.h":
    PyObject *PyTuple_GET_ITEM(object t, Py_ssize_t i)
    Py_ssize_t Py_REFCNT(PyObject *o)
    Py_ssize_t PyDict_GET_SIZE(PyObject *d)
    bint PyDict_CheckExact(PyObject *d)
    bint PyDict_Next(PyObject *d, Py_ssize_t *position, PyObject **key, PyObject **value) noexcept
    object PyObject_Call(object callable, tuple args, dict kwargs)


def _status_line(status):
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = tuple([_status_line(status) for status in range(600)])


#: The header lines of a closing response, for statuses that need more than "Connection: close". A
#: 426 names the protocol and the WebSocket version that the server supports, as RFC 9110 (15.5.22)
#: and RFC 6455 (4.4) require.
cdef dict CLOSINGS = {
    426: b"connection: close, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    503: b"connection: close\r\nretry-after: 1\r\n",
}


cdef bytes closing_response(int status, bytes text, bytes common):
    return b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        STATUS_LINES[status], len(text), CLOSINGS.get(status, b"connection: close\r\n"), common,
        text)


cdef bytes without(bytes lines, bint date, bint server):
    return b"".join([
        line for line in lines.splitlines(True)
        if not (date and line.startswith(b"date:") or server and line.startswith(b"server:"))])


cdef bytes header_line(bytes name, bytes value):
    check_header(name, value)
    return b"%b: %b\r\n" % (name, value)


# The timeout of a TLS handshake in asyncio, in seconds. It applies if the configuration sets none.
cdef double HANDSHAKE = 60.0

# The timeouts of peers during a shutdown, in seconds. Shorter ones of the configuration stay.
# docs/serve-deploying.md has a timeline of them. Any sequence of them takes less than 3 seconds.
cdef double LAST_HANDSHAKE = 1.0
cdef double LAST_HEAD = 0.5     # for the first request after a late handshake
cdef double LAST_BODY = 1.0     # between two pieces of a request's body
cdef double LAST_WRITE = 2.0    # for a client that reads nothing of its response
cdef double LAST_LINGER = 1.0   # to answer close_notify, or to close


cdef object new_task(object loop, object coroutine, object context, dict options):
    # The destructor of a coroutine that has not started needs memory for a warning. Without memory,
    # CPython loses the coroutine and all that it refers to, or crashes. All allocations that follow
    # the creation of the coroutine are therefore in this block.
    try:
        if options is not None:
            # Calling Task with keywords would create a dict for each call.
            return PyObject_Call(Task, (coroutine,), options)
        if context is not None:
            # Not create_task(context=...), which not every task factory accepts.
            return context.run(loop.create_task, coroutine)
        return loop.create_task(coroutine)
    except BaseException:
        coroutine.close()
        raise


cdef class Member:
    """Hold the deadlines of a connection, and define what a site calls on its members."""

    def __cinit__(self, *args, **kwargs):
        self.site = NOWHERE
        self.deadline.owner = self.write_deadline.owner = <void *>self

    def __dealloc__(self):
        mgl_deadline_unset(&self.deadline)
        mgl_deadline_unset(&self.write_deadline)

    cdef int set_deadline(self, int kind) except -1:
        """Set the deadline of this kind, counted from now."""
        cdef mgl_deadline *entry = &self.write_deadline if kind == MGL_WRITE else &self.deadline
        cdef double when = mgl_deadline_set(&self.site.deadlines, entry, kind)
        if when > 0 and (self.site.timer is None or when < self.site.timer_expires):
            self.site.arm_timer(when)
        return 0

    cdef int timed_out(self, int kind) except -1:
        """Called when a deadline that set_deadline() has set expires."""
        return 0

    cdef int restart_deadlines(self) except -1:
        """Restart all deadlines that are set, because the timeouts have become shorter."""
        return 0

    def begin_shutdown(self):
        """End as soon as the present request or message exchange has ended."""

    def cancel(self):
        """End immediately."""


# The garbage collector would clear `site` before __dealloc__(), which needs it. A Handshake is
# not in a reference cycle, because the site does not hold a reference to it.
@cython.no_gc
cdef class Handshake:
    def __cinit__(self, Site site not None):
        cdef mgl_deadline *ring = &site.handshakes_end
        self.site = site
        self.end.when = mgl_coarse_time() + (site.config.timeout_head or HANDSHAKE)
        self.end.before = ring.before
        self.end.after = ring
        ring.before.after = &self.end
        ring.before = &self.end
        site.handshakes += 1

    def __dealloc__(self):
        if self.end.before is not NULL:
            mgl_deadline_unset(&self.end)
            self.site.handshakes -= 1


cdef class Site:
    """Hold the state that the connections of `loop` share while they serve `app`.

    app: an ASGI 3 callable.
    config: an mgloop.http.Config.
    connection: the class of the connections, called with the site.
    state: the state that the application's lifespan has filled, which is copied into each scope, or
    None without a lifespan.
    access_log: None, or a callable for the end of each response, with the arguments (scope, status,
    bytes of the body, seconds).
    proxy: the TrustedProxies of mgloop.http.proxy, or None to believe no proxy.
    """

    def __cinit__(self, *args, **kwargs):
        self.members = set()
        self.running = set()
        self.made_at = -1
        self.ready = Ready.__new__(Ready)
        mgl_deadlines_init(&self.deadlines)
        self.handshakes_end.before = self.handshakes_end.after = &self.handshakes_end

    def __init__(self, loop, app, config, *, connection, state=None, access_log=None, proxy=None):
        self.factory = connection
        self.loop = loop
        self.task_options = {"loop": loop}
        if sys.version_info >= (3, 12):
            self.task_options["eager_start"] = True
        # Reading the attribute takes a tenth of the time of calling the method.
        if getattr(type(loop), "get_task_factory", None) is HookCore.get_task_factory:
            self.native_loop = loop
        self.context = contextvars.copy_context()
        self.app = app
        # From 2.4 on, frameworks stop watching for http.disconnect and rely on an OSError that
        # send() raises. Then a stream that waits for its next event never ends after its client
        # has disconnected, and background tasks are skipped.  2.3 is what uvicorn announces.
        self.versions = {"version": "3.0", "spec_version": "2.3"}
        self.extension_names = ("http.response.trailers", "http.response.early_hint")
        if config.sendfile:
            self.extension_names += ("http.response.pathsend", "http.response.zerocopysend")
        self.extensions = {}
        self.config = config
        self.state = state
        self.access_log = access_log
        self.proxy = proxy
        self.limit_line = config.limit_request_line or sys.maxsize
        self.limit_head = config.limit_request_head or sys.maxsize
        self.limit_field = config.limit_request_field or sys.maxsize
        self.limit_headers = config.limit_request_headers or sys.maxsize
        self.limit_body = config.limit_request_body or sys.maxsize
        self.body_buffer = config.body_buffer
        self.limit_concurrency = config.limit_concurrency or 0
        self.limit_connections = config.limit_connections or 0
        self.limit_requests = config.limit_max_requests or 0
        self.root = config.root_path
        self.root_path = config.root_path.encode()
        self.deadlines.lasts[MGL_HEAD] = config.timeout_head or 0
        self.deadlines.lasts[MGL_BODY] = config.timeout_body or 0
        self.deadlines.lasts[MGL_KEEP_ALIVE] = config.timeout_keep_alive or 0
        self.timeout_write = config.timeout_write or 0
        # Progress is checked four times per timeout, because a check finds out only that the client
        # has received something since the last check, not when.
        self.deadlines.lasts[MGL_WRITE] = self.timeout_write / 4
        self.deadlines.lasts[MGL_TAIL] = 0.5
        self.deadlines.lasts[MGL_LINGER] = 2.0

    def __dealloc__(self):
        # The garbage collector may free the site before its connections. Their entries are linked
        # into these queues.
        mgl_deadlines_clear(&self.deadlines)
        mgl_pool_clear(&self.pool)

    def connection(self):
        """Return a new connection: the protocol factory of a listening socket."""
        return self.factory(self)

    def connection_over_tls(self):
        """Return a new connection: the protocol factory of a listening socket with TLS.

        Raise ConnectionRefusedError at the limit of connections. TLS handshakes in progress count,
        because silent clients could hold any number of descriptors otherwise. One connection more
        than the limit is accepted, so that it gets a 503 response.
        """
        if 0 < self.limit_connections < len(self.members) + self.count_handshakes():
            raise ConnectionRefusedError("too many connections")
        connection = self.factory(self)
        connection.handshake = Handshake(self)
        return connection

    @property
    def shaking_hands(self):
        """Whether a TLS handshake is in progress."""
        return self.count_handshakes() > 0

    cdef long count_handshakes(self) noexcept:
        """Return the number of TLS handshakes in progress."""
        cdef double now = mgl_coarse_time()
        while self.handshakes and self.handshakes_end.after.when <= now:
            mgl_deadline_unset(self.handshakes_end.after)
            self.handshakes -= 1
        return self.handshakes

    # ------------------------------------------------------------------ responses ----

    cdef bytes headers_now(self):
        """Return the header lines that all responses have."""
        cdef time_t now = time(NULL)
        if now != self.made_at:
            lines = []
            given = {in_latin(name).lower() for name, _ in self.config.headers}
            if self.config.server_header and b"server" not in given:
                lines.append(b"server: mgloop\r\n")
            if self.config.date_header and b"date" not in given:
                lines.append(b"date: %s\r\n" % formatdate(now, usegmt=True).encode())
            for name, value in self.config.headers:
                # In lower case, because without() compares the names with lower-case ones.
                lines.append(b"%b: %b\r\n" % (in_latin(name).lower(), in_latin(value)))
            self.head_end = b"".join(lines)
            self.made_at = now
        return self.head_end

    cdef int call_soon(self, object callback) except -1:
        """Call loop.call_soon() with the site's context, not that of the request that runs."""
        self.loop.call_soon(callback, context=self.context.copy())
        return 0

    # ------------------------------------------------------------------- timeouts ----

    cdef int arm_timer(self, double when) except -1:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if not self.loop.is_closed():
            self.timer_expires = when
            self.timer = self.loop.call_later(
                max(0.01, when - mgl_coarse_time()), self._timer_expired,
                context=self.context.copy())
        return 0

    def _timer_expired(self):
        cdef double now = mgl_coarse_time() + 0.005
        cdef mgl_deadline *first
        cdef int kind
        self.timer = None
        try:
            for kind in range(MGL_KINDS):
                first = mgl_deadline_first(&self.deadlines, kind)
                while first is not NULL and first.when <= now:
                    self.expire(first, kind)
                    first = mgl_deadline_first(&self.deadlines, kind)
        finally:
            self.arm_timer_for_next()

    cdef int arm_timer_for_next(self) except -1:
        """Set the timer for the deadline that expires first."""
        cdef double next = 0
        cdef mgl_deadline *first
        cdef int kind
        for kind in range(MGL_KINDS):
            first = mgl_deadline_first(&self.deadlines, kind)
            if first is not NULL and (next == 0 or first.when < next):
                next = first.when
        if next > 0 and (self.timer is None or next < self.timer_expires):
            self.arm_timer(next)
        return 0

    cdef int expire(self, mgl_deadline *entry, int kind) except -1:
        """Handle a deadline that has expired.

        An exception closes the connection of this deadline only. The other deadlines are still
        handled, and the timer for the next ones is still set.
        """
        cdef Member member = <Member>entry.owner
        mgl_deadline_unset(entry)
        try:
            member.timed_out(kind)
        except Exception:
            logger.exception("Exception while handling a timeout; closing the connection.")
            member.cancel()
        return 0

    # ---------------------------------------------------------------------- tasks ----

    cdef object start(self, object coroutine):
        """Run the coroutine in a new task and return the task.

        From Python 3.12 on, the task starts immediately, unless the loop has a task factory. An
        exception closes the coroutine.
        """
        cdef object factory
        if self.native_loop is None:
            factory = self.loop.get_task_factory()
        else:
            factory = self.native_loop._task_factory
        return new_task(self.loop, coroutine, None, self.task_options if factory is None else None)

    cdef dict own_extensions(self):
        """Return the extensions of a scope. No other scope has any of these dicts.

        Those of an earlier scope are used again if nothing refers to them any more and the
        application has not changed them.
        """
        cdef Py_ssize_t position = 0, i = 0
        cdef PyObject *key = NULL
        cdef PyObject *value = NULL
        if Py_REFCNT(<PyObject *>self.extensions) == 1 \
                and PyDict_GET_SIZE(<PyObject *>self.extensions) == len(self.extension_names):
            while PyDict_Next(<PyObject *>self.extensions, &position, &key, &value):
                if key is not PyTuple_GET_ITEM(self.extension_names, i) or Py_REFCNT(value) > 1 \
                        or not PyDict_CheckExact(value) or PyDict_GET_SIZE(value):
                    break
                i += 1
            else:
                return self.extensions
        self.extensions = {name: {} for name in self.extension_names}
        return self.extensions

    cdef int count_request(self) except -1:
        self.requests += 1
        if self.requests == self.limit_requests and self.on_limit is not None:
            self.on_limit()
        return 0

    # ------------------------------------------------------------------- the end ----

    @property
    def connections(self):
        """The number of connections, including WebSockets."""
        return len(self.members)

    def attach(self, member):
        """Add a member, which a shutdown will end; cancel it if the site has ended already."""
        self.members.add(member)
        if self.ended:      # its TLS handshake has outlasted the server
            member.cancel()

    def detach(self, member):
        """Remove a member, which has ended."""
        self.members.discard(member)
        self.left()

    cdef int left(self) except -1:
        if self.idle is not None and not self.members and not self.running:
            if not self.idle.done():
                self.idle.set_result(None)
        return 0

    def begin_draining(self):
        """Make each response the last one of its connection from now on."""
        self.draining = True

    def begin_shutdown(self):
        """Close idle connections, and make the others close after their response."""
        cdef bint begins = not self.closing
        self.draining = self.closing = True
        if begins:
            self.shorten_times()
        for member in list(self.members):
            member.begin_shutdown()
            if begins and isinstance(member, Member):
                (<Member>member).restart_deadlines()
        if begins:
            self.watch_files()

    def watch_files(self):
        """Start to cut off clients that do not read the file that is being sent to them."""
        from . import files

        for request in self.running:
            if request.file_timeout is not None:
                files.watch(request)

    cdef int shorten_times(self) except -1:
        """Shorten the timeouts of peers to those of a shutdown.

        The caller has to set all present deadlines again, because each queue of deadlines is in the
        order of time.
        """
        cdef double *lasts = self.deadlines.lasts
        cdef double latest = mgl_coarse_time() + LAST_HANDSHAKE
        cdef mgl_deadline *handshake = self.handshakes_end.after
        lasts[MGL_HEAD] = shorter(lasts[MGL_HEAD], LAST_HEAD)
        lasts[MGL_BODY] = shorter(lasts[MGL_BODY], LAST_BODY)
        self.timeout_write = shorter(self.timeout_write, LAST_WRITE)
        lasts[MGL_WRITE] = self.timeout_write / 4
        lasts[MGL_LINGER] = LAST_LINGER
        while handshake is not &self.handshakes_end:
            handshake.when = min(handshake.when, latest)
            handshake = handshake.after
        return 0

    def end_streams(self):
        """Cut off responses of unknown length and requests with an incomplete body.

        Return the number of those that were cut off.
        """
        return sum([request.end_stream() for request in list(self.running)])

    def cancel_streams(self):
        """Cancel the applications that have not ended after end_streams(); return their number."""
        late = [request for request in self.running if request.cut_off]
        for request in late:
            request.cancel()
        return len(late)

    def end(self):
        """Accept no more connections, not even those whose TLS handshake is in progress.

        End the threads of a WSGI application.
        """
        self.ended = True
        if self.wsgi is not None:
            self.wsgi.close()

    def wait_drained(self):
        """Wait until all connections have ended, and all applications have returned."""
        return _coroutines.wait_drained(self)

    def next_end(self):
        """Return a future that is done when no connection and no application is left, or None if
        none is left now."""
        if not self.members and not self.running:
            return None
        if self.idle is None or self.idle.done():
            self.idle = self.loop.create_future()
        return self.idle

    def cancel_all(self):
        """Cancel all applications that still run, and close all connections that are still open."""
        for request in list(self.running):
            request.cancel()
        for member in list(self.members):
            member.cancel()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


cdef double shorter(double seconds, double limit) noexcept:
    """Return the shorter of two timeouts in seconds; `seconds` may be 0, which means no timeout."""
    return min(seconds, limit) if seconds > 0 else limit


# The site of a Member that Python code has created without calling __init__().
cdef Site NOWHERE = Site.__new__(Site)


cdef bytes in_latin(object text):
    return text.encode("latin-1") if isinstance(text, str) else bytes(text)
