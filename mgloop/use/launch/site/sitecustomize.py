# SPDX-License-Identifier: GPL-2.0-only
"""The module that every Python under `mgloop run` imports at startup: see mgloop.use.launch.

It hides another sitecustomize module, such as that of a distribution, and therefore imports it.
"""

import os
import sys


def _activate() -> None:
    try:
        from mgloop.use.launch import activate
    except ImportError as exc:
        # The interpreter is another one than that for which mgloop is installed.
        print(
            f"mgloop run: {sys.executable} (pid {os.getpid()}) does not use mgloop: {exc}",
            file=sys.stderr,
        )
    else:
        activate()


def _import_hidden() -> None:
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
        _import_hidden()
    finally:
        _activate()
