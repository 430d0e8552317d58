# SPDX-License-Identifier: GPL-2.0-only
"""Describe the machine and the measured software for a results file."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("aiohttp", "httptools", "uvicorn", "websockets")


def _first(path: str, key: str) -> str:
    """Return the value of the first line of *path* that starts with *key*, or an empty string."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(key):
                    return line.partition(":")[2].strip().strip('"')
    except OSError:
        pass
    return ""


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """Return the source tree's commit, with ``+`` when files differ from it; empty outside git."""
    revision = _output("git", "rev-parse", "--short=12", "HEAD")
    if revision and _output("git", "status", "--porcelain", "--untracked-files=no"):
        revision += "+"
    return revision


def describe() -> dict:
    """Return processor, kernel, compiler, Python, package versions, commit and load."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    compiler = _output("cc", "--version").splitlines()
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cpus": os.cpu_count(),
        "usable_cpus": sorted(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "virtual": "hypervisor" in _first("/proc/cpuinfo", "flags").split(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": compiler[0] if compiler else "",
        "python": sys.version.replace("\n", " "),
        "packages": versions,
        "commit": commit(),
        "load_average": list(os.getloadavg()),
    }
