# SPDX-License-Identifier: GPL-2.0-only
"""Ways to run a program on mgloop: install(), `mgloop run`, and the output of `mgloop`."""
