# SPDX-License-Identifier: GPL-2.0-only
"""Transports for TCP and UNIX sockets, datagrams and pipes, and the loop's methods for them."""
