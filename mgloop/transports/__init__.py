# SPDX-License-Identifier: GPL-2.0-only
"""Transports: TCP and UNIX sockets, datagrams, pipes, and what a loop offers around them."""
