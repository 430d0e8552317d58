# SPDX-License-Identifier: GPL-2.0-only
"""Watch descriptors that belong to the user: add_reader(), add_writer() and waiting sock_*() calls.

    ScheduleCore (_schedule)  polling and scheduling
      +- FdCore               add_reader() and related methods
           +- SockCore        (_sock) sock_recv() and related methods

The module is native because the callbacks run per packet. epoll has one registration per
descriptor, and therefore one FdWatch per descriptor serves its reader, its writer and all sock_*()
calls that wait for it. Only the loop's thread may use it. The poll table holds a reference to an
FdWatch while it is registered.
"""

cimport cython
from cpython.long cimport PyLong_AsLongAndOverflow
from cpython.object cimport PyObject
from libc.errno cimport EBADF
from libc.limits cimport INT_MAX
from libc.stdint cimport uint32_t

from mgloop._handle cimport Handle
from mgloop._loop cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, LoopCore, PyTypeObject, Watcher, mgl_ring_push,
    traverseproc, visitproc,
)
from mgloop._traverse cimport visit_handle

import weakref

from . import _stdlib
from ._selector_view import SelectorView


cdef class Waiter(Call):
    """A sock_*() call that waits until its descriptor is ready."""

    cdef bint attempt(self) except -1:
        return True

    cdef int fail(self, object exc) except -1:
        return 0


@cython.final
@cython.freelist(16)
cdef class Direction:
    """Reading or writing of one descriptor: the user's callback for it, and the waiting calls."""

    cdef bint in_use(self) noexcept:
        """Return whether there is a callback or a waiting call."""
        return self.callback is not None or self.first is not None

    cdef void append(self, Waiter waiter) noexcept:
        """Append a call, and the calls that are linked after it."""
        if self.last is None:
            self.first = waiter
        else:
            self.last.next = waiter
        while waiter.next is not None:
            waiter = waiter.next
        self.last = waiter

    cdef bint remove(self, Waiter waiter) noexcept:
        """Remove a call that no longer waits. Return whether it was in the list."""
        cdef Waiter before = None
        cdef Waiter other = self.first
        while other is not None and other is not waiter:
            before = other
            other = other.next
        if other is None:
            return False
        if before is None:
            self.first = waiter.next
        else:
            before.next = waiter.next
        if self.last is waiter:
            self.last = before
        waiter.next = None
        return True

    cdef bint attempt_all(self) except -1:
        """Have each waiting call try once, in order, and keep those that must wait again.

        Return whether any call is done.
        """
        cdef Waiter waiter
        cdef Waiter rest = self.first
        cdef bint any_done = False
        self.first = self.last = None
        while rest is not None:
            waiter = rest
            rest = waiter.next
            waiter.next = None
            try:
                if waiter.attempt():
                    any_done = True
                else:
                    self.append(waiter)
            except BaseException:
                waiter.next = rest
                self.append(waiter)
                raise
        return any_done

    cdef int fail_all(self, object exc) except -1:
        """Fail all waiting calls with `exc`."""
        cdef Waiter waiter = self.first
        while waiter is not None:
            waiter.fail(exc)
            waiter = waiter.next
        self.first = self.last = None
        return 0

    cdef int cancel_callback(self) except -1:
        cdef Handle callback = self.callback
        self.callback = None
        if callback is not None:
            callback.cancel()
        return 0


cdef Direction new_direction(uint32_t event):
    cdef Direction direction = Direction.__new__(Direction)
    direction.event = event
    return direction


