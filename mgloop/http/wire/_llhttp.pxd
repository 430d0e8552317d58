# SPDX-License-Identifier: GPL-2.0-only
"""Declare the part of llhttp's interface that mgloop uses.

thirdparty/llhttp/README.md describes the library.
"""

from libc.stdint cimport uint8_t, uint16_t, uint64_t


cdef extern from "llhttp.h":
    ctypedef struct llhttp_t:
        void *data
        uint64_t content_length
        uint8_t http_major
        uint8_t http_minor
        uint8_t upgrade
        uint16_t flags

    # A callback returns 0 to continue, or HPE_PAUSED to pause. Any other result is an error that
    # ends llhttp_execute(). -2 means that a Python exception is set, which llhttp_execute() raises.
    ctypedef int (*llhttp_data_cb)(llhttp_t *parser, const char *at, size_t length) except -2
    ctypedef int (*llhttp_cb)(llhttp_t *parser) except -2

    ctypedef struct llhttp_settings_t:
        llhttp_cb on_message_begin
        llhttp_data_cb on_url
        llhttp_data_cb on_version
        llhttp_data_cb on_header_field
        llhttp_data_cb on_header_value
        llhttp_data_cb on_chunk_extension_name
        llhttp_data_cb on_chunk_extension_value
        llhttp_cb on_url_complete
        llhttp_cb on_header_field_complete
        llhttp_cb on_header_value_complete
        llhttp_cb on_headers_complete
        llhttp_data_cb on_body
        llhttp_cb on_message_complete
        llhttp_cb on_chunk_header
        llhttp_cb on_chunk_complete

    enum:
        HPE_OK
        HPE_PAUSED
        HTTP_REQUEST
        F_TRANSFER_ENCODING
        F_CHUNKED

    void llhttp_settings_init(llhttp_settings_t *settings) noexcept
    void llhttp_init(llhttp_t *parser, int kind, const llhttp_settings_t *settings) noexcept
    void llhttp_reset(llhttp_t *parser) noexcept
    int llhttp_execute(llhttp_t *parser, const char *data, size_t length) except *
    void llhttp_resume(llhttp_t *parser) noexcept
    const char *llhttp_get_error_pos(const llhttp_t *parser) noexcept
    const char *llhttp_get_error_reason(const llhttp_t *parser) noexcept
    int llhttp_should_keep_alive(const llhttp_t *parser) noexcept
