# SPDX-License-Identifier: GPL-2.0-only
"""Declare the conversion of start_response()'s arguments; _wsgihead.pyx explains it."""

from mgloop.http.wire._headers cimport HeaderInfo


# Return the status line and the header lines as bytes, without the empty line at the end. Store the
# status code in `status`, and the meaning of the headers in `info`. Raise TypeError for arguments
# of other types than PEP 3333 requires, and ValueError for values that HTTP does not allow.
cdef bytes wsgi_head(object line, object headers, int *status, HeaderInfo *info)

# Return a 103 response with the headers, pairs of str or bytes. Raise TypeError and ValueError as
# wsgi_head() does.
cdef bytes hint_head(object headers)
