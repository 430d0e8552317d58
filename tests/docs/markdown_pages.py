# SPDX-License-Identifier: GPL-2.0-only
"""The parts of the repository's Markdown: fenced blocks with their attributes, prose, headings.

A block may have a name, which is the name of the file that a reader makes of it. A comment on the
line above may mark a block for the tests:

    <!-- sample: serves 8080 -->
    ```python title="app.py"

test_samples.py has the marks.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"( *)(`{3,})([\w-]*)(.*)")
_MARK = re.compile(r" *<!-- sample: (.+?) -->")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` is that of its fence, `name` its title, `mark` the comment above."""

    page: Path
    line: int
    language: str
    name: str | None
    mark: str | None
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    """Return the pages written for readers, without those that the benchmarks generate."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "tests").glob("*/README.md")),
        *sorted((ROOT / "thirdparty").glob("*.md")),
    ]


def split(page):
    """Return (blocks, lines of prose): the latter are empty where a block was."""
    blocks, prose, lines = [], [], page.read_text().splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        if opening is None:
            prose.append(lines[number])
            number += 1
            continue
        indent, fence, language, rest = opening.groups()
        first = number
        number += 1
        while lines[number].strip() != fence:
            number += 1
        above = prose[-1] if prose else ""
        mark, title = _MARK.fullmatch(above), _TITLE.search(rest)
        text = "".join(line.removeprefix(indent) + "\n" for line in lines[first + 1 : number])
        blocks.append(Block(page, first + 1, language, title and title[1], mark and mark[1], text))
        number += 1
        prose += [""] * (number - first)
    return blocks, prose


def blocks(page):
    """Return the blocks of `page`, in order."""
    return split(page)[0]


def prose(page):
    """Return all text except the blocks, as one text with the page's line numbers."""
    return "\n".join(split(page)[1])


def anchors(page):
    """Return the anchors that a link may name after `#`: GitHub's form of the headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        copies = [slug, *(f"{slug}-{n}" for n in range(1, 20))]
        found.add(next(name for name in copies if name not in found))
    # The anchors that mkdocstrings makes; links use the whole path.
    return found | set(re.findall(r"^::: ([\w.]+)$", prose(page), re.M))
