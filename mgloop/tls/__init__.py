# SPDX-License-Identifier: GPL-2.0-only
"""TLS over any transport: the protocol, the engine that knows OpenSSL, and the loop's methods."""
