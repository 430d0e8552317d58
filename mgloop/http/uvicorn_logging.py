# SPDX-License-Identifier: GPL-2.0-only
"""uvicorn's logging configurations, for --log-config.

Such a configuration names the loggers "uvicorn", "uvicorn.error" and "uvicorn.access" and the
formatters of uvicorn.logging. The formatters in this module have the same fields, so uvicorn does
not have to be installed. The server's records are forwarded to uvicorn's loggers, whose levels,
filters and handlers then apply, including those that an application adds later. The module is used
only if a configuration names uvicorn's loggers.
"""

from __future__ import annotations

import configparser
import copy
import logging
import sys
from collections.abc import Iterator
from typing import Any

from .colors import paint, paint_level, paint_status

#: The server's loggers, and the uvicorn loggers that receive their records.
_LOGGERS = {
    logging.getLogger("mgloop.http"): "uvicorn.error",
    logging.getLogger("mgloop.http.access"): "uvicorn.access",
}


class DefaultFormatter(logging.Formatter):
    """Format records with %(levelprefix)s, as uvicorn.logging.DefaultFormatter.

    use_colors: None enables colours if standard output is a terminal. If a record has a
    `color_message`, that replaces the message in a coloured line.
    """

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: Any = "%",
        use_colors: bool | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(fmt, datefmt, style, **rest)
        self.use_colors = sys.stdout.isatty() if use_colors is None else use_colors

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record = copy.copy(record)
        self.add_fields(record)
        return super().formatMessage(record)

    def add_fields(self, record: logging.LogRecord) -> None:
        """Add the fields that a format may refer to."""
        name = record.levelname
        space = " " * (8 - len(name))
        if self.use_colors:
            name = paint_level(name, record.levelno)
            if hasattr(record, "color_message"):
                record.msg = record.color_message
                record.message = record.getMessage()
        record.levelprefix = f"{name}:{space}"


class AccessFormatter(DefaultFormatter):
    """Format records with %(client_addr)s, %(request_line)s and %(status_code)s as well.

    A record that does not come from the access log is formatted as "levelprefix message".
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if isinstance(record.args, tuple) and len(record.args) == 5:
            return super().formatMessage(record)
        record = copy.copy(record)
        self.add_fields(record)
        return f"{record.levelprefix} {record.message}"  # type: ignore[attr-defined]

    def add_fields(self, record: logging.LogRecord) -> None:
        super().add_fields(record)
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return
        client, method, path, version, status = record.args
        line = f"{method} {path} HTTP/{version}"
        record.client_addr = client
        record.request_line = paint(line, "1") if self.use_colors else line
        record.status_code = paint_status(int(status), self.use_colors)  # type: ignore[call-overload]


_FORMATTERS = {
    "uvicorn.logging.ColourizedFormatter": f"{__name__}.DefaultFormatter",
    "uvicorn.logging.DefaultFormatter": f"{__name__}.DefaultFormatter",
    "uvicorn.logging.AccessFormatter": f"{__name__}.AccessFormatter",
}


def with_our_formatters(table: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a dictConfig() configuration with uvicorn's formatters replaced."""
    table = copy.deepcopy(table)
    formatters = table.get("formatters")
    for formatter in formatters.values() if isinstance(formatters, dict) else ():
        for key in ("()", "class"):
            if isinstance(formatter, dict) and formatter.get(key) in _FORMATTERS:
                formatter[key] = _FORMATTERS[formatter[key]]
    return table


def replace_formatters(parser: configparser.RawConfigParser) -> None:
    """Replace uvicorn's formatters in a fileConfig() configuration."""
    for section in parser.values():
        if section.name.startswith("formatter_") and section.get("class") in _FORMATTERS:
            section["class"] = _FORMATTERS[section["class"]]


def connect(level: int | None) -> bool:
    """Forward the server's records to uvicorn's loggers, and return whether this was done.

    It is done if uvicorn's loggers have been configured and the server's own have not.

    level: new level of uvicorn's loggers; None leaves it unchanged.
    """
    ours = [logging.getLogger("mgloop"), *_LOGGERS]
    if any(map(_is_configured, ours)) or not any(map(_is_configured, _uvicorns())):
        return False
    for source, name in _LOGGERS.items():
        target = logging.getLogger(name)
        if level is not None:
            target.setLevel(level)
        source.handlers[:] = [_Forwarding(target)]
        source.propagate = False
        source.disabled = False  # dictConfig() disables existing loggers that it does not name
        source.setLevel(target.getEffectiveLevel())
    return True


def _uvicorns() -> Iterator[logging.Logger]:
    for name in ("uvicorn", *_LOGGERS.values()):
        yield logging.getLogger(name)


def _is_configured(one: logging.Logger) -> bool:
    return bool(one.handlers) or one.level != logging.NOTSET or not one.propagate


class _Forwarding(logging.Handler):
    """Forward records to another logger, under its name."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self._target.isEnabledFor(record.levelno):
            record.name = self._target.name
            self._target.handle(record)
