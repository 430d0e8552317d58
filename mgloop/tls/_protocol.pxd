# SPDX-License-Identifier: GPL-2.0-only
"""The contract of mgloop's TLS layer towards the transport below it.

Any asyncio transport can be the lower one: it talks to `SSLProtocol` as to every other
`asyncio.BufferedProtocol` (`get_buffer`, `buffer_updated`, `eof_received`, `connection_lost`,
`pause_writing`, `resume_writing`). A native transport may replace the first two, which are the
ones that run per packet, by two C calls that create no Python object:

    cdef Py_ssize_t size
    cdef char* room = protocol.read_buffer(&size)     # NULL: MemoryError is set
    n = recv(fd, room, size, 0)
    if n > 0:
        protocol.data_arrived(n)                      # -1: an exception is set

Rules for the caller. It holds the GIL in both calls. The memory belongs to the loop and is shared
by all its TLS connections: nothing else may run on that loop between the two calls, and the
pointer is worthless after `data_arrived`. `data_arrived` runs user code, which may close, abort or
pause the caller or set another protocol on it: look at your own state again afterwards. An
exception from it is to be treated as one from `buffer_updated`. EOF is not reported here but by
`eof_received()`.
"""

from mgloop.tls._engine cimport Engine


cdef class LoopBuffers:
    cdef object arrival_view        # memoryview: ciphertext as it comes from the socket
    cdef Py_buffer pin              # the same memory, kept in place
    cdef object record              # bytearray: small writes on their way into one record
    cdef Py_ssize_t record_used
    cdef void* record_owner         # SSLProtocol that is filling `record`, not referenced

    cdef char* arrival_space(self, Py_ssize_t* size) except NULL


cdef class SSLTransport:
    cdef readonly object _loop
    cdef readonly SSLProtocol _ssl_protocol
    cdef public bint _closed
    cdef object __weakref__


cdef class SSLProtocol:
    # Read by asyncio, by CPython's tests and by people who debug; Python names on purpose.
    cdef readonly object _loop
    cdef readonly object _app_protocol
    cdef readonly object _app_transport
    cdef readonly object _transport
    cdef readonly object _waiter
    cdef readonly object _sslcontext
    cdef readonly dict _extra
    cdef readonly bint _server_side
    cdef readonly object _server_hostname
    cdef readonly Py_ssize_t _conn_lost
    cdef readonly bint _eof_received
    cdef readonly bint _ssl_writing_paused
    cdef readonly bint _ssl_reading_paused
    cdef readonly bint _app_writing_paused
    cdef readonly bint _app_reading_paused
    cdef readonly object _incoming_high_water
    cdef readonly object _incoming_low_water
    cdef readonly object _outgoing_high_water
    cdef readonly object _outgoing_low_water
    cdef readonly Py_ssize_t _write_buffer_size
    cdef object __weakref__

    cdef int state
    cdef int app_state
    cdef bint app_transport_created
    cdef bint lost                  # connection_lost() has been called
    cdef bint unwanted              # the application has closed its transport twice
    cdef bint app_is_buffered
    cdef object app_get_buffer
    cdef object app_buffer_updated

    cdef Engine tls
    cdef LoopBuffers buffers
    cdef object backlog             # collections.deque, or None as long as nothing ever waited
    cdef bint deferring             # inside data_received or buffer_updated: flush when it returns
    cdef Py_ssize_t unflushed       # plaintext bytes encrypted since the last flush

    cdef bint cut_short             # the last buffer of a BufferedProtocol was too small

    cdef object handshake_timeout
    cdef object shutdown_timeout
    cdef object handshake_timer
    cdef object shutdown_timer
    cdef object handshake_started

    cdef char* read_buffer(self, Py_ssize_t* size) except NULL
    cdef int data_arrived(self, Py_ssize_t nbytes) except -1

    cdef int set_state(self, int new_state) except -1
    cdef int proceed(self) except -1
    cdef int advance(self) except -1
    cdef int again(self) except -1
    cdef int close(self) except -1
    cdef int end_of_stream(self) except -1
    cdef int send_outgoing(self) except -1
    cdef int on_ciphertext(self, char* data, Py_ssize_t size) except -1
    cdef int read_arrival(self, char* data, Py_ssize_t size) except -1
    cdef int do_handshake(self) except -1
    cdef int on_handshake_complete(self, object error) except -1
    cdef int start_shutdown(self) except -1
    cdef int do_flush(self) except -1
    cdef int do_shutdown(self) except -1
    cdef int on_shutdown_complete(self, object error) except -1
    cdef int let_go(self) except -1
    cdef int abort(self, object exc) except -1
    cdef int do_read(self) except -1
    cdef int read_copied(self) except -1
    cdef int read_buffered(self) except -1
    cdef int deliver(self, object callback, object data) except -1
    cdef int call_eof_received(self) except -1
    cdef int write_one(self, object data) except -1
    cdef int write_many(self, object chunks) except -1
    cdef bint refuse_write(self) except -1
    cdef int put(self, object data) except -1
    cdef int put_memory(self, object data, char* start, Py_ssize_t size) except -1
    cdef int enqueue(self, object data, char* start, Py_ssize_t size) except -1
    cdef Py_ssize_t encrypt(self, char* start, Py_ssize_t size) except -1
    cdef int flush_record(self) except -1
    cdef int do_write(self, bint everything) except -1
    cdef int end_of_callback(self) except -1
    cdef int process_outgoing(self) except -1
    cdef int control_app_writing(self) except -1
    cdef int control_ssl_reading(self) except -1
    cdef object read_buffer_size(self)
    cdef object write_buffer_size(self)
    cdef int wakeup_waiter(self, object exc) except -1
    cdef int fatal_error(self, object exc, object message) except -1
