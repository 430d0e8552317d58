# SPDX-License-Identifier: GPL-2.0-only
"""``python -m bench``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
