# SPDX-License-Identifier: GPL-2.0-only
"""Declare a request; _request.pyx explains how it works."""

from mgloop.http.wire._apptask cimport AppTask


cdef class Request(AppTask):
    cdef bint listed                    # the site's `running` has the request
    cdef bint cancelled                 # the server has cancelled the task
    cdef int discarded                  # messages that send() has discarded after the disconnect

    cdef object discard(self)
    cdef object send_file(self, dict message, bint by_path)
    cdef int abandon(self) except -1
    cdef int end(self) except -1
