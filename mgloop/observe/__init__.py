# SPDX-License-Identifier: GPL-2.0-only
"""Ways to show what loops do: their stats() as metrics of well-known libraries.

Each module needs a library that is an extra of mgloop's (mgloop[prometheus],
mgloop[opentelemetry]); nothing here is imported by the loop.
"""
