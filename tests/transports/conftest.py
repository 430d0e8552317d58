# SPDX-License-Identifier: GPL-2.0-only
"""Fixtures for the tests of pipes."""

import os
import tty

import pytest


@pytest.fixture
def pipe():
    """Yield the two ends of a pipe as unbuffered binary files; the test may close either."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", 0) as reader, os.fdopen(write_end, "wb", 0) as writer:
        yield reader, writer


@pytest.fixture
def terminal():
    """Yield the two ends of a pseudo-terminal in raw mode as unbuffered binary files."""
    parent, child = os.openpty()
    tty.setraw(child)
    with os.fdopen(parent, "r+b", 0) as ours, os.fdopen(child, "r+b", 0) as theirs:
        yield ours, theirs


@pytest.fixture
def reader(pipe):
    """Return the reading end of ``pipe``."""
    return pipe[0]


@pytest.fixture
def writer(pipe):
    """Return the writing end of ``pipe``."""
    return pipe[1]
