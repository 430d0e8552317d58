# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The interpreter's own OpenSSL: its functions, and the session (`SSL *`) of an `ssl.SSLObject`.

A session is OpenSSL's object for one TLS connection, with its keys and its state. The `ssl` module
gives no public access to the session. mgloop calls OpenSSL directly only if an experiment has shown
that this is safe. The experiment runs once in a process, when the first TLS connection is created,
and checks the following:

* The functions come from the libraries that `_ssl` itself has loaded, and no other library
  interposes them. The library identifies itself as OpenSSL, in a known version.
* The memory of an `_ssl._SSLSocket` is read as an array of machine words. Exactly one word is the
  address of an object that contains the address of the library's own method table (of clients or of
  servers). It is the same word in a client and in a server. A system call reads the memory at each
  possible address, because it fails with EFAULT for an invalid one, while a direct access would
  crash the process.
* The functions are called with that object, and report the same side (client or server) and the
  same amount of data in its BIOs as the `ssl` module does for the same session.

Otherwise, or with MGLOOP_TLS_ENGINE=ssl in the environment, connections use the `ssl` module.
`engine()` reports which of the two is used, and why.

The module is native because it reads the memory of extension objects. The results belong to the
process, and any thread may ask for them: a lock guards the experiment.
"""

from cpython.object cimport PyObject
from posix.unistd cimport close

import _ssl
import os
import threading

cdef extern from "pipe_bio.h":
    mgl_openssl library "mgl_openssl"
    const char *mgl_openssl_find_functions(void *handle) noexcept
    bint mgl_openssl_make_method() noexcept
    bint mgl_points_to(const int *ends, const void *address, const void *word) noexcept
    mgl_pipe *mgl_pipe_insert(mgl_ssl *session) noexcept
    Py_ssize_t mgl_session_index() noexcept
    void mgl_set_session_index(Py_ssize_t index) noexcept

cdef extern from "dlfcn.h":
    void *dlopen(const char *name, int mode) noexcept
    int RTLD_LAZY
    int RTLD_NOLOAD

cdef enum:
    OLDEST = 0x10101000             # the oldest known version, 1.1.1, which CPython requires
    NEWEST = 0x40000000             # the first unknown version, 4.0.0

cdef object RawObject = _ssl._SSLSocket
cdef object RawContext = _ssl._SSLContext
cdef object MemoryBIO = _ssl.MemoryBIO
# The lock guards the experiment and the variables below. It is recursive because the garbage
# collector may run during the experiment, and code that it runs may create a connection.
cdef object LOCK = threading.RLock()
# The index of the word of an _SSLSocket that is the session; 0: not found, -1: not tried.
cdef Py_ssize_t found_index = -1
cdef object failure = None          # the reason why it was not found, or None
cdef object fallback_reason = None  # the reason why connections use the `ssl` module, or None


cdef inline void *word(object raw, Py_ssize_t index) noexcept:
    return (<void **><PyObject *>raw)[index]


cdef mgl_ssl *session_of(object raw) except? NULL:
    cdef Py_ssize_t index = mgl_session_index()
    if index < 0:
        try:
            engine()
        except OSError:
            pass    # The experiment needs two descriptors. The next connection tries it again.
        index = mgl_session_index()
    if index <= 0 or type(raw) is not RawObject:
        return NULL
    return <mgl_ssl *>word(raw, index)


cdef mgl_pipe *insert_pipe(mgl_ssl *session) except NULL:
    cdef mgl_pipe *pipe = mgl_pipe_insert(session)
    if pipe is NULL:
        raise MemoryError
    return pipe


def engine(choice=None):
    """Return the name of the engine for new connections, and the reason for it.

    The result is ('openssl', None), or ('ssl', reason) with a str that says why OpenSSL is not
    called directly. *choice*, one of the two names, selects the engine for all later connections,
    as MGLOOP_TLS_ENGINE does. Raise OSError if no descriptor is left for the experiment.
    """
    global fallback_reason
    LOCK.acquire()
    try:
        if choice is None and mgl_session_index() < 0:
            choice = os.environ.get("MGLOOP_TLS_ENGINE", "openssl")
        if choice == "openssl":
            run_experiment()
            fallback_reason = failure
            mgl_set_session_index(found_index)
        elif choice is not None:
            fallback_reason = f"MGLOOP_TLS_ENGINE={choice}"
            mgl_set_session_index(0)
        return ("openssl", None) if mgl_session_index() > 0 else ("ssl", fallback_reason)
    finally:
        LOCK.release()


cdef int run_experiment() except -1:
    """Set `found_index` and `failure`, if they are not set; raise OSError without descriptors."""
    global found_index, failure
    cdef Py_ssize_t index = 0
    if found_index >= 0:
        return 0
    failure = find_functions()
    if failure is None:
        index = find_session_index()
        if index == 0:
            failure = "the session of an SSLObject was not found"
        elif library.method is NULL and not mgl_openssl_make_method():
            index = 0
            failure = "OpenSSL failed to create a BIO method"
    found_index = index
    return 0


cdef object find_functions():
    """Find the functions of OpenSSL; return None, or the reason why they cannot be called."""
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
        return "the module _ssl is not a shared library"
    missing = mgl_openssl_find_functions(handle)
    if missing is not NULL:
        return f"{missing.decode()} was not found, or belongs to another library"
    name = library.OpenSSL_version(0).decode(errors="replace")
    version = library.OpenSSL_version_num()
    if not name.startswith("OpenSSL ") or not OLDEST <= version < NEWEST:
        return f"{name} is not supported"
    if version != _ssl.OPENSSL_VERSION_NUMBER:
        return f"{name} is not the version of the ssl module"
    return None


cdef Py_ssize_t find_session_index() except -1:
    """Find out which word of an _SSLSocket is its session; return its index, or 0 for none."""
    cdef Py_ssize_t client, server
    cdef int ends[2]
    ends[0], ends[1] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        client = session_index_of(ends, False)
        server = session_index_of(ends, True) if client else 0
    finally:
        close(ends[0])
        close(ends[1])
    return client if client == server else 0


cdef Py_ssize_t session_index_of(const int *ends, bint server_side) except -1:
    """Do the work of find_session_index() for a client or a server; *ends* is a pipe."""
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
