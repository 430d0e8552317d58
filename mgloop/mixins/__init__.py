# SPDX-License-Identifier: GPL-2.0-only
"""What a loop does beside polling and scheduling, one cold concern each, mixed into mgloop.Loop."""