@cython.final
cdef class FdWatch(Watcher):
    """The registration of a descriptor that belongs to the user.

    wanted() computes the events to register for:

        interest in the descriptor            events
        a reader or a writer, with or         EPOLLIN and EPOLLOUT, as the reader, the writer and
        without waiting sock_*() calls        the calls need them
        waiting calls only, or a socket       EPOLLIN | EPOLLRDHUP | EPOLLET, and EPOLLOUT from
        for which calls have waited           the first call that has to wait until it can write
        neither of these                      none: the registration is removed

    With a reader or writer the registration is level-triggered, as in asyncio: the loop calls the
    callback again while data is left. For sock_*() calls alone it is edge-triggered. It is made
    once per socket and stays in place, which saves two system calls each time that a call waits.

    The user may close the descriptor at any time. The kernel then removes the registration, the
    generation in the key of the registration exposes a stale event, and `sock` distinguishes a new
    socket with the same descriptor number from the socket that was registered.
    """

    def __cinit__(self):
        self.reading = new_direction(EPOLLIN)
        self.writing = new_direction(EPOLLOUT)

    cdef bint owns_descriptor(self) noexcept:
        return False

    cdef Direction direction(self, uint32_t event):
        """Return the direction for EPOLLIN or EPOLLOUT."""
        return self.writing if event == EPOLLOUT else self.reading

    cdef bint has_callback(self) noexcept:
        """Return whether the descriptor has a reader or a writer."""
        return self.reading.callback is not None or self.writing.callback is not None

    cdef uint32_t wanted(self) noexcept:
        """Return the events to register for; 0 means that the registration is not needed."""
        cdef uint32_t mask = 0
        if self.has_callback():
            if self.reading.in_use():
                mask |= EPOLLIN
            if self.writing.in_use():
                mask |= EPOLLOUT
        elif self.reading.in_use() or self.writing.in_use() or self.sock is not None:
            mask = EPOLLIN | EPOLLRDHUP | EPOLLET
            # EPOLLOUT is registered only when a call has to wait until it can write
            # (SocketTransport.interest() explains why). It then stays registered, because the same
            # socket may have to wait again.
            if self.writing.in_use() or (self.mask & EPOLLET and self.mask & EPOLLOUT):
                mask |= EPOLLOUT
        return mask

    cdef int sync(self) except -1:
        """Update the kernel's registration to wanted(). Raise OSError and RuntimeError."""
        cdef uint32_t mask = self.wanted()
        cdef LoopCore loop = self.loop
        if mask == 0:
            loop.unwatch(self)
        elif loop.owner_of(self.fd) is self:
            # Call epoll_ctl() even if the mask has not changed. The user may have closed the
            # descriptor and opened another file with the same number, and only the kernel knows.
            loop.rearm(self, mask)
        else:
            loop.watch(self, self.fd, mask)
        self.mask = mask
        return 0

    cdef int try_sync(self) except -1:
        """Call sync() after user code has run, which may have closed the descriptor or the loop.

        If the descriptor was closed, the waiting sock_*() calls fail with OSError. As in asyncio,
        the loop then stops calling the reader and the writer.
        """
        if self.loop._closed:
            return 0
        try:
            self.sync()
        except OSError:
            self.fail_waiters()
        return 0

    cdef bint on_event(self, uint32_t events) except -1:
        """Queue the handles of the reader and the writer, not the FdWatch.

        A callback that is removed or replaced before the loop runs it is then cancelled, and the
        replacement is not called for an event from the time before it was added.
        """
        if events & ~EPOLLOUT and self.reading.callback is not None:
            mgl_ring_push(&self.loop.ready, <PyObject *>self.reading.callback)
        if events & ~EPOLLIN and self.writing.callback is not None:
            mgl_ring_push(&self.loop.ready, <PyObject *>self.writing.callback)
        return self.reading.first is None and self.writing.first is None

    cdef int on_ready(self, uint32_t events) except -1:
        cdef bint changed = False
        if events & ~EPOLLOUT:
            changed = self.reading.attempt_all()
        if events & ~EPOLLIN and self.fd >= 0:
            changed |= self.writing.attempt_all()
        if changed and not self.mask & EPOLLET and self.fd >= 0:
            self.try_sync()
        return 0

    cdef int relinquish(self, Watcher other) except -1:
        """Give up the descriptor: it is another file now, or a transport takes it over."""
        self.ready = 0
        self.fd = -1
        self.file = self.sock = None
        self.fail_waiters()
        self.reading.cancel_callback()
        self.writing.cancel_callback()
        # `displaced` is a closing transport that is still sending. From now on `other` passes the
        # events on to it.
        other.displaced = self.displaced
        self.displaced = None
        return 0

    cdef int enlist(self, Waiter waiter, object sock) except -1:
        """Add a waiting call on `sock`. Raise OSError if the descriptor cannot be registered."""
        cdef bint known = self.sock is not None and self.sock() is sock
        if not known:
            if self.sock is not None:
                self.fail_waiters()
            self.sock = weakref.ref(sock)
        self.direction(waiter.event).append(waiter)
        # No system call is needed if the socket is known, its registration is edge-triggered for
        # the right events, and the loop has not given the descriptor to another owner.
        if not known or not self.mask & EPOLLET or not self.mask & waiter.event \
                or self.loop.owner_of(self.fd) is not self:
            try:
                self.sync()
            except BaseException:
                self.delist(waiter)
                raise
        return 0

    cdef int delist(self, Waiter waiter) except -1:
        """Remove a call that no longer waits from its list, if it is in it."""
        if self.direction(waiter.event).remove(waiter) \
                and not self.mask & EPOLLET and self.fd >= 0:
            self.try_sync()
        return 0

    cdef int fail_waiters(self) except -1:
        """Fail all waiting calls, because their socket was closed.

        In asyncio they would wait forever.
        """
        exc = OSError(EBADF, "the socket was closed while this call was waiting for it")
        self.reading.fail_all(exc)
        self.writing.fail_all(exc)
        return 0


