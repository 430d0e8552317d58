# SPDX-License-Identifier: GPL-2.0-only
"""Build the extension modules."""

from Cython.Build import cythonize
from setuptools import setup

import mgloop

setup(
    packages=["compiled_protocols"],
    ext_modules=cythonize(
        "compiled_protocols/*.pyx",
        include_path=[mgloop.get_include()],
        compiler_directives={"language_level": 3, "freethreading_compatible": True},
    ),
)
