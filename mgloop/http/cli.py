# SPDX-License-Identifier: GPL-2.0-only
"""The command line `mgloop serve pkg.mod:app ...`, and the reference of its options.

Both are generated from the fields of Config. The parser omits options that are not given, so that
the environment and the TOML file apply, and leaves the validation of values to config.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .._loop import VERSION
from . import importing, logs, prometheus, sources, tls
from .config import DEFAULTS, OPTIONS, Config, flag_of
from .errors import StartError
from .option import Option
from .process import reloading, running, sockets
from .process.loops import loop_factory


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with a one-line message, without the usage of sixty options."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of `mgloop`."""
    shared: dict[str, Any] = {"allow_abbrev": False}
    top = _Parser(
        prog="mgloop",
        description="Run programs on the mgloop event loop, or serve web applications with it.",
        **shared,
    )
    top.add_argument("--version", action="version", version=f"mgloop {VERSION}")
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    commands.add_parser("run", help="run an unmodified program on mgloop", add_help=False)
    commands.add_parser(
        "top", help="show what the event loops of a process are doing", add_help=False
    )
    serve = commands.add_parser(
        "serve",
        help="serve an ASGI or WSGI application",
        description="Serve an ASGI or WSGI application. Options can also be set by environment"
        " variables (MGLOOP_SERVE_ and the option's name) and in a TOML file. The command line"
        " takes precedence over the environment, and the environment over the file.",
        usage="%(prog)s [OPTION ...] APP",
        argument_default=argparse.SUPPRESS,
        **shared,
    )
    serve.add_argument("app", nargs="?", metavar="APP", help=OPTIONS["app"].help)
    serve.add_argument("--config", metavar="FILE", help="load options from a TOML file")
    serve.add_argument(
        "--check",
        action="store_true",
        help="import the application, check options and certificates, and exit",
    )
    serve.add_argument("--version", action="version", version=f"mgloop {VERSION}")
    groups = {
        title: serve.add_argument_group(title)
        for title in dict.fromkeys(option.group for option in OPTIONS.values())
    }
    for name, option in OPTIONS.items():
        if name != "app":
            _add(groups[option.group], name, option)
    return top


def _add(group: Any, name: str, option: Option) -> None:
    shown = _shown(name, option)
    text = f"{option.help} [{shown}]" if shown else option.help
    text = text.replace("%", "%%")
    flag = flag_of(name)
    negative = "--no-" + flag.removeprefix("--")
    if option.valued:
        group.add_argument(flag, dest=name, metavar=option.metavar, help=text)
        group.add_argument(negative, dest=name, action="store_false", help=argparse.SUPPRESS)
    elif option.is_flag:
        group.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=text)
    elif option.many:
        group.add_argument(flag, dest=name, action="append", metavar=option.metavar, help=text)
    else:
        metavar = option.metavar or "{" + ",".join(option.choices) + "}"
        group.add_argument(flag, dest=name, metavar=metavar, help=text)


def _shown(name: str, option: Option) -> str:
    """Return the default of an option as a user would type it."""
    default = DEFAULTS[name]
    if option.shown:
        return option.shown
    if isinstance(default, bool):
        return ("true" if default else "false") if option.valued else ("on" if default else "off")
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default)


def reference() -> str:
    """Return the reference of the options as Markdown, for docs/serve.md."""
    lines = []
    titles = dict.fromkeys(option.group for option in OPTIONS.values())
    for title in titles:
        lines += [f"### {title}", "", "| option | default | |", "|---|---|---|"]
        for name, option in OPTIONS.items():
            if option.group == title:
                default = option.shown or _code(_shown(name, option))
                lines.append(f"| {_signature(name, option)} | {default} | {option.help} |")
        lines.append("")
    return "\n".join(lines)


def _signature(name: str, option: Option) -> str:
    flag = flag_of(name)
    if name == "app":
        return "`APP`"
    if option.is_flag and not option.valued:
        return f"`{flag}`, `--no-{flag.removeprefix('--')}`"
    if option.choices:
        return f"`{flag}` " + ", ".join(f"`{choice}`" for choice in option.choices)
    return f"`{flag} {option.metavar}`"


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `mgloop` and return the exit status."""
    top = parser()
    known, unknown = top.parse_known_args(arguments)
    given = vars(known)
    if unknown:
        top.prog += f" {given['command']}"  # the message refers to the --help of the subcommand
        top.error(f"unrecognized arguments: {' '.join(unknown)}{_guess(unknown)}")
    del given["command"]
    file, check = given.pop("config", None), given.pop("check", False)
    try:
        config = sources.load(given, os.environ, file=file, update_environ=os.environ.update)
        importing.look_in_app_dir(config)  # log handlers and loop factories may be modules there
        logs.configure(config)
        if check:
            return _check(config)
        running.run(config, on_end=running.exit_in_time)
    except StartError as exc:
        return logs.report(exc)
    except KeyboardInterrupt:
        return 130  # SIGINT before the server has installed its handlers
    return 0


def _guess(unknown: Sequence[str]) -> str:
    """Return the end of an error message: options that the unknown arguments may be meant as."""
    import difflib

    flags = ["--config", "--check", "--version", "--help"]
    for name, option in OPTIONS.items():
        flag = flag_of(name)
        flags += [flag, "--no-" + flag.removeprefix("--")] if option.is_flag else [flag]
    words = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    close = [match for word in words for match in difflib.get_close_matches(word, flags, 1)]
    return f"; did you mean {' and '.join(dict.fromkeys(close))}?" if close else ""


def _check(config: Config) -> int:
    loop_factory(config)
    sockets.check(config)
    tls.make_context(config)
    prometheus.check(config)
    if config.reload:
        reloading.roots_of(config)
    importing.load(config)
    importing.load_handler(config)
    changed = _changed(config)
    print(f"{config.app} can be served" + (f" with {', '.join(changed)}." if changed else "."))
    return 0


def _changed(config: Config) -> Iterable[str]:
    """Return the options that differ from their defaults; passwords without their values."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return [
        name if name.endswith("password") else f"{name}={value!r}"
        for name, value in values.items()
        if name != "app" and value != DEFAULTS[name]
    ]
