# SPDX-License-Identifier: GPL-2.0-only
"""Interest in descriptors that belong to the user: add_reader(), add_writer(), and the waiting of
the sock_*() calls.

    ScheduleCore (_schedule)  polling and scheduling
      +- FdCore               add_reader() and its like
           +- SockCore        (_sock) sock_recv() and its like

Native because the callbacks run per packet. One FdWatch per descriptor serves all who want to know
about it, since the kernel takes one registration per descriptor. For the loop's thread. Lifetime:
the poll loop holds an FdWatch while it is registered.
"""

cimport cython
from cpython.object cimport PyObject
from libc.errno cimport EBADF
from libc.limits cimport INT_MAX
from libc.stdint cimport uint32_t

from mgloop._handle cimport Handle
from mgloop._loop cimport (
    EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, LoopCore, PyTypeObject, Watcher, mgl_ring_push,
    show_handle, traverseproc, visitproc,
)

import weakref

from . import _stdlib
from .selector_view import SelectorView


cdef class Waiter(Awaitable):
    """A sock_*() call that waits for its descriptor."""

    cdef bint attempt(self) except -1:
        return True

    cdef int fail(self, object exc) except -1:
        return 0


@cython.final
cdef class FdWatch(Watcher):
    """Interest in a descriptor that belongs to the user: add_reader(), add_writer(), sock_*().

    What the kernel is asked for, in wanted(), depends on who is interested:

        a reader or a writer, calls or none   EPOLLIN, EPOLLOUT as any of them wants it
        calls only, or a socket that had any  EPOLLIN | EPOLLRDHUP | EPOLLET, and EPOLLOUT as soon
                                              as one of them has had to wait for room
        nobody                                nothing: the registration goes

    With a reader or writer the kernel is asked level-triggered, as asyncio does: the callback is
    called again while data is left. For sock_*() alone the registration is edge-triggered, made
    once per socket and left in place, which saves two system calls each time one of them waits.
    The user may close the descriptor at any moment. The kernel then forgets it, the generation in
    the poll loop's key makes a late event harmless, and `sock` tells a socket that has got the
    same number from the one that the registration was made for.
    """

    cdef bint owns_descriptor(self) noexcept:
        return False

    cdef uint32_t wanted(self) noexcept:
        """What the kernel is to be asked for: 0 = nothing any more."""
        cdef uint32_t mask = 0
        if self.reader is not None or self.writer is not None:
            if self.reader is not None or self.read_waiters is not None:
                mask |= EPOLLIN
            if self.writer is not None or self.write_waiters is not None:
                mask |= EPOLLOUT
        elif self.read_waiters is not None or self.write_waiters is not None \
                or self.sock is not None:
            mask = EPOLLIN | EPOLLRDHUP | EPOLLET
            # Not asked for before it matters (SocketTransport.interest() says why), but who has
            # had to wait for room once may have to again.
            if self.write_waiters is not None or (self.mask & EPOLLET and self.mask & EPOLLOUT):
                mask |= EPOLLOUT
        return mask

    cdef int sync(self) except -1:
        """Bring the kernel's registration in step with what is wanted."""
        cdef uint32_t mask = self.wanted()
        cdef LoopCore loop = self.loop
        if mask == 0:
            loop.unwatch(self)
        elif loop.owner_of(self.fd) is self:
            # Also when the mask has not changed: the descriptor may have been closed and opened
            # again under the same number since, and only the kernel knows.
            loop.rearm(self, mask)
        else:
            loop.watch(self, self.fd, mask)
        self.mask = mask
        return 0

    cdef int try_sync(self) except -1:
        """sync(), where the user may have closed the descriptor: then those who wait for a socket
        are told, and readers and writers are not called any more, as with asyncio. He may have
        closed the loop as well."""
        if self.loop._closed:
            return 0
        try:
            self.sync()
        except OSError:
            self.fail_waiters()
        return 0

    cdef bint on_event(self, uint32_t events) except -1:
        """Queue the callbacks themselves, so that one removed or replaced before its turn does not
        run: the replacement must not be told of an event from before its time."""
        if events & ~EPOLLOUT:
            if self.reader is not None:
                mgl_ring_push(&self.loop.ready, <PyObject *>self.reader)
        if events & ~EPOLLIN:
            if self.writer is not None:
                mgl_ring_push(&self.loop.ready, <PyObject *>self.writer)
        return self.read_waiters is None and self.write_waiters is None

    cdef int on_ready(self, uint32_t events) except -1:
        cdef bint changed = False
        if events & ~EPOLLOUT:
            changed = self.pop_attempt(False)
        if events & ~EPOLLIN and self.fd >= 0:
            changed |= self.pop_attempt(True)
        if changed and not self.mask & EPOLLET and self.fd >= 0:
            self.try_sync()
        return 0

    cdef int give_way(self, Watcher other) except -1:
        """The descriptor is another file now, or a transport takes it over."""
        cdef Handle handle
        self.ready = 0
        self.fd = -1
        self.file = self.sock = None
        self.fail_waiters()
        for handle in (self.reader, self.writer):
            if handle is not None:
                handle.cancel()
        self.reader = self.writer = None
        # A closing transport that is still sending: from now on the other hands events on to it.
        other.under = self.under
        self.under = None
        return 0

    cdef int enlist(self, Waiter waiter, bint write, object sock) except -1:
        """Let a call on `sock` wait for the descriptor."""
        cdef bint known = self.sock is not None and self.sock() is sock
        if not known:
            if self.sock is not None:
                self.fail_waiters()
            self.sock = weakref.ref(sock)
        append_waiter(self, waiter, write)
        # Known, edge-triggered, and still ours: the kernel will tell, no system call is needed.
        if not known or not self.mask & EPOLLET or (write and not self.mask & EPOLLOUT) \
                or self.loop.owner_of(self.fd) is not self:
            try:
                self.sync()
            except BaseException:
                self.delist(waiter, write)
                raise
        return 0

    cdef int delist(self, Waiter waiter, bint write) except -1:
        """Take a call out that no longer waits, if it is still there."""
        cdef Waiter other = self.write_waiters if write else self.read_waiters
        cdef Waiter before = None
        while other is not None and other is not waiter:
            before = other
            other = other.next
        if other is None:
            return 0
        if before is not None:
            before.next = waiter.next
        elif write:
            self.write_waiters = waiter.next
        else:
            self.read_waiters = waiter.next
        waiter.next = None
        if not self.mask & EPOLLET and self.fd >= 0:
            self.try_sync()
        return 0

    cdef int fail_waiters(self) except -1:
        """The socket that they wait for was closed: asyncio would leave them waiting for ever."""
        cdef Waiter waiter
        exc = OSError(EBADF, "the socket was closed while this call was waiting for it")
        for waiter in (self.read_waiters, self.write_waiters):
            while waiter is not None:
                waiter.fail(exc)
                waiter = waiter.next
        self.read_waiters = None
        self.write_waiters = None
        return 0

    cdef bint pop_attempt(self, bint write) except -1:
        """Let each waiter try once, in their order; those that must go on waiting stay queued."""
        cdef Waiter waiter, rest = self.write_waiters if write else self.read_waiters
        cdef bint any_done = False
        if write:
            self.write_waiters = None
        else:
            self.read_waiters = None
        while rest is not None:
            waiter = rest
            rest = waiter.next
            waiter.next = None
            try:
                if waiter.attempt():
                    any_done = True
                else:
                    append_waiter(self, waiter, write)
            except BaseException:
                append_waiter(self, waiter, write)
                while rest is not None:
                    waiter = rest
                    rest = waiter.next
                    waiter.next = None
                    append_waiter(self, waiter, write)
                raise
        return any_done


