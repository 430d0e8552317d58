# SPDX-License-Identifier: GPL-2.0-only
"""What tornado's own runner sets up before its tests: they take an access log for a failure."""

import logging

logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
