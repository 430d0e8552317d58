# SPDX-License-Identifier: GPL-2.0-only
"""The response to the upgrade request of a WebSocket: 101, or the HTTP response of a rejection.

WebSocketHandshake is the second of the three classes of a session (see _websocket). An application
that rejects the handshake sends its response through a Response, as that of an HTTP request. The
module is native because it is in the chain of these classes; its code runs once per session, on the
thread of the loop.
"""

from mgloop.http.wire._frames cimport FrameReader, FrameWriter
from mgloop.http.wire._gather cimport gathered
from mgloop.http.wire._headers cimport plain_headers
from mgloop.http.wire._response cimport MGL_HELD, Response
from mgloop.http.wire._site cimport closing_response, header_line, without
from mgloop.http.wire._wsconnection cimport (
    WS_CLOSED, WS_CONNECTING, WS_DENYING, WS_OPEN, WebSocketConnection,
)

import binascii
import hashlib
import http

from . import _peer, deflate

cdef bytes GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


cdef class WebSocketHandshake(WebSocketConnection):
    """Accept or reject the handshake of a WebSocket."""

    cdef int accept(self, object message) except -1:
        """Accept the handshake, and parse the data that has arrived since."""
        cdef object agreement = None
        cdef object subprotocol = message.get("subprotocol")
        cdef list head = [
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"]
        head.append(header_line(b"sec-websocket-accept", binascii.b2a_base64(
            hashlib.sha1(self.key + GUID, usedforsecurity=False).digest(), newline=False)))
        if self.site.config.ws_per_message_deflate and self.extensions:
            agreement = deflate.negotiate(self.extensions)
        if agreement is not None:
            head.append(header_line(b"sec-websocket-extensions", agreement.answer))
        if subprotocol:
            head.append(header_line(b"sec-websocket-protocol", subprotocol.encode("ascii")))
        head += self.header_lines(message.get("headers"))
        head.append(b"\r\n")
        self.create_codec(agreement)
        self.write_frame(b"".join(head))
        self.state = WS_OPEN
        self.extensions = None
        self.log_access(101, 0)
        self.schedule_ping()
        if self.early is not None:
            self.reader.feed(gathered(self.early))
            self.early = None
        return self.pump_safely()

    cdef int create_codec(self, object agreement) except -1:
        """Create the reader and the writer of frames; `agreement` is about compression, or None."""
        max_size = self.site.config.ws_max_size or 0
        if agreement is None:
            self.reader = FrameReader(max_size)
            self.writer = FrameWriter()
        else:
            self.reader = FrameReader(max_size, agreement.client_bits, agreement.client_takeover)
            self.writer = FrameWriter(agreement.server_bits, agreement.server_takeover)
        return 0

    cdef list header_lines(self, object headers):
        """Return the header lines of all responses of the site, and those of the application.

        Raise RuntimeError for an invalid header, and for a second Content-Length.
        """
        cdef list lines = []
        cdef list names = []
        for name, value in headers or ():
            names.append(bytes(name).lower())
            lines.append(header_line(bytes(name), bytes(value)))
        if names.count(b"content-length") > 1:
            raise RuntimeError("Too many Content-Length headers in response.")
        lines.insert(0, without(self.site.headers_now(), b"date" in names, b"server" in names))
        return lines

    cdef int reject(self, int status) except -1:
        """Reject the handshake with a response of the server, and close the connection."""
        cdef bytes body = b"" if status == 403 else http.HTTPStatus(status).phrase.encode()
        self.state = WS_CLOSED
        self.write_frame(closing_response(status, body, self.site.headers_now()))
        self.end_messages(1006, "")
        self.log_access(status, len(body))
        return self.close_transport()

    cdef int start_denial(self, object message) except -1:
        """Begin an HTTP response of the application that rejects the handshake.

        The head is sent with the first part of the body. If that is all of the body, the response
        gets a Content-Length. Otherwise the end of the connection marks the end of the body, as for
        HTTP/1.0, because a client of WebSockets may not understand chunks.
        """
        cdef Response denial = Response.__new__(Response)
        cdef int status = message["status"]
        cdef tuple headers = tuple(plain_headers(message.get("headers") or ()))
        denial.connection = self
        denial.scope = self.scope
        denial.began = self.began
        denial.http_10 = True
        denial.close_after = True
        if status != 204 and status != 304 and b"content-type" not in [
                name.lower() for name, _ in headers]:
            headers += ((b"content-type", b"text/plain; charset=utf-8"),)
        denial.start(status, headers, False)
        if self.state == WS_CONNECTING:     # the headers may be objects that have run other code
            self.write = self.transport.write
            self.denial = denial
            self.state = WS_DENYING
        return 0

    cdef int continue_denial(self, object message) except -1:
        cdef Response denial = self.denial
        denial.write_body(message.get("body"), message.get("more_body", False))
        return denial.flush()

    cdef int answered(self, Response response, bint keep_alive) except -1:
        self.denial = None
        self.app_closed = True
        self.state = WS_CLOSED
        self.end_messages(1006, "")
        return self.close_transport()

    cdef int forget_denial(self) except -1:
        """Release the response after the connection has been lost."""
        if self.denial is not None:
            self.denial.log_incomplete()
            self.denial = None
        return 0

    cdef int end_handshake(self) except -1:
        """Reject the handshake, which the application has not completed before its end."""
        cdef Response denial = self.denial
        self.denial = None
        if denial is None or denial.state == MGL_HELD:
            return self.reject(500)
        # The head has been sent. The client must see that the body is incomplete.
        denial.log_incomplete()
        self.state = WS_CLOSED
        if denial.is_close_delimited():
            _peer.reset(self.transport)
        else:
            self.transport.abort()
        return 0
