# SPDX-License-Identifier: GPL-2.0-only
"""Let compiled programs use `cimport mgloop`; _compiled.pxd describes the names."""

from mgloop._compiled cimport (
    Protocol_1 as Protocol, Transport_1 as Transport, call_later, call_soon, callback,
)
