# SPDX-License-Identifier: GPL-2.0-only
"""`python -m mgloop`, the same as the command `mgloop`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
