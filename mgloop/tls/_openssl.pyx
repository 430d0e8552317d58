# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The interpreter's own OpenSSL: its functions, and the session (`SSL *`) of an `ssl.SSLObject`.

The `ssl` module keeps the session to itself. It is called directly only where an experiment, made
when the first connection is, has shown that this is safe:

* The functions are found in the libraries that `_ssl` itself has loaded, and nobody has put
  another in their place. They call themselves OpenSSL, of a version that is known.
* Of the words that make up an `_ssl._SSLSocket` exactly one, and the same for client and server,
  is the address of something that names the library's own method table of clients or servers.
  (The kernel looks there: an address that is none would end the process.)
* Asked for its BIOs, its side and what they hold, that something answers as the throw-away object
  does through Python.

Otherwise, or with MGLOOP_TLS_ENGINE=ssl in the environment, connections go through the `ssl`
module; `engine()` says which, and why.
"""

from cpython.object cimport PyObject
from posix.unistd cimport close

import _ssl
import os
import threading

cdef extern from "pipe_bio.h":
    mgl_openssl library "mgl_openssl"
    const char *mgl_openssl_look_up(void *handle) noexcept
    bint mgl_openssl_make_method() noexcept
    bint mgl_points_to(const int *ends, const void *address, const void *word) noexcept
    mgl_pipe *mgl_pipe_insert(mgl_ssl *session) noexcept
    Py_ssize_t mgl_session_place() noexcept
    void mgl_session_place_is(Py_ssize_t place) noexcept

cdef extern from "dlfcn.h":
    void *dlopen(const char *name, int mode) noexcept
    int RTLD_LAZY
    int RTLD_NOLOAD

cdef enum:
    OLDEST = 0x10101000             # 1.1.1: what CPython asks for
    NEWEST = 0x40000000             # not itself

cdef object RawObject = _ssl._SSLSocket
cdef object RawContext = _ssl._SSLContext
cdef object MemoryBIO = _ssl.MemoryBIO
# Of who looks, and of what was found: which word of an _SSLSocket is the session, 0 = not known,
# and -1 = not looked for yet. Taken again if the collector begins a connection meanwhile.
cdef object LOCK = threading.RLock()
cdef Py_ssize_t found_place = -1
cdef object not_found = None        # why it was not
cdef object why_not = None          # ... connections go through the `ssl` module


cdef inline void *word(object raw, Py_ssize_t index) noexcept:
    return (<void **><PyObject *>raw)[index]


cdef mgl_ssl *session_of(object raw) except? NULL:
    cdef Py_ssize_t place = mgl_session_place()
    if place < 0:
        try:
            engine()
        except OSError:
            pass    # No descriptor is left for the experiment: the next connection makes it.
        place = mgl_session_place()
    if place <= 0 or type(raw) is not RawObject:
        return NULL
    return <mgl_ssl *>word(raw, place)


cdef mgl_pipe *insert_pipe(mgl_ssl *session) except NULL:
    cdef mgl_pipe *pipe = mgl_pipe_insert(session)
    if pipe is NULL:
        raise MemoryError
    return pipe


def engine(choice=None):
    """Return ('openssl', None), or ('ssl', and a sentence that says why OpenSSL is not called
    directly). With *choice*, one of these names, as MGLOOP_TLS_ENGINE=*choice* for connections that
    begin from now on."""
    global why_not
    LOCK.acquire()
    try:
        if choice is None and mgl_session_place() < 0:
            choice = os.environ.get("MGLOOP_TLS_ENGINE", "openssl")
        if choice == "openssl":
            find_out()
            why_not = not_found
            mgl_session_place_is(found_place)
        elif choice is not None:
            why_not = f"MGLOOP_TLS_ENGINE={choice}"
            mgl_session_place_is(0)
        return ("openssl", None) if mgl_session_place() > 0 else ("ssl", why_not)
    finally:
        LOCK.release()


cdef int find_out() except -1:
    global found_place, not_found
    cdef Py_ssize_t place = 0
    if found_place >= 0:
        return 0
    not_found = look_up()
    if not_found is None:
        place = find_place()
        if place == 0:
            not_found = "the session of an SSLObject was not found"
        elif library.method is NULL and not mgl_openssl_make_method():
            place = 0
            not_found = "OpenSSL makes no BIO"
    found_place = place
    return 0


cdef object look_up():
    """Find the functions; returns None, or why not."""
    cdef void *handle
    cdef const char *missing
    cdef unsigned long version
    file = getattr(_ssl, "__file__", None)
    if file is None:
        handle = dlopen(NULL, RTLD_LAZY)
    else:
        name = os.fsencode(file)
        handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)
    if handle is NULL:
        return "the module _ssl is not a library"
    missing = mgl_openssl_look_up(handle)
    if missing is not NULL:
        return f"{missing.decode()} is not to be found, or somebody else's"
    name = library.OpenSSL_version(0).decode(errors="replace")
    version = library.OpenSSL_version_num()
    if not name.startswith("OpenSSL ") or not OLDEST <= version < NEWEST:
        return f"{name} is not known"
    if version != _ssl.OPENSSL_VERSION_NUMBER:
        return f"{name} is not the one of the ssl module"
    return None


cdef Py_ssize_t find_place() except -1:
    """The experiment: which word of an _SSLSocket is its session. 0 if none proves to be."""
    cdef Py_ssize_t client, server
    cdef int ends[2]
    ends[0], ends[1] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        client = place_in(ends, False)
        server = place_in(ends, True) if client else 0
    finally:
        close(ends[0])
        close(ends[1])
    return client if client == server else 0


cdef Py_ssize_t place_in(const int *ends, bint server_side) except -1:
    cdef const void *method
    cdef Py_ssize_t index, found = 0
    cdef mgl_ssl *session
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    if server_side:
        method = library.TLS_server_method()
        context = RawContext(_ssl.PROTOCOL_TLS_SERVER)
        raw = context._wrap_bio(incoming, outgoing, server_side=True)
    else:
        method = library.TLS_client_method()
        context = RawContext(_ssl.PROTOCOL_TLS_CLIENT)
        raw = context._wrap_bio(incoming, outgoing, server_side=False, server_hostname="localhost")
    for index in range(sizeof(PyObject) // sizeof(void *),
                       RawObject.__basicsize__ // sizeof(void *)):
        if mgl_points_to(ends, word(raw, index), method):
            if found:
                return 0
            found = index
    if not found:
        return 0
    session = <mgl_ssl *>word(raw, found)
    incoming.write(b"abc")
    if library.SSL_is_server(session) != server_side:
        return 0
    if mgl_stored(&library, library.SSL_get_rbio(session)) != 3:
        return 0
    incoming.read()
    try:
        raw.do_handshake()
    except _ssl.SSLWantReadError:
        pass
    if mgl_stored(&library, library.SSL_get_wbio(session)) != <size_t>outgoing.pending:
        return 0
    if mgl_stored(&library, library.SSL_get_rbio(session)) != 0:
        return 0
    return found
