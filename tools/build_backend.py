# SPDX-License-Identifier: GPL-2.0-only
"""pyproject.toml's build back-end: meson-python that also supports read-only source trees.

meson-python builds a wheel in a temporary folder inside the source tree. Where it cannot create one
(another user's checkout, a read-only mount), `pip install .` fails with a traceback. This back-end
then passes it a temporary folder elsewhere. Everything else is meson-python's own.
"""

import os
import tempfile

import mesonpy
from mesonpy import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Call meson-python's build_wheel(); use a temporary build folder if the tree is read-only."""
    settings = dict(config_settings or {})
    if os.access(os.curdir, os.W_OK) or settings.keys() & {"build-dir", "builddir"}:
        return mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    with tempfile.TemporaryDirectory(prefix="mgloop-build-") as folder:
        settings["build-dir"] = folder
        return mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
