# SPDX-License-Identifier: GPL-2.0-only
"""TLS over any transport: the protocol, the engine that uses OpenSSL, and the loop's methods."""
