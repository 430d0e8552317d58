# SPDX-License-Identifier: GPL-2.0-only
"""Imported by every Python that `mgloop run` has started, and by their children: see mgloop.launch.

It takes the place of another sitecustomize, such as that of a distribution, and imports it.
"""

import os
import sys


def _activate() -> None:
    try:
        from mgloop.launch import activate
    except ImportError as exc:
        # Another Python than the one that mgloop was installed for.
        print(
            f"mgloop run: {sys.executable} (pid {os.getpid()}) does not use mgloop: {exc}",
            file=sys.stderr,
        )
    else:
        activate()


def _give_way() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ModuleNotFoundError as exc:
        if exc.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    try:
        _give_way()
    finally:
        _activate()