cdef void append_waiter(FdWatch watch, Waiter waiter, bint write):
    cdef Waiter last = watch.write_waiters if write else watch.read_waiters
    if last is None:
        if write:
            watch.write_waiters = waiter
        else:
            watch.read_waiters = waiter
        return
    while last.next is not None:
        last = last.next
    last.next = waiter


cdef traverseproc watch_traverse_cython = (<PyTypeObject *>FdWatch).tp_traverse


cdef int watch_traverse(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef FdWatch watch = <FdWatch>o
    cdef int rc = watch_traverse_cython(o, visit, arg)
    if rc == 0:
        rc = show_handle(<PyObject *>watch.reader, visit, arg)
    if rc == 0:
        rc = show_handle(<PyObject *>watch.writer, visit, arg)
    return rc


(<PyTypeObject *>FdWatch).tp_traverse = watch_traverse


# ------------------------------------------------------------------ the loop's part ----

cdef inline int fileno_of(object fd) except -1:
    if type(fd) is int and 0 <= fd <= INT_MAX:
        return fd
    return _stdlib.fileno(fd)


cdef class FdCore(ScheduleCore):
    """ScheduleCore and the methods by which programs watch their own descriptors."""

    cdef FdWatch fd_watch(self, int fd, bint create):
        """The interest in a user's descriptor, or None if there is none and none is to be made."""
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
        """Its number. Raises RuntimeError if it belongs to a transport that is not closing."""
        cdef int fileno = self.watched_fd(fd) if watched else fileno_of(fd)
        cdef Watcher owner = self.owner_of(fileno)
        if owner is not None and owner.owns_descriptor():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {owner!r}")
        if self.shared is not None:
            self.check_shared(fileno)
        return fileno

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
        """The number under which it is watched: of a file that has been closed meanwhile, too."""
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

    def _add_reader(self, fd, callback, *args):
        return self.add_interest(fd, fileno_of(fd), callback, args, False)

    def _add_writer(self, fd, callback, *args):
        return self.add_interest(fd, fileno_of(fd), callback, args, True)

    cdef Handle add_interest(self, object file, int fd, object callback, tuple args, bint write):
        cdef Handle handle, previous
        cdef FdWatch watch
        if self._closed:
            self._check_closed()
        watch = self.fd_watch(fd, True)
        handle = self.make_handle(callback, args, None)
        handle.lasting = True
        previous = watch.writer if write else watch.reader
        if watch.reader is None and watch.writer is None:
            watch.file = file
        if write:
            watch.writer = handle
        else:
            watch.reader = handle
        try:
            watch.sync()
        except BaseException:
            if write:
                watch.writer = previous
            else:
                watch.reader = previous
            if watch.reader is None and watch.writer is None:
                watch.file = None
            raise
        if previous is not None:
            previous.cancel()
        return handle

    def _remove_reader(self, fd):
        return bool(self.remove_interest(self.watched_fd(fd), False))

    def _remove_writer(self, fd):
        return bool(self.remove_interest(self.watched_fd(fd), True))

    cdef int remove_interest(self, int fd, bint write) except -1:
        """1 if there was any."""
        cdef FdWatch watch
        cdef Handle handle
        if self._closed:
            return 0
        watch = self.fd_watch(fd, False)
        if watch is None:
            return 0
        if write:
            handle = watch.writer
            watch.writer = None
        else:
            handle = watch.reader
            watch.reader = None
        if handle is None:
            return 0
        if watch.reader is None and watch.writer is None:
            watch.file = None
        try:
            watch.sync()
        except OSError:
            # Closed by the user before it was removed: the kernel has forgotten it already.
            pass
        handle.cancel()
        return 1

    def add_reader(self, fd, callback, *args):
        """Call callback(*args) whenever fd is readable; as asyncio.loop.add_reader.

        fd is a descriptor or an object with fileno(). Raises OSError where epoll cannot watch it
        (PermissionError for a regular file), RuntimeError if a transport owns it.
        """
        self.add_interest(fd, self.users_fd(fd), callback, args, False)

    def add_writer(self, fd, callback, *args):
        """Call callback(*args) whenever fd is writable; as asyncio.loop.add_writer."""
        self.add_interest(fd, self.users_fd(fd), callback, args, True)

    def remove_reader(self, fd):
        """Stop watching fd for reading. Returns True if it was watched."""
        return bool(self.remove_interest(self.users_fd(fd, True), False))

    def remove_writer(self, fd):
        """Stop watching fd for writing. Returns True if it was watched."""
        return bool(self.remove_interest(self.users_fd(fd, True), True))

    @property
    def _selector(self):
        """What is watched, as asyncio's selector would show it; None once closed."""
        return None if self._closed else SelectorView(self)

    def _interest(self, int fd):
        """(reader, writer) of a descriptor that belongs to the user, or None."""
        cdef FdWatch watch = self.fd_watch(fd, False)
        if watch is None or (watch.reader is None and watch.writer is None):
            return None
        return watch.reader, watch.writer

    def _fd_limit(self):
        """One past the largest descriptor that may be watched."""
        return self.watch_limit()
