# SPDX-License-Identifier: GPL-2.0-only
"""Mix-in classes of mgloop.Loop for everything that is neither polling, scheduling nor frequent."""
