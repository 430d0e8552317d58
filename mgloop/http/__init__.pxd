# SPDX-License-Identifier: GPL-2.0-only
"""Let compiled programs use `cimport mgloop.http`; wire/_handler.pxd describes the names.

They are not in mgloop/__init__.pxd, because a program that cimports from a file imports the modules
of all its classes. A protocol does not need the server.
"""

from mgloop.http.wire._handler cimport (
    HTTPHandler_1 as HTTPHandler, HTTPRequest_1 as HTTPRequest, HTTPResponse_1 as HTTPResponse,
)
