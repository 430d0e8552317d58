# SPDX-License-Identifier: GPL-2.0-only
"""The faults: the system calls, the errors that make sense for each, and how often.

Loops reach the kernel by different calls for the same purpose (recvfrom() here, recvmmsg() there),
and the results must be comparable: so a cell names a purpose, and all of its calls fail alike.
"""

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Call:
    """Calls of one purpose; *setup*: a loop makes them while it is being made, and never again."""

    names: tuple[str, ...]
    errors: tuple[str, ...]
    setup: bool = False


CALLS = {
    "recv": Call(
        ("recvfrom", "recv", "recvmsg", "recvmmsg"),
        ("EAGAIN", "EINTR", "ECONNRESET", "ENOMEM", "ENOBUFS"),
    ),
    "send": Call(
        ("sendto", "send", "sendmsg", "sendmmsg"),
        ("EAGAIN", "EINTR", "ECONNRESET", "ENOMEM", "ENOBUFS"),
    ),
    "accept": Call(("accept4", "accept"), ("EAGAIN", "EINTR", "EMFILE", "ENOMEM", "ENOBUFS")),
    "epoll_ctl": Call(("epoll_ctl",), ("ENOMEM", "ENOSPC")),
    "epoll_wait": Call(("epoll_wait", "epoll_pwait", "epoll_pwait2"), ("EINTR", "ENOMEM")),
    "timerfd_settime": Call(("timerfd_settime",), ("ENOMEM", "EPERM")),
    "read": Call(("read", "readv"), ("EAGAIN", "EINTR", "ENOMEM")),
    "write": Call(("write", "writev"), ("EAGAIN", "EINTR", "ENOMEM")),
    "pidfd_open": Call(("pidfd_open",), ("EMFILE", "ENOMEM", "EPERM")),
    "timerfd_create": Call(("timerfd_create",), ("EMFILE", "ENOMEM"), setup=True),
    "socketpair": Call(("socketpair",), ("EMFILE", "ENOMEM", "ENOBUFS"), setup=True),
    "epoll_create": Call(("epoll_create1", "epoll_create"), ("EMFILE", "ENOMEM"), setup=True),
}

#: How often -> strace's expression. strace counts from the moment it attaches, per thread.
FREQUENCIES = {"first": "1", "tenth": "10+10", "every": "1+"}

#: Calls that fail while the loop is being made: this program shows whether it works all the same.
SETUP_PROGRAM = "threads"

#: read() and write() are the business of pipes; elsewhere Python itself would be hit, not the loop.
PIPE_PROGRAMS = ("subprocess", "pipes")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One fault in one program: *when* is strace's expression for *often*."""

    program: str
    call: str
    error: str
    often: str
    when: str
    at_birth: bool = False

    def __str__(self) -> str:
        return f"{self.program}/{self.call}/{self.error}/{self.often}"

    @property
    def injection(self) -> str:
        """Return the argument of strace that injects the fault."""
        # With ?, a call that this machine does not have is passed over.
        names = ",".join("?" + name for name in CALLS[self.call].names)
        return f"inject={names}:error={self.error}:when={self.when}"


def cells(programs: list[str]) -> Iterator[Cell]:
    """Return all cells of these programs."""
    for program in programs:
        for name, call in CALLS.items():
            if name in ("read", "write") and program not in PIPE_PROGRAMS:
                continue
            for error in call.errors:
                if not call.setup:
                    for often, when in FREQUENCIES.items():
                        yield Cell(program, name, error, often, when)
                if program == SETUP_PROGRAM and (call.setup or name == "epoll_ctl"):
                    yield Cell(program, name, error, "set-up 1", "1", at_birth=True)
                    yield Cell(program, name, error, "set-up 2", "2", at_birth=True)
                    yield Cell(program, name, error, "set-up all", "1+", at_birth=True)


#: The cells of a quick run: the faults that real machines have, each once.
QUICK = {
    ("recv", "EAGAIN", "first"),
    ("recv", "ECONNRESET", "first"),
    ("recv", "ENOMEM", "tenth"),
    ("send", "EAGAIN", "first"),
    ("send", "ENOBUFS", "first"),
    ("accept", "EMFILE", "first"),
    ("epoll_ctl", "ENOMEM", "first"),
    ("epoll_ctl", "ENOMEM", "set-up 1"),
    ("epoll_ctl", "ENOMEM", "set-up 2"),
    ("epoll_wait", "EINTR", "tenth"),
    ("timerfd_settime", "EPERM", "every"),
    ("timerfd_create", "EMFILE", "set-up 1"),
    ("socketpair", "EMFILE", "set-up 1"),
    ("epoll_create", "EMFILE", "set-up 1"),
    ("pidfd_open", "EMFILE", "first"),
    ("read", "EAGAIN", "first"),
    ("write", "EAGAIN", "first"),
}


def is_quick(cell: Cell) -> bool:
    """Whether a quick run has this cell."""
    return (cell.call, cell.error, cell.often) in QUICK
