# SPDX-License-Identifier: GPL-2.0-only
"""aiofiles: many files at a time in the loop's executor, while the loop keeps turning."""

import asyncio
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

import aiofiles
import aiofiles.os
from common import expect, run, say


async def main() -> None:
    """200 files at a time, lines, seeking, the os functions, and the loop alive."""
    say(f"aiofiles {version('aiofiles')}")
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    turning = asyncio.ensure_future(turn())
    with tempfile.TemporaryDirectory() as folder:

        async def one(number: int) -> None:
            path = Path(folder, str(number))
            data = os.urandom(50_000)
            async with aiofiles.open(path, "wb") as file:
                await file.write(data)
            async with aiofiles.open(path, "rb") as file:
                expect(await file.read() == data, "the file has what was written")
                await file.seek(-10, os.SEEK_END)
                expect(await file.read() == data[-10:], "seek and tell work")

        await asyncio.gather(*(one(number) for number in range(200)))
        expect(len(await aiofiles.os.listdir(folder)) == 200, "200 files are there")
        say("200 files of 50 kB written and read at a time")

        text = Path(folder, "text")
        async with aiofiles.open(text, "w") as file:
            await file.writelines(f"{number}\n" for number in range(10_000))
        async with aiofiles.open(text) as file:
            numbers = [int(line) async for line in file]
        expect(numbers == list(range(10_000)), "10,000 lines in order")
        await aiofiles.os.rename(text, f"{text}2")
        expect((await aiofiles.os.stat(f"{text}2")).st_size > 0, "renamed")
        try:
            async with aiofiles.open(Path(folder, "missing")):
                expect(False, "a missing file is an error")
        except FileNotFoundError:
            pass
        say("10,000 lines read, a rename, a missing file")
    turning.cancel()
    await asyncio.wait([turning])
    expect(turns > 10, "the loop turned meanwhile")
    say(f"the loop turned {turns} times meanwhile")


run(main())
