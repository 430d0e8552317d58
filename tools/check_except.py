# SPDX-License-Identifier: GPL-2.0-only
"""Reject Cython code that can crash the interpreter, above all when no memory is left.

An exception lacks a traceback if Python could not allocate one. Cython (seen up to 3.3.1) expects
a traceback in two places, and dereferences a null pointer if it is missing:

- A statement that leaves an ``except`` clause releases the traceback without a check. ``return``
  does so in every version, ``break`` and ``continue`` in 3.1. A ``yield`` is rejected as well, as
  it suspends the clause.
- A ``with`` statement whose body raises packs the traceback into the arguments of ``__exit__()``.
  ``with nogil``, ``with gil`` and ``with cython.critical_section(...)`` call no such method.

It also rejects coroutines, generators and generator expressions. In CPython 3.11 and later, their
current exception becomes None when a Python function handles an exception. Cython's code treats
None as an exception and reads the memory beyond it. Use a list comprehension or a Python module.

``raise``, the end of an ``except`` clause, and any ``finally`` clause are safe. So is an ``except``
clause that sets a variable for an ``if`` after the ``try`` statement.

Usage: ``python tools/check_except.py FOLDER_OR_FILE ...``. The exit status is 1 if it finds any.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.Errors import CompileError
from Cython.Compiler.TreeFragment import parse_from_strings

SUFFIXES = {".pyx", ".pxd", ".pxi"}

FUNCTIONS = (Nodes.FuncDefNode, ExprNodes.LambdaNode, ExprNodes.GeneratorExpressionNode)
LOOPS = (Nodes.LoopNode,)
#: Statements that leave an except clause, with their keywords. A subclass comes first.
JUMPS = (
    (Nodes.ReturnStatNode, "return"),
    (ExprNodes.AwaitExprNode, "await"),
    (ExprNodes.YieldExprNode, "yield"),
)
LOOP_JUMPS = ((Nodes.BreakStatNode, "break"), (Nodes.ContinueStatNode, "continue"))

LEAVES = "'{}' leaves an 'except' clause: set a variable, and do it behind the 'try' statement"
WITH = "'with' on an object: use 'try' and 'finally'"
GENERATOR = "'{}' makes a generator: use a list comprehension, or a function of a Python module"


class Finding(NamedTuple):
    """A statement to change."""

    line: int
    column: int
    message: str


def children(node: Nodes.Node) -> Iterator[tuple[str, Nodes.Node]]:
    """Yield the direct children of *node*, each with the name of the attribute that holds it."""
    for name in node.child_attrs or ():
        value = getattr(node, name)
        for child in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(child, Nodes.Node):
                yield name, child


def is_directive(manager: Nodes.Node) -> bool:
    """Return whether a with statement's object is one of Cython's own, as ``cython.nogil`` is."""
    if isinstance(manager, ExprNodes.CallNode):
        manager = manager.function
    return (
        isinstance(manager, ExprNodes.AttributeNode)
        and isinstance(manager.obj, ExprNodes.NameNode)
        and manager.obj.name == "cython"
    )


def makes_generator(node: Nodes.Node, in_except: bool) -> str:
    """Return the name of a construct that makes a generator or a coroutine, or an empty string."""
    if isinstance(node, ExprNodes.GeneratorExpressionNode):
        return "generator expression"
    if getattr(node, "is_async_def", False):
        return "async def"
    # An await is in an async function, which is rejected already.
    is_yield = isinstance(node, ExprNodes.YieldExprNode) and not in_except
    return "yield" if is_yield and not isinstance(node, ExprNodes.AwaitExprNode) else ""


def examine(node: Nodes.Node, in_except: bool, in_loop: bool) -> Iterator[Finding]:
    """Yield the findings in *node*.

    *in_loop* says that a loop lies between *node* and the except clause around it. A ``break``
    there ends the loop and stays in the clause.
    """
    if in_except:
        jumps = JUMPS if in_loop else JUMPS + LOOP_JUMPS
        for kind, name in jumps:
            if isinstance(node, kind):
                yield Finding(*node.pos[1:], LEAVES.format(name))
                break
    if name := makes_generator(node, in_except):
        yield Finding(*node.pos[1:], GENERATOR.format(name))
    if isinstance(node, Nodes.WithStatNode) and not is_directive(node.manager):
        yield Finding(*node.pos[1:], WITH)
    if isinstance(node, FUNCTIONS):
        in_except = in_loop = False
    elif isinstance(node, Nodes.ExceptClauseNode):
        in_except, in_loop = True, False
    for name, child in children(node):
        # A jump in the else clause of a loop belongs to the loop around it.
        body_of_loop = isinstance(node, LOOPS) and name != "else_clause"
        yield from examine(child, in_except, in_loop or body_of_loop)


def check(source: str, name: str = "source", suffix: str = ".pyx") -> list[Finding]:
    """Return the findings in a module's *source*, in the order of its lines."""
    level = "module_pxd" if suffix == ".pxd" else "module"
    return sorted(examine(parse_from_strings(name, source, level=level), False, False))


def files(paths: list[Path]) -> Iterator[Path]:
    """Yield the Cython files among *paths*, and those in the folders among them."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        else:
            yield path


def main() -> int:
    """Check the files and folders that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="FOLDER_OR_FILE")
    found = 0
    for path in files(parser.parse_args().paths):
        try:
            findings = check(path.read_text(), path.stem, path.suffix)
        except CompileError as exc:
            print(exc, file=sys.stderr)
            return 2
        for finding in findings:
            print(f"{path}:{finding.line}:{finding.column}: {finding.message}")
        found += len(findings)
    if found:
        print(f"Found {found} statements that can crash the interpreter.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
