# SPDX-License-Identifier: GPL-2.0-only
"""The optional parts of WSGI: early hints, files as responses, and a body that is read as it comes.

- wsgi.early_hints sends a 103 response before the response.
- wsgi.file_wrapper: the loop sends a plain file by sendfile(). It has a descriptor of its own, so
  the application's thread continues with the next request meanwhile.
- With --wsgi-stream-input, wsgi.input is a StreamInput, which the loop fills while the application
  reads. Reading from the client pauses while the buffer is full.

The module is native because all requests pass through it, although few use it. WsgiExtensions is
the class between WsgiResponse and WsgiRequest. What the application's thread asks for reaches the
loop as an answer (_wsgiresponse.pyx).
"""

from mgloop.http.wire._body cimport BODY_DISCONNECTED
from mgloop.http.wire._response cimport MGL_COMPLETE, MGL_HELD
from mgloop.http.wire._site cimport Site, new_task
from mgloop.http.wire._wsgihead cimport hint_head
from mgloop.http.wire._wsgiinput cimport StreamInput
from mgloop.http.wire._wsgiresponse cimport (
    WSGI_DONE, WSGI_HINT, WSGI_SHORT, WSGI_WANTS_BODY, WsgiResponse, mgl_answer,
)

import logging
import os

from . import _filewrapper, files


cdef enum:
    SMALL_FILE = 64 << 10   # bytes of a file that is read instead, which is faster than a task

cdef object logger = logging.getLogger("mgloop.http")


cdef class WsgiExtensions(WsgiResponse):
    """Add early hints, files and streamed bodies to the response of an application."""

    # ------------------------------------------- in the thread of the application ----

    def early_hints(self, headers):
        """Send a 103 response with the headers, pairs of str or bytes: wsgi.early_hints.

        Do nothing in HTTP/1.0, which does not define it, and after the response has begun. Raise
        TypeError and ValueError for an invalid header.
        """
        cdef bytes head
        if not self.http_10 and not self.committed:
            head = hint_head(headers)
            self.notify(WSGI_HINT, head)

    def want_body(self):
        """Ask the loop for more of the body: called by a StreamInput."""
        self.notify(WSGI_WANTS_BODY, b"")

    cdef int notify(self, int kind, bytes data) except -1:
        """Pass something other than a part of the body to the loop."""
        cdef mgl_answer *answer
        if self.pool is None:
            return self.take_notice(kind, data)
        answer = self.new_answer(kind, data, True)
        return self.pool.answer(&answer.link, False)

    cdef bint choose_file(self, object wrapper) except -1:
        """Set `file` to the file in the wrapper; return False if its blocks have to be read.

        The file is sent from its position to its end, or up to the Content-Length.
        """
        found = _filewrapper.plain_file(wrapper)
        if found is None:
            return False
        file, offset, size = found
        count = max(0, size - offset)
        if self.remaining > count:
            file.close()
            return False    # the response gets too short, which finish() handles
        if self.remaining >= 0:
            count = self.remaining
        self.file = (file, offset, count)
        return True

    cdef bytes read_small_file(self):
        """Return the contents of `file` if it is small, and forget it. Otherwise return None."""
        file, offset, count = self.file
        if count > SMALL_FILE:
            return None
        data = os.pread(file.fileno(), count, offset)
        if len(data) < count:   # another process has shortened the file
            return None
        self.file = None
        file.close()
        return data

    # --------------------------------------------------- in the thread of the loop ----

    cdef int take_notice(self, int kind, bytes data) except -1:
        return self.deliver_hint(data) if kind == WSGI_HINT else self.body_wanted()

    cdef int deliver_hint(self, bytes data) except -1:
        """Write a 103 response, unless the head of the response has been written."""
        if self.state <= MGL_HELD and self.body_state != BODY_DISCONNECTED \
                and not self.connection.lost:
            self.write_interim(data)
        return 0

    cdef StreamInput start_stream(self):
        """Return the wsgi.input of an application that starts before its whole body has arrived."""
        self.stream = StreamInput(self.connection.site.body_buffer, self.want_body)
        return self.stream

    cdef int body_wanted(self) except -1:
        """Continue to read the body from the client, because the application waits for it."""
        self.body_len = 0
        if self.expects_continue:
            self.send_continue()
        return self.connection.wants_more(self)

    cdef int add_body(self, const char *data, Py_ssize_t n) except -1:
        self.body_total += n
        if self.stream.add(data, n):
            self.body_len = self.connection.site.body_buffer    # makes the connection pause
        return 0

    cdef int body_ended(self) except -1:
        WsgiResponse.body_ended(self)
        if self.stream is not None:
            self.stream.end()
        return 0

    cdef int disconnect(self) except -1:
        if self.stream is not None:
            self.stream.break_off()
        return WsgiResponse.disconnect(self)

    cdef int wake_receivers(self) except -1:
        # The response is complete, and the connection does not pass on the rest of the body.
        if self.stream is not None:
            self.stream.break_off()
        return 0

    # ----------------------------------------------------------------------- files ----

    cdef bint start_file(self) except -1:
        """Start to send `file` as the body; return False if nothing can be sent any more."""
        cdef Site site = self.connection.site
        file, offset, count = self.file
        if self.body_state == BODY_DISCONNECTED or self.state == MGL_COMPLETE \
                or self.connection.lost:
            file.close()
            self.file = None
            return False
        site.running.add(self)
        self.deliver(b"", True)     # the head
        try:
            context = site.context.copy()
            sending = files.send(self, "wsgi.file_wrapper", file, offset, count, False, True)
            self.sender = new_task(site.loop, sending, context, None)
        except BaseException:
            file.close()
            raise
        self.sender.add_done_callback(self._file_sent, context=site.context)
        return True

    def _file_sent(self, task):
        outcome = WSGI_DONE
        self.file[0].close()    # a task that is cancelled before its first step does not close it
        self.file = self.sender = None
        if task.cancelled():
            outcome = WSGI_SHORT
        elif task.exception() is not None:
            logger.error("Cannot send a file\n", exc_info=task.exception())
            outcome = WSGI_SHORT
        self.file_sent(outcome)

    cdef int file_sent(self, int outcome) except -1:
        raise NotImplementedError

    cdef int cancel_file(self) except -1:
        if self.sender is not None:
            self.sender.cancel()
        return 0

    def client_left(self):
        """End the connection for files.send(): the client has disconnected or reads nothing."""
        self.connection.cut()
        self.disconnect()
