# SPDX-License-Identifier: GPL-2.0-only
"""`python -m mgloop.top PID|SOCKET`: what the loops of a process do, refreshed each second.

The process has to have a monitor: MGLOOP_MONITOR in its environment, or mgloop.monitor(). The
screen is rich's (mgloop[top]); `--json` needs none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from .observe.monitor import MonitorError, Report, ask, find
from .observe.rates import LoopRates, as_json, between

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

#: Rows of callbacks, and of tasks.
_ROWS = 12
#: Characters of a screen that becomes a picture.
_WIDTH = 100
#: A picture is to load nothing from anywhere.
_WEB_FONTS = re.compile(r"@font-face {.*?}\s*", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: its exit status, 0 = all went well."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except KeyboardInterrupt:
        return 0
    except MonitorError as exc:
        return _complain(str(exc))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0
    except OSError as exc:
        return _complain(f"{exc.filename}: {exc.strerror}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mgloop.top",
        description="Show what the event loops of a process do. It has to have a monitor:"
        " MGLOOP_MONITOR=PATH in its environment, or mgloop.monitor(PATH) in its program.",
        allow_abbrev=False,
    )
    parser.add_argument("process", metavar="PID|SOCKET", help="whose loops")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="between two looks (1)"
    )
    parser.add_argument(
        "--count", type=_positive, metavar="N", help="how many looks (until interrupted)"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each look")
    parser.add_argument(
        "--svg", metavar="FILE", help="write the screen to a file after one look, as a picture"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (0.01 <= seconds < math.inf):
        raise argparse.ArgumentTypeError(f"{text} is not a time from 0.01 s on")
    return seconds


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _complain(message: str) -> int:
    print(f"mgloop.top: {message}", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    path = find(int(options.process)) if options.process.isdecimal() else options.process
    looks = _looks(path, options.interval, 1 if options.svg else options.count)
    if options.json:
        for report, rates in looks:
            print(json.dumps(as_json(report, rates)), flush=True)
        return 0
    try:
        import rich.console
        import rich.live
    except ImportError:
        return _complain("the screen needs rich: install mgloop[top], or ask for --json")
    if options.svg:
        with open(os.devnull, "w") as nowhere:
            console = rich.console.Console(record=True, width=_WIDTH, file=nowhere)
            for report, rates in looks:
                console.print(_screen(report, rates))
        svg = console.export_svg(title=f"mgloop.top {options.process}")
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(_WEB_FONTS.sub("", svg))
        return 0
    with rich.live.Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for report, rates in looks:
            live.update(_screen(report, rates), refresh=True)
    return 0


def _looks(
    path: str, interval: float, count: int | None
) -> Iterator[tuple[Report, list[LoopRates]]]:
    before = ask(path)
    for _ in itertools.count() if count is None else range(count):
        time.sleep(interval)
        now = ask(path)
        yield now, between(before, now)
        before = now


# --- the screen ----------------------------------------------------------------------------------


def _screen(report: Report, loops: list[LoopRates]) -> Group:
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble(
        ("mgloop ", "bold cyan"), (str(report.pid), "bold"), f"  {report.program}  ",
        (f"CPython {report.python}", "dim"),
    )  # fmt: skip
    parts: list[Text | Table] = [title, _loops_table(_WORK, loops), _loops_table(_TRAFFIC, loops)]
    if any(loop.top for loop in loops):
        parts.append(_callbacks_table(loops))
    if any(loop.tasks for loop in loops):
        parts.append(_tasks_table(loops))
    return Group(*parts)


def _table(*columns: str, left: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in left else "right",
            no_wrap=True,
            overflow="ellipsis" if column in left else "crop",
        )
    return table


def _loops_table(cells: Mapping[str, Callable[[LoopRates], str]], loops: list[LoopRates]) -> Table:
    table = _table(*cells, left=["loop"])
    for loop in loops:
        table.add_row(*(cell(loop) for cell in cells.values()))
    return table


def _callbacks_table(loops: list[LoopRates]) -> Table:
    from rich.markup import escape

    table = _table("time", "runs/s", "callback", "loop", left=["callback", "loop"])
    rows = [(share, name, loop) for loop in loops for name, share in (loop.top or {}).items()]
    rows.sort(key=lambda row: -row[0].share)
    for share, name, loop in rows[:_ROWS]:
        table.add_row(_percent(share.share), _number(share.rate), escape(name), _name(loop))
    return table


def _tasks_table(loops: list[LoopRates]) -> Table:
    from rich.markup import escape

    table = _table("tasks", "coroutine", "loop", left=["coroutine", "loop"])
    rows = [(count, name, loop) for loop in loops for name, count in loop.tasks.items()]
    rows.sort(key=lambda row: -row[0])
    for count, name, loop in rows[:_ROWS]:
        table.add_row(str(count), escape(name), _name(loop))
    return table


def _name(loop: LoopRates) -> str:
    from rich.markup import escape

    return escape(loop.thread or "(not running)")


def _number(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000 or unit == "G":
            break
        value /= 1000
    return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"


def _stalls(loop: LoopRates) -> str:
    return f"[bold red]{loop.stalls}[/]" if loop.stalls else "0"


#: Two tables of the loops, either of which 80 columns have room for.
_WORK: dict[str, Callable[[LoopRates], str]] = {
    "loop": _name,
    "turns/s": lambda loop: _number(loop.iterations),
    "calls/s": lambda loop: _number(loop.callbacks),
    "CPU": lambda loop: _percent(loop.cpu),
    "busy": lambda loop: _percent(loop.busy),
    "ready": lambda loop: str(loop.ready),
    "timers": lambda loop: str(loop.timers),
    "stalls": _stalls,
}
_TRAFFIC: dict[str, Callable[[LoopRates], str]] = {
    "loop": _name,
    "lag p50": lambda loop: _time(loop.lag_p50),
    "p99": lambda loop: _time(loop.lag_p99),
    "max": lambda loop: _time(loop.lag_max),
    "connections": lambda loop: str(loop.connections),
    "in/s": lambda loop: _number(loop.received) + "B",
    "out/s": lambda loop: _number(loop.sent) + "B",
}


if __name__ == "__main__":
    sys.exit(main())
