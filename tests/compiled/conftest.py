# SPDX-License-Identifier: GPL-2.0-only
"""The compiled protocols, built once per process of the tests."""

from pathlib import Path

import building
import pytest

import mgloop


@pytest.fixture(scope="session")
def protocols(tmp_path_factory):
    """Return the module protocols.pyx, compiled against mgloop."""
    source = Path(__file__).with_name("protocols.pyx")
    folder = tmp_path_factory.mktemp("compiled")
    return building.load(building.build(source, folder, mgloop.get_include()))
