# SPDX-License-Identifier: GPL-2.0-only
"""The table: what became of each cell over both loops, on the terminal and as Markdown."""

from collections import Counter
from collections.abc import Iterable

from tests.faults.matrix import CALLS, Cell
from tests.faults.outcome import WORDS, Outcome

Results = dict[Cell, tuple[Outcome, Outcome]]

LEGEND = """\
ok: everything arrived; refused: the loop could not be made, and its constructor said so; noted:
everything arrived, and an error was reported on the way; error: the program ended without something
and reported it; stuck: it reported an error, but did not end; hung: it did not end, and reported
nothing; spun: it made many times the system calls that it takes; lost: it ended, and something was
missing without a report; crashed: a signal ended the process. A dot: this loop made no such call,
so nothing failed."""


def worse(results: Results) -> list[Cell]:
    """Return the cells that are worse over mgloop."""
    return [cell for cell, pair in results.items() if pair[1].is_worse_than(pair[0])]


def _pair(pair: tuple[Outcome, Outcome] | None, loud: bool = False) -> str:
    if pair is None:
        return "-"
    asyncio, mgloop = pair
    text = f"{asyncio} / {mgloop}"
    return f"**{text}**" if loud and mgloop.is_worse_than(asyncio) else text


def _rows(results: Results) -> Iterable[tuple[str, list[str], list[tuple[str, str, dict]]]]:
    """Return for each call its columns, and its rows of program, error and pairs by column."""
    for call in CALLS:
        columns = list(dict.fromkeys(cell.often for cell in results if cell.call == call))
        rows: dict[tuple[str, str], dict] = {}
        for cell, pair in results.items():
            if cell.call == call:
                rows.setdefault((cell.program, cell.error), {})[cell.often] = pair
        if rows:
            yield call, columns, [(*key, row) for key, row in rows.items()]


def text(results: Results) -> str:
    """Return the table for a terminal: asyncio / mgloop."""
    lines = []
    for call, columns, rows in _rows(results):
        lines.append(f"\n{call:12} {'':11}" + "".join(f"{often:20}" for often in columns).rstrip())
        for program, error, row in rows:
            cells = (_pair(row.get(often)) for often in columns)
            lines.append(
                f"{program:12} {error:11}" + "".join(f"{cell:20}" for cell in cells).rstrip()
            )
    return "\n".join(lines)


def markdown(results: Results) -> str:
    """Return the table as Markdown: asyncio / mgloop, with worse results in bold."""
    parts = ["# Faults\n", "asyncio / mgloop\n", LEGEND + "\n", counts_markdown(results)]
    for call, columns, rows in _rows(results):
        names = ", ".join(f"`{name}`" for name in CALLS[call].names)
        parts.append(f"\n## {call}\n\n{names}\n")
        parts.append("| program | error | " + " | ".join(columns) + " |")
        parts.append("|---" * (2 + len(columns)) + "|")
        for program, error, row in rows:
            cells = " | ".join(_pair(row.get(often), loud=True) for often in columns)
            parts.append(f"| {program} | {error} | {cells} |")
    parts.append("\n## Worse over mgloop\n")
    bad = worse(results)
    for cell in bad:
        asyncio, mgloop = results[cell]
        parts.append(f"- `{cell}`: {asyncio} / {mgloop} ({mgloop.detail})")
    if not bad:
        parts.append("Nothing.")
    return "\n".join(parts) + "\n"


def counts(results: Results) -> tuple[Counter, Counter]:
    """Return how many runs with an injected fault ended in each word, by loop."""
    return (
        Counter(pair[0].word for pair in results.values()),
        Counter(pair[1].word for pair in results.values()),
    )


def counts_markdown(results: Results) -> str:
    """Return the counts as Markdown, with a row per loop."""
    lines = ["| loop | " + " | ".join(WORDS) + " |", "|---" * (1 + len(WORDS)) + "|"]
    for name, count in zip(("asyncio", "mgloop"), counts(results), strict=True):
        lines.append(f"| {name} | " + " | ".join(str(count[word]) for word in WORDS) + " |")
    return "\n".join(lines)
