# SPDX-License-Identifier: GPL-2.0-only
"""meson-python, for source trees that may not be written to as well: pyproject.toml's back-end.

meson-python builds a wheel in a temporary folder inside the source tree, and where it may not make
one (somebody else's checkout, a read-only mount) `pip install .` ended in its traceback. There it
is told to build in a temporary folder elsewhere. All else is meson-python's own.
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
    """meson-python's, in a build folder of its own where the source tree is read-only."""
    settings = dict(config_settings or {})
    if os.access(os.curdir, os.W_OK) or settings.keys() & {"build-dir", "builddir"}:
        return mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    with tempfile.TemporaryDirectory(prefix="mgloop-build-") as folder:
        settings["build-dir"] = folder
        return mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
