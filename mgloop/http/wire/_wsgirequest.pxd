# SPDX-License-Identifier: GPL-2.0-only
"""Declare a request to a WSGI application; _wsgirequest.pyx explains how it works."""

from mgloop.http.wire._site cimport Site
from mgloop.http.wire._workpool cimport WorkPool, mgl_link
from mgloop.http.wire._wsgiextensions cimport WsgiExtensions
from mgloop.http.wire._wsgiinput cimport BodyBuffer


cdef class WsgiRequest(WsgiExtensions):
    cdef WsgiRunner runner
    cdef dict environ
    cdef object context                 # that of the application, or None before it starts
    cdef object iterable                # what the application has returned, or None
    cdef object iterator                # over `iterable`, or None
    cdef BodyBuffer received            # the body until the application starts, or None
    cdef bytes error_text               # the body of the response to a failed request, or None
    cdef mgl_link job
    cdef bint begun                     # the application has been called, or is queued
    cdef bint reported                  # WSGI_END has been queued
    cdef bint finished                  # WSGI_END has been processed
    cdef bint continues                 # _continue() is scheduled

    # In the application's thread.
    cdef bint step(self) except -1
    cdef bint run_app(self) except -1
    cdef bint call_app(self) except -1
    cdef bint pull(self) except -1
    cdef int app_failed(self, object exc) except -1
    cdef int finish_whole(self, bytes data) except -1
    cdef bint finish_file(self, object wrapper) except -1
    cdef int finish(self) except -1
    cdef int close_iterable(self) except -1
    cdef int report_end(self, bytes data, int outcome) noexcept

    # In the loop's thread.
    cdef int launch(self) except -1
    cdef int stream_body(self) except -1
    cdef int answer_health(self) except -1
    cdef int run_here(self) except -1
    cdef int continue_soon(self) except -1
    cdef int leave(self) except -1
    cdef int end(self, bytes data, int outcome) noexcept
    cdef int give_up(self, str message) noexcept


cdef class WsgiRunner(WorkPool):
    cdef readonly Site site
    cdef readonly object app
    cdef str health_path                # answered by the server itself, or None
    cdef object health                  # returns status, headers and body of this answer
    cdef bint inline                    # the application runs in the loop's thread
    cdef bint streams                   # the application starts before the whole body has arrived
    cdef long forks                     # the number of forks when the runner was created
