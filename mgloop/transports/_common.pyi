# SPDX-License-Identifier: GPL-2.0-only
# Nothing for Python to use.
