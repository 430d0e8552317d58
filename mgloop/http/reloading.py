# SPDX-License-Identifier: GPL-2.0-only
"""Which files have changed, for --reload: told by watchfiles if that is installed, else by looking.

Patterns are matched against the name of a file and of each folder on the way to it, so that an
excluded folder is not looked into.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from fnmatch import fnmatch

from .config import Config
from .errors import StartError


async def changes(config: Config) -> AsyncGenerator[str, None]:
    """The path of a changed, new or deleted file, relative if it can be, each time there is one."""
    roots = [os.path.abspath(folder) for folder in config.reload_dirs or (os.getcwd(),)]
    for root in roots:
        if not os.path.isdir(root):
            raise StartError(f"cannot watch {root}: there is no such folder")
    try:
        from watchfiles import awatch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        async for path in _by_looking(config, roots):
            yield os.path.relpath(path)
        return
    delay = int(config.reload_delay * 1000)
    async for batch in awatch(*roots, watch_filter=None, step=delay, rust_timeout=1000):
        wanted = [path for _, path in sorted(batch) if _is_wanted(config, roots, path)]
        if wanted:
            yield os.path.relpath(wanted[0])


def _is_wanted(config: Config, roots: list[str], path: str) -> bool:
    for root in roots:
        if os.path.commonpath([root, path]) == root:
            *folders, name = os.path.relpath(path, root).split(os.sep)
            if not any(_excluded(config, part) for part in (*folders, name)):
                return any(fnmatch(name, pattern) for pattern in config.reload_includes)
    return False


def _excluded(config: Config, name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in config.reload_excludes)


async def _by_looking(config: Config, roots: list[str]) -> AsyncGenerator[str, None]:
    loop = asyncio.get_running_loop()
    before = dict(_files(config, roots))
    while True:
        await asyncio.sleep(config.reload_delay)
        # Not in the loop: a large tree takes a while, and signals should not wait.
        now = dict(await loop.run_in_executor(None, lambda: list(_files(config, roots))))
        different = [path for path, seen in now.items() if before.get(path) != seen]
        different += [path for path in before if path not in now]
        before = now
        if different:
            yield min(different)


def _files(config: Config, roots: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not _excluded(config, name)]
            for name in names:
                path = os.path.join(folder, name)
                if _is_wanted(config, roots, path):
                    try:
                        status = os.stat(path)
                    except OSError:
                        continue
                    yield path, (status.st_mtime_ns, status.st_size)
