# SPDX-License-Identifier: GPL-2.0-only
"""The processes and threads of `mgloop serve`: supervisor, workers, signals, listening sockets."""
