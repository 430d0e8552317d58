# SPDX-License-Identifier: GPL-2.0-only
"""The output of `mgloop` without arguments: versions and platform, for bug reports."""

from __future__ import annotations

import importlib.util
import os
import platform
import ssl

from .. import MONGOOSE_VERSION, __version__
from .._stdlib import has_gil
from ..tls import _openssl

#: Import names of the optional packages that mgloop can use.
_EXTRAS = ("opentelemetry", "prometheus_client", "rich", "watchfiles")


def text() -> str:
    """Return the lines to print. They contain no data about the user or the program."""
    c_library = " ".join(platform.libc_ver()) or "unknown C library"
    extras = [name for name in _EXTRAS if importlib.util.find_spec(name)]
    engine, why = _openssl.engine()
    called = "called directly" if engine == "openssl" else f"called through the ssl module: {why}"
    pidfd = "yes" if _has_pidfd() else "no"
    return "\n".join(
        [
            f"mgloop {__version__} (GPL-2.0-only), Mongoose {MONGOOSE_VERSION}",
            f"{platform.python_implementation()} {platform.python_version()}"
            f" ({'with' if has_gil() else 'without'} the GIL), {ssl.OPENSSL_VERSION}"
            f" ({called})",
            f"{platform.system()} {platform.release()}, {platform.machine()}, {c_library}",
            f"processors {os.cpu_count()}, pidfd {pidfd}",
            f"optional packages: {', '.join(extras) or 'none'}",
            "Run mgloop --help for usage.",
        ]
    )


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