cdef traverseproc direction_traverse_cython = (<PyTypeObject *>Direction).tp_traverse


cdef int direction_traverse(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef int rc = direction_traverse_cython(o, visit, arg)
    if rc == 0:
        rc = visit_handle(<PyObject *>(<Direction>o).callback, visit, arg)
    return rc


(<PyTypeObject *>Direction).tp_traverse = direction_traverse


# ------------------------------------------------------------------ methods of the loop ----

cdef inline int fileno_of(object fd) except -1:
    cdef long number
    cdef int overflow
    if type(fd) is int:
        number = PyLong_AsLongAndOverflow(fd, &overflow)    # -1 after an overflow
        if 0 <= number <= INT_MAX:
            return <int>number
    return _stdlib.fileno(fd)


cdef class FdCore(ScheduleCore):
    """Add to ScheduleCore the methods that watch descriptors of the user."""

    cdef FdWatch fd_watch(self, int fd, bint create):
        """Return the FdWatch of a user's descriptor.

        If it does not exist return None, or a new one if *create* is true.
        """
        cdef FdWatch watch
        cdef Watcher owner = self.owner_of(fd)
        if type(owner) is FdWatch:
            return <FdWatch>owner
        if not create:
            return None
        watch = FdWatch.__new__(FdWatch)
        watch.loop = self
        watch.fd = fd
        return watch

    cdef int users_fd(self, object fd, bint watched=False) except -1:
        """Return the descriptor number of *fd*, an int or a file object.

        With *watched*, a closed file that is still registered is accepted as well. Raise
        RuntimeError if the descriptor belongs to a transport that is not closing, and ValueError if
        *fd* is not a descriptor.
        """
        cdef int fileno = self.watched_fd(fd) if watched else fileno_of(fd)
        self.check_owner(fileno, fd)
        return fileno

    cdef int check_owner(self, int fileno, object fd=None) except -1:
        """Raise RuntimeError if the descriptor belongs to a transport that is not closing.

        *fd* is the object that names the descriptor in the message, if it is not the number.
        """
        cdef Watcher owner = self.owner_of(fileno)
        if owner is not None and owner.owns_descriptor():
            raise RuntimeError(f"File descriptor {fileno if fd is None else fd!r}"
                               f" is used by transport {owner!r}")
        if self.shared is not None:
            self.check_shared(fileno)
        return 0

    cdef int check_shared(self, int fileno) except -1:
        """Raise RuntimeError if the descriptor belongs to an open transport of asyncio's own."""
        transport = self.shared.get(fileno)
        if transport is not None and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fileno} is used by transport {transport!r}")
        return 0

    def _share_descriptors(self, transports):
        """Refuse add_reader() and similar calls for the keys of {descriptor: transport}."""
        self.shared = transports

    cdef int watched_fd(self, object fd) except -1:
        """Return the descriptor number of *fd*, also of a watched file that was closed since.

        Raise ValueError if *fd* is neither.
        """
        cdef int fileno
        try:
            fileno = fileno_of(fd)
        except ValueError:
            fileno = -1 if type(fd) is int else self.number_of_watched_file(fd)
            if fileno < 0:
                raise
        return fileno

    cdef int number_of_watched_file(self, object file) except -2:
        """Return the number under which *file* is watched, or -1 if it is not watched."""
        cdef Watcher owner
        cdef int fileno
        for fileno in range(self.watch_limit()):
            owner = self.owner_of(fileno)
            if type(owner) is FdWatch and (<FdWatch>owner).file is file:
                return fileno
        return -1

    def _ensure_fd_no_transport(self, fd):
        return self.users_fd(fd)

    # Since 3.15 asyncio's transports, which serve sockets of other classes, pass their context.
    def _add_reader(self, fd, callback, *args, context=None):
        return self.add_interest(fd, fileno_of(fd), callback, args, EPOLLIN, context)

    def _add_writer(self, fd, callback, *args, context=None):
        return self.add_interest(fd, fileno_of(fd), callback, args, EPOLLOUT, context)

    cdef Handle add_interest(self, object file, int fd, object callback, tuple args,
                             uint32_t event, object context):
        """Set the callback for EPOLLIN or EPOLLOUT of a descriptor. Return its handle.

        The callback runs in *context*, or in a copy of the current context if that is None.
        """
        cdef Handle handle, previous
        cdef FdWatch watch
        cdef Direction direction
        if self._closed:
            self._check_closed()
        watch = self.fd_watch(fd, True)
        direction = watch.direction(event)
        handle = self.make_handle(callback, args, context)
        handle.lasting = True
        previous = direction.callback
        if not watch.has_callback():
            watch.file = file
        direction.callback = handle
        try:
            watch.sync()
        except BaseException:
            direction.callback = previous
            if not watch.has_callback():
                watch.file = None
            raise
        if previous is not None:
            previous.cancel()
        return handle

    def _remove_reader(self, fd):
        return bool(self.remove_interest(self.watched_fd(fd), EPOLLIN))

    def _remove_writer(self, fd):
        return bool(self.remove_interest(self.watched_fd(fd), EPOLLOUT))

    cdef int remove_interest(self, int fd, uint32_t event) except -1:
        """Remove the callback for EPOLLIN or EPOLLOUT; return 1 if there was one, else 0."""
        cdef FdWatch watch
        cdef Direction direction
        cdef Handle handle
        if self._closed:
            return 0
        watch = self.fd_watch(fd, False)
        if watch is None:
            return 0
        direction = watch.direction(event)
        handle = direction.callback
        if handle is None:
            return 0
        direction.callback = None
        if not watch.has_callback():
            watch.file = None
        try:
            watch.sync()
        except OSError:
            # The user closed the descriptor first, and so the kernel has removed the registration.
            pass
        handle.cancel()
        return 1

    def add_reader(self, fd, callback, *args):
        """Call callback(*args) whenever *fd* is readable; as asyncio.loop.add_reader.

        *fd* is a descriptor or an object with fileno(). Raise OSError if epoll cannot watch it
        (PermissionError for a regular file), and RuntimeError if a transport owns it.
        """
        self.add_interest(fd, self.users_fd(fd), callback, args, EPOLLIN, None)

    def add_writer(self, fd, callback, *args):
        """Call callback(*args) whenever *fd* is writable; as asyncio.loop.add_writer.

        Raise the same errors as add_reader().
        """
        self.add_interest(fd, self.users_fd(fd), callback, args, EPOLLOUT, None)

    def remove_reader(self, fd):
        """Stop watching *fd* for reading. Return whether it was watched."""
        return bool(self.remove_interest(self.users_fd(fd, True), EPOLLIN))

    def remove_writer(self, fd):
        """Stop watching *fd* for writing. Return whether it was watched."""
        return bool(self.remove_interest(self.users_fd(fd, True), EPOLLOUT))

    @property
    def _selector(self):
        """Return a view of the watched descriptors in the form of a selector; None once closed."""
        return None if self._closed else SelectorView(self)

    def _interest(self, int fd):
        """Return (reader, writer), the handles of a user's descriptor, or None."""
        cdef FdWatch watch = self.fd_watch(fd, False)
        if watch is None or not watch.has_callback():
            return None
        return watch.reading.callback, watch.writing.callback

    def _fd_limit(self):
        """Return one more than the largest descriptor that may be registered."""
        return self.watch_limit()
