# SPDX-License-Identifier: GPL-2.0-only
"""Monitoring of event loops: the watchdog, the monitor, and stats() as metrics.

prometheus and opentelemetry each require a library, which is an extra of mgloop
(mgloop[prometheus], mgloop[opentelemetry]). The loop imports the watchdog and the monitor only if
the environment enables them.
"""
