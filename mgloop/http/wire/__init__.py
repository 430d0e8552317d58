# SPDX-License-Identifier: GPL-2.0-only
"""One HTTP connection: parsing, requests, responses and WebSockets. Mostly native code."""
