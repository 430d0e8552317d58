# SPDX-License-Identifier: GPL-2.0-only
"""The command `mgloop`, which is the same as `python -m mgloop`.

It imports only the modules of the subcommand that is run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        from .use.about import text

        print(text())
        return 0
    if arguments[0] == "run":
        from .use.launch.command import main as run

        return run(arguments[1:])
    if arguments[0] == "top":
        from .top import main as top

        return top(arguments[1:])
    from .http.cli import main as serve

    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())
