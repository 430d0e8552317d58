# SPDX-License-Identifier: GPL-2.0-only
"""`mgloop top PID|SOCKET`: the activity of a process's loops, refreshed each second.

The process must have a monitor: MGLOOP_MONITOR in its environment, or mgloop.monitor(). For a PID,
its child processes are shown as well, such as the workers of a server. The screen requires rich
(mgloop[top]); `--json` does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from .observe.monitor import MonitorError, Report, ask, find, find_all
from .observe.rates import LoopRates, as_json, between

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

#: The report and the rates of each process at one time, the given process first.
Sample = list[tuple[Report, list[LoopRates]]]
#: Waits for a number of seconds and returns whether to quit.
Wait = Callable[[float], bool]

#: Maximum rows of the table of callbacks, and of the table of tasks.
_ROWS = 12
#: Characters in a row of a screen that is saved as an image.
_WIDTH = 100
#: Matches font declarations, which are removed so that an image loads nothing from the network.
_WEB_FONTS = re.compile(r"@font-face {.*?}\s*", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; 0 means success."""
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
        prog="mgloop top",
        description="Show what the event loops of a process are doing. The process must have a"
        " monitor: set MGLOOP_MONITOR=PATH in its environment, or call mgloop.monitor(PATH) in it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "process",
        metavar="PID|SOCKET",
        help="inspect this process and its child processes, or this monitor socket",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="set the refresh interval in seconds (default: 1)",
    )
    parser.add_argument(
        "--count",
        type=_positive,
        metavar="N",
        help="exit after this many samples (default: run until interrupted)",
    )
    parser.add_argument("--json", action="store_true", help="print each sample as a line of JSON")
    parser.add_argument(
        "--svg", metavar="FILE", help="write one sample of the screen to this file, as an SVG image"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (0.01 <= seconds < math.inf):
        raise argparse.ArgumentTypeError(f"must be at least 0.01 seconds, got {text}")
    return seconds


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _complain(message: str) -> int:
    print(f"mgloop.top: {message}", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    count = 1 if options.svg else options.count
    if options.json:
        for sample in _samples(options.process, options.interval, count, _sleep):
            for report, rates in sample:
                print(json.dumps(as_json(report, rates)), flush=True)
        return 0
    try:
        import rich.console
        import rich.live
    except ImportError:
        return _complain("the screen requires rich: pip install 'mgloop[top]', or use --json")
    if options.svg:
        with open(os.devnull, "w") as nowhere:
            console = rich.console.Console(record=True, width=_WIDTH, file=nowhere)
            for sample in _samples(options.process, options.interval, count, _sleep):
                console.print(_screen(sample, console.width))
        svg = console.export_svg(title=f"mgloop.top {options.process}")
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(_WEB_FONTS.sub("", svg))
        return 0
    with (
        _keys() as wait,
        rich.live.Live(screen=sys.stdout.isatty(), auto_refresh=False) as live,
    ):
        for sample in _samples(options.process, options.interval, count, wait):
            live.update(_screen(sample, live.console.width), refresh=True)
    return 0


def _samples(process: str, interval: float, count: int | None, wait: Wait) -> Iterator[Sample]:
    before = _reports(process)
    for _ in itertools.count() if count is None else range(count):
        if wait(interval):
            return
        now = _reports(process)
        yield [(report, between(before.get(pid, report), report)) for pid, report in now.items()]
        before = now


def _reports(process: str) -> dict[int, Report]:
    """Return the reports of the process and of its descendants, by PID. Raises MonitorError."""
    if not process.isdecimal():
        report = ask(process)
        return {report.pid: report}
    reports = {}
    for path in find_all(int(process)):
        with contextlib.suppress(MonitorError):  # the process has ended
            report = ask(path)
            reports[report.pid] = report
    if not reports:
        find(int(process))  # raises
    return reports


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[Wait]:
    """Provide a wait function that also ends when q is pressed, if standard input is a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    fd = sys.stdin.fileno()
    settings = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSADRAIN)  # keeps pending input
    try:
        yield lambda seconds: _quit_key(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, settings)


def _quit_key(fd: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            pressed = os.read(fd, 100)
            if not pressed:  # the terminal is gone
                return True
            if b"q" in pressed or b"Q" in pressed:
                return True
    return False


# --- the screen ----------------------------------------------------------------------------------


def _screen(sample: Sample, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    report = sample[0][0]
    loops = [
        loop if len(sample) == 1 else _of_process(loop, each)
        for each, rates in sample
        for loop in rates
    ]
    title = Text.assemble(
        ("mgloop ", "bold cyan"), (str(report.pid), "bold"), f"  {report.program}  ",
        (f"CPython {report.python}", "dim"),
    )  # fmt: skip
    parts: list[Text | Table] = [title, *_loops_tables(loops, width)]
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


def _of_process(loop: LoopRates, report: Report) -> LoopRates:
    """Return a copy whose name includes the process."""
    return dataclasses.replace(loop, thread=f"{report.pid} {loop.thread or ''}".rstrip())


def _loops_tables(loops: list[LoopRates], width: int) -> Iterator[Table]:
    """Yield tables that together have all columns, as many as the width requires."""
    first = min(max([len(loop.thread or "(not running)") for loop in loops], default=4), width // 3)
    group: dict[str, Callable[[LoopRates], str]] = {}
    used = first + _EDGES
    for name, cell in _COLUMNS.items():
        needed = _GAP + max([len(name), *(len(cell(loop)) for loop in loops)])
        if name in _BREAKS or used + needed > width:
            if group:
                yield _loops_table(group, loops, first)
            group, used = {}, first + _EDGES
        group[name] = cell
        used += needed
    yield _loops_table(group, loops, first)


def _loops_table(
    cells: Mapping[str, Callable[[LoopRates], str]], loops: list[LoopRates], first: int
) -> Table:
    table = _table("loop", *cells, left=["loop"])
    table.columns[0].max_width = first
    for loop in loops:
        table.add_row(_name(loop), *(_marked(name, cell(loop)) for name, cell in cells.items()))
    return table


def _marked(name: str, text: str) -> str:
    return f"[bold red]{text}[/]" if name == "stalls" and text != "0" else text


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


#: Characters between two columns, and total characters at both edges of a table.
_GAP, _EDGES = 3, 2
#: The columns of a loop. A call is a callback or an event that the loop has handled without a
#: callback: a loop that only serves transports runs no callbacks.
_COLUMNS: dict[str, Callable[[LoopRates], str]] = {
    "iters/s": lambda loop: _number(loop.iterations),
    "calls/s": lambda loop: _number(loop.callbacks + loop.events),
    "CPU": lambda loop: _percent(loop.cpu),
    "busy": lambda loop: _percent(loop.busy),
    "ready": lambda loop: str(loop.ready),
    "timers": lambda loop: str(loop.timers),
    "stalls": lambda loop: str(loop.stalls),
    "lag p50": lambda loop: _time(loop.lag_p50),
    "p99": lambda loop: _time(loop.lag_p99),
    "max": lambda loop: _time(loop.lag_max),
    "connections": lambda loop: str(loop.connections),
    "in/s": lambda loop: _number(loop.received) + "B",
    "out/s": lambda loop: _number(loop.sent) + "B",
}
#: Columns that start a new table.
_BREAKS = {"iters/s", "lag p50"}


if __name__ == "__main__":
    sys.exit(main())
