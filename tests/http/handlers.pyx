# SPDX-License-Identifier: GPL-2.0-only
# cython: language_level=3, freethreading_compatible=True
"""HTTP handlers that test_handlers.py builds against the installed interface."""

from mgloop.http cimport HTTPHandler, HTTPRequest, HTTPResponse

from cpython.exc cimport PyErr_SetString


cdef class Call:
    """Let Python code use a request and its response."""

    cdef HTTPRequest request
    cdef HTTPResponse response

    def text(self, name):
        cdef Py_ssize_t size = -1
        cdef const char *text
        if name == "method":
            text = self.request.method(&size)
        elif name == "target":
            text = self.request.target(&size)
        elif name == "path":
            text = self.request.path(&size)
        elif name == "query":
            text = self.request.query(&size)
        else:
            text = self.request.body(&size)
        return text[:size]

    def header(self, bytes name):
        cdef Py_ssize_t size = -1
        cdef const char *value = self.request.header(name, &size)
        return None if value is NULL else value[:size]

    def headers(self):
        cdef Py_ssize_t n = 0, m = 0
        cdef const char *name
        cdef const char *value
        found = []
        for i in range(self.request.header_count()):
            name = self.request.header_name(i, &n)
            value = self.request.header_value(i, &m)
            found.append((name[:n], value[:m]))
        return found

    def header_at(self, Py_ssize_t index):
        self.request.header_name(index, NULL)

    def client(self):
        return self.request.client()

    def scheme(self):
        return self.request.scheme()

    def set_status(self, int status):
        self.response.set_status(status)

    def add_header(self, bytes name, bytes value):
        self.response.add_header(name, value, len(value))

    def add_header_of_size(self, Py_ssize_t size):
        self.response.add_header("a", "b", size)

    def write(self, bytes data):
        self.response.write(data, len(data))

    def write_size(self, Py_ssize_t size):
        self.response.write("", size)


cdef class Scripted(HTTPHandler):
    """Call a Python function for each request, with a Call; it returns whether it has answered."""

    cdef object script

    def __init__(self, script):
        self.script = script

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        cdef Call call = Call()
        call.request = request
        call.response = response
        return self.script(call)


cdef class Hello(HTTPHandler):
    """Answer GET / with a greeting."""

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        cdef Py_ssize_t n = 0
        cdef const char *path = request.path(&n)
        if n != 1:
            return False
        response.add_header("content-type", "text/plain", 10)
        response.write("hello", 5)
        return True


cdef class Wrong(HTTPHandler):
    """Contradict the protocol of exceptions."""

    cdef public bint raises

    cdef bint answer(self, HTTPRequest request, HTTPResponse response) except -1:
        if self.raises:
            PyErr_SetString(KeyError, "with a result")
            return 1
        return -1


hello = Hello()
