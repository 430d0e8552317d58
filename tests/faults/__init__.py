# SPDX-License-Identifier: GPL-2.0-only
"""Fault injection: programs whose system calls fail, over asyncio's loop and over mgloop.

``python -m tests.faults`` runs each program of ``programs`` under strace, which makes one kind of
system call fail (``matrix``), once over the standard library's loop and once over mgloop, and
judges mgloop by the effect of the same fault on asyncio (``outcome``, ``report``). Requirements:
no crash, no standstill, no spinning, and not a byte lost in silence.

Each run is a process of its own, forked from a worker in which everything is imported already
(``worker``), so that the faults hit the program and never the interpreter's start.
"""
