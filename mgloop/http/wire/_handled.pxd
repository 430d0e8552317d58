# SPDX-License-Identifier: GPL-2.0-only
"""Declare a request to a compiled HTTP handler; _handled.pyx explains how it works."""

from mgloop.http.wire._body cimport RequestBody
from mgloop.http.wire._factory cimport RequestFactory
from mgloop.http.wire._handler cimport HTTPHandler_1, HTTPRequest_1, HTTPResponse_1
from mgloop.http.wire._handlerdata cimport RequestData, ResponseData
from mgloop.http.wire._headstore cimport HeadStore
from mgloop.http.wire._parser cimport HeadParser
from mgloop.http.wire._site cimport Site
from mgloop.http.wire._target cimport Target


cdef class HandledRequest(RequestBody):
    cdef HandlerFactory factory
    cdef str request_method
    cdef bytes request_target
    cdef Target parts                   # of the target
    cdef bint forwarded                 # a trusted proxy may name another client or scheme
    cdef bint listed                    # in site.running, because the body is incomplete

    cdef dict origin(self)
    cdef int fill_scope(self, bint http_10) except -1
    cdef int unlist(self) except -1
    cdef RequestBody pass_on(self)
    cdef int start_application(self) except -1
    cdef bint call_handler(self) except -1
    cdef int describe(self, RequestData *data) except -1
    cdef int handler_failed(self, object exc) except -1
    cdef int respond(self, ResponseData *answer) except -1
    cdef int put_response(self, bytes common, ResponseData *answer) except -1
    cdef int end(self) except -1


# Makes the requests of one connection.
cdef class HandlerFactory(RequestFactory):
    cdef HandlerRunner runner
    cdef RequestFactory inner           # makes the requests of the application
    cdef HeadStore store
    cdef object client                  # (host, port) of the peer, or None
    cdef str scheme
    cdef bint trusted                   # the peer is a trusted proxy

    cdef bint concerns_handler(self, HeadParser head, Target *target) except -1
    cdef RequestBody application_request(self, HeadParser head)


cdef class HandlerRunner:
    cdef readonly Site site
    cdef readonly HTTPHandler_1 handler
    # For the next call, or None.
    cdef HTTPRequest_1 request
    cdef HTTPResponse_1 response
    cdef bytes health_path              # answered by the server itself, or None

    cdef HTTPRequest_1 take_request(self)
    cdef HTTPResponse_1 take_response(self)
