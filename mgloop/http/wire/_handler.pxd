# SPDX-License-Identifier: GPL-2.0-only
"""Declare the interface for compiled HTTP handlers; programs `cimport` it from mgloop.http.

This file is installed, and it declares nothing of mgloop's internals. As in mgloop/_compiled.pxd,
the names of the classes end with the version of the interface. Change the version, here and there,
with every change of a field, of a method, or of their order.
"""


# A request whose body has arrived. Each method returns text that belongs to mgloop and that is
# valid until answer() returns; `size` receives its length, unless it is NULL. The text need not end
# with a NUL. All methods raise RuntimeError after answer() has returned.
cdef class HTTPRequest_1:
    cdef const void *data               # NULL except during answer()

    cdef const char *method(self, Py_ssize_t *size) except NULL
    cdef const char *target(self, Py_ssize_t *size) except NULL     # as the client has sent it
    cdef const char *path(self, Py_ssize_t *size) except NULL       # still percent-encoded
    cdef const char *query(self, Py_ssize_t *size) except NULL      # without the "?"
    cdef const char *body(self, Py_ssize_t *size) except NULL
    # Return the value of the first header with this name, in any case, or NULL.
    cdef const char *header(self, const char *name, Py_ssize_t *size) except? NULL
    cdef Py_ssize_t header_count(self) except -1
    # Return the name, in lower case, or the value of a header. Raise IndexError.
    cdef const char *header_name(self, Py_ssize_t index, Py_ssize_t *size) except NULL
    cdef const char *header_value(self, Py_ssize_t index, Py_ssize_t *size) except NULL
    # Return (host, port) or None, and "http" or "https". Trusted proxies may name other ones.
    cdef object client(self)
    cdef str scheme(self)


# The response to a request. All methods copy their arguments, and raise RuntimeError after answer()
# has returned.
cdef class HTTPResponse_1:
    cdef void *data                     # NULL except during answer()

    cdef int set_status(self, int status) except -1     # 200 to 599; the default is 200
    # Add a header. Raise ValueError if it is not valid in a response.
    cdef int add_header(self, const char *name, const char *value, Py_ssize_t size) except -1
    # Add to the body.
    cdef int write(self, const char *data, Py_ssize_t size) except -1


# A handler to subclass. The server calls answer() in the thread of its event loop.
cdef class HTTPHandler_1:
    # Fill in the response and return True, or return False to pass the request to the application.
    cdef bint answer(self, HTTPRequest_1 request, HTTPResponse_1 response) except -1
