# SPDX-License-Identifier: GPL-2.0-only
"""Check that the project's prose is plain English.

    python tools/prose.py                 the share of flagged lines per kind of file
    python tools/prose.py FILE...         the flagged lines of these files
    python tools/prose.py --change [REV]  the flagged lines added since REV (default: HEAD)

A line of prose (a comment, a docstring, Markdown outside code) is flagged if it has a construction
that makes text read like a translation. A flagged line can be good English: list such lines
in tools/prose_allowed.txt. Bad English often passes. Rewrite the sentence instead of the word.

Exit status: 1 if a kind of file exceeds its budget. Lower a budget whenever the share allows it;
never raise one.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tools" / "prose_allowed.txt"

#: A description of the construction -> its pattern.
CONSTRUCTIONS = {
    "who or whoever for a part of a program": r"\bwho(?:ever)?\b",
    "a clause with 'what' in place of a noun": r"\bwhat (?:is|are|was|were|has|have|had|comes|came"
    r"|waits?|they|it|that|this|the|one|others?|follows|stands|belongs|lasts|does|runs|goes|leaves"
    r"|must|may|can)\b",
    "tell for report or notify": r"\b(?:tells?|told|telling)\b",
    "is no, is none, has none": r"\b(?:is|are|was|be|has|have|had) (?:no|none)\b",
    "has it": r"\b(?:has|have|had) it\b",
    "an adverb of written German": r"\b(?:anew|at once|meanwhile|behind|beside|likewise)\b",
    "in the place of, by way of, and its like": r"\b(?:in (?:the|its|their) place of|by way of"
    r"|(?:its|their|the) like)\b",
    "somebody, nobody, anybody": r"\b(?:some|no|any)body\b",
    "a look for a check": r"\b(?:looks?|looked) (?:at|whether|no|anew)\b|\ba look\b",
    "is to for must or will": r"\b(?:is|are|was|were) (?:not )?to\b",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in CONSTRUCTIONS.items()}

#: Kind of file -> (pattern of its paths, the largest share of flagged lines in percent). The first
#: pattern that matches a path counts.
BUDGETS = {
    "CHANGELOG": (r"CHANGELOG\.md", 1.0),
    "README, docs, CONTRIBUTING": (r"(?!docs/benchmarks/).*\.md", 2.0),
    "mgloop, Cython": (r"mgloop/.*\.(pyx|pxd)", 1.0),
    "mgloop, C": (r"mgloop/.*\.[ch]", 2.5),
    "mgloop, Python": (r"mgloop/.*\.py", 2.5),
    "bench, tools, examples": (r"(bench|tools|examples)/.*\.py", 1.0),
    "tests": (r"tests/.*\.(py|c)", 0.7),
}


def git(*arguments: str) -> str:
    """Return the output of a git command."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _markdown(lines: list[str]) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(lines, 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code:
            yield number, line


def _c(lines: list[str]) -> Iterator[tuple[int, str]]:
    in_comment = False
    for number, line in enumerate(lines, 1):
        in_comment = in_comment or "/*" in line
        if in_comment:
            yield number, line
        in_comment = in_comment and "*/" not in line


def _python(lines: list[str]) -> Iterator[tuple[int, str]]:
    in_docstring = False
    for number, line in enumerate(lines, 1):
        quotes = line.count('"""')
        if in_docstring or quotes:
            yield number, line
        elif comment := re.search(r"(?:^|\s)#:? (.*)$", line):
            yield number, comment[1]
        in_docstring ^= quotes == 1


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of prose in a file."""
    parse = _markdown if path.endswith(".md") else _c if path.endswith((".c", ".h")) else _python
    for number, line in parse(text.splitlines()):
        if len(line.split()) > 1 and "SPDX" not in line:
            yield number, line


@functools.cache
def allowed() -> set[str]:
    """Return the lines that are good English although they have a construction."""
    lines = ALLOWED.read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def flagged(line: str) -> str | None:
    """Return the name of the first construction in a line, or None; also None if it is allowed."""
    if line.strip() in allowed():
        return None
    return next((name for name, pattern in _PATTERNS.items() if pattern.search(line)), None)


def show_files(paths: list[str]) -> int:
    """Print the flagged lines of files."""
    for path in paths:
        for number, line in prose(path, Path(path).read_text(errors="replace")):
            if name := flagged(line):
                print(f"{path}:{number}: {line.strip()}   [{name}]")
    return 0


def show_change(revision: str) -> int:
    """Print the flagged lines that were added since a revision."""
    path, number, found = "", 0, 0
    for line in git("diff", "-U0", revision).splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif line.startswith("+"):
            text = line[1:].strip()
            is_prose = path.endswith(".md") or re.search(r"(?:^|\s)(?:#|/?\*)|\"\"\"", line[1:])
            if is_prose and (name := flagged(text)):
                print(f"{path}:{number}: {text}   [{name}]")
                found += 1
            number += 1
    print(f"{found} added lines are flagged")
    return 0


def kind_of(path: str) -> str | None:
    """Return the kind of a file, or None if its prose is not checked."""
    return next((kind for kind, (form, _) in BUDGETS.items() if re.fullmatch(form, path)), None)


def check() -> int:
    """Print the share of each kind of file; return 1 if one exceeds its budget."""
    lines: dict[str, list[str]] = {kind: [] for kind in BUDGETS}
    for path in git("ls-files").splitlines():
        if (kind := kind_of(path)) and (ROOT / path).is_file():
            text = (ROOT / path).read_text(errors="replace")
            lines[kind] += [line for _, line in prose(path, text)]
    status = 0
    for kind, (_, budget) in BUDGETS.items():
        marked = sum(bool(flagged(line)) for line in lines[kind])
        share = 100 * marked / max(1, len(lines[kind]))
        verdict = "" if share <= budget else "   exceeds its budget: see --change REV"
        status |= bool(verdict)
        lines_of_kind = len(lines[kind])
        print(f"{kind:28}{share:5.1f} % of {lines_of_kind:5} lines (budget {budget} %){verdict}")
    return status


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    if arguments[:1] == ["--change"]:
        return show_change(arguments[1] if len(arguments) > 1 else "HEAD")
    return show_files(arguments) if arguments else check()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
