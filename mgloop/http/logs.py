# SPDX-License-Identifier: GPL-2.0-only
"""The server's log on standard error, in uvicorn's format, and the access log on standard output.

They are two loggers of the logging module, "mgloop.http" and "mgloop.http.access", which
--log-config and a program that embeds the server can configure. Only the command line calls
configure(); a Server inside a program does not change the configuration of logging.

Only the access log runs per request. Unless it has been configured otherwise, its lines bypass the
logging module (5 us per record), and the lines of one loop iteration are written together.
"""

from __future__ import annotations

import asyncio
import configparser
import importlib
import json
import logging
import logging.config
import os
import platform
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO
from urllib.parse import quote

from .._loop import VERSION
from .colors import TRACE, paint, paint_level, paint_status
from .config import Config
from .errors import ApplicationError, ConfigError, StartError

# The folder of the server, to recognize its frames in a traceback.
_SERVER = os.path.join(os.path.dirname(__file__), "")

logger = logging.getLogger("mgloop.http")
access_logger = logging.getLogger("mgloop.http.access")

AccessLog = Callable[[Mapping[str, Any], int, int, float], None]


class Formatter(logging.Formatter):
    """Format a record as `INFO:     message`, optionally in colour. Usable in --log-config."""

    def __init__(self, fmt: str | None = None, *, use_colors: bool = False) -> None:
        super().__init__(fmt)
        self.use_colors = use_colors

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return prefix(record.levelno, self.use_colors) + super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON: time, level, logger, message, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def prefix(level: int, use_colors: bool) -> str:
    name = logging.getLevelName(level)
    space = " " * max(9 - len(name), 1)
    return (paint_level(name, level) if use_colors else name) + ":" + space


class AccessFormatter(Formatter):
    """Format a record of the access log, with the phrase of the status. Usable in --log-config."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        args = record.args
        if isinstance(args, tuple) and len(args) == 5:
            record.message = _describe(*args, self.use_colors)  # type: ignore[arg-type]
        return super().formatMessage(record)


class _DirectHandler(logging.StreamHandler[TextIO]):
    """The handler that configure() installs for the access log."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._own = formatter

    def alone(self) -> bool:
        """Return whether the access log still has the configuration that configure() gave it.

        Then there is no other handler, no filter and no other formatter.
        """
        return (
            access_logger.handlers == [self]
            and not access_logger.propagate
            and not access_logger.filters
            and not self.filters
            and self.formatter is self._own
            and self.level <= logging.INFO
        )


def configure(config: Config) -> None:
    """Configure logging. Raises ConfigError."""
    logging.addLevelName(TRACE, "TRACE")
    level = _level(config.log_level)
    if config.log_config is not None:
        from . import uvicorn_logging

        _from_configuration(config.log_config)
        wanted = None if config.log_level is None else level
        if not uvicorn_logging.connect(wanted) and wanted is not None:
            for each in (logger, access_logger):
                each.setLevel(wanted)
        return
    if config.log_format == "json":
        # Records of loggers without a handler, such as "asyncio", must be JSON as well.
        logging.lastResort = _handler(config)
        logging.lastResort.setLevel(logging.WARNING)
    for target, own in ((logger, _handler(config)), (access_logger, _access_handler(config))):
        target.handlers[:] = [own]
        target.setLevel(level)
        target.propagate = False


def _handler(config: Config) -> logging.Handler:
    if sys.stderr is None:  # the process was started with a closed standard error
        return logging.NullHandler()
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(Formatter(use_colors=_wants_colors(config, sys.stderr)))
    return handler


def writes_json() -> bool:
    """Return whether the server's records are written as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers)


def announce(config: Config, urls: list[str]) -> None:
    """Log the banner: versions, event loop, processes and addresses."""
    name = "mgloop" if config.loop == "auto" else config.loop
    processes = f"{config.workers} worker{'s' * (config.workers > 1)}"
    threads = f" of {config.threads} threads" if config.threads > 1 else ""
    logger.info(
        "mgloop %s on Python %s (loop: %s; %s%s%s)",
        VERSION,
        platform.python_version(),
        name,
        processes,
        threads,
        "; reload" if config.reload else "",
    )
    logger.info("Serving on %s (Press CTRL+C to quit)", ", ".join(urls))


def report(exc: StartError) -> int:
    """Log why the server could not start and return the exit status.

    The log has one line, preceded by the traceback of an exception of the application.
    """
    cause = exc.__cause__
    if isinstance(exc, ApplicationError) and cause is not None:
        frames = cause.__traceback__
        while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        if writes_json():
            logger.error("%s", exc, exc_info=(type(cause), cause, frames))
            return exc.status
        traceback.print_exception(type(cause), cause, frames)
    if logger.handlers:
        logger.error("%s", exc)
    else:
        print(f"mgloop serve: {exc}", file=sys.stderr)
    return exc.status


def _is_ours(filename: str) -> bool:
    """Return whether a traceback frame belongs to the server or importlib, not the application."""
    return filename.startswith((_SERVER, "<frozen importlib")) or os.path.dirname(
        filename
    ) == os.path.dirname(importlib.__file__)


def _level(level: str | int | None) -> int:
    """Return the number of the configured level."""
    if isinstance(level, int):
        return level
    number: int = getattr(logging, (level or "info").upper(), TRACE)
    return number


def _access_handler(config: Config) -> logging.Handler:
    if sys.stdout is None:
        return logging.NullHandler()
    if config.access_format == "json":
        return _DirectHandler(sys.stdout, logging.Formatter())
    return _DirectHandler(sys.stdout, AccessFormatter(use_colors=_wants_colors(config, sys.stdout)))


def _wants_colors(config: Config, stream: TextIO) -> bool:
    if config.use_colors is not None:
        return config.use_colors
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _from_configuration(given: str | dict[str, Any]) -> None:
    """Apply --log-config: a dictionary for dictConfig(), or the name of a file."""
    from . import uvicorn_logging

    what = f"logging configuration {given}" if isinstance(given, str) else "logging configuration"
    try:
        if not isinstance(given, str):
            logging.config.dictConfig(uvicorn_logging.with_our_formatters(given))
        elif given.endswith((".json", ".toml", ".yaml", ".yml")):
            logging.config.dictConfig(uvicorn_logging.with_our_formatters(_table_in(given)))
        else:
            parser = configparser.ConfigParser()
            with open(given, encoding="utf-8") as stream:
                parser.read_file(stream)
            uvicorn_logging.replace_formatters(parser)
            logging.config.fileConfig(parser, disable_existing_loggers=False)
    except ImportError as exc:
        if exc.name != "yaml":
            raise ConfigError(f"the {what} is not valid: {exc}") from None
        raise ConfigError(f"the {what} requires PyYAML: pip install PyYAML") from None
    except OSError as exc:
        raise ConfigError(f"cannot read the {what}: {exc.strerror}") from None
    except Exception as exc:  # classes of handlers and formatters can raise anything
        reason = f"{exc}: {exc.__cause__}" if exc.__cause__ else str(exc)
        brief = " ".join(reason.split())
        raise ConfigError(f"the {what} is not valid: {brief}") from None


def _table_in(file: str) -> Any:
    with open(file, "rb") as stream:
        if file.endswith(".json"):
            return json.load(stream)
        if file.endswith(".toml"):
            return tomllib.load(stream)
        import yaml  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return yaml.safe_load(stream)


# --- the access log ------------------------------------------------------------------------------


def access_log(config: Config, loop: asyncio.AbstractEventLoop) -> AccessLog | None:
    """Return the function that logs a request of a server on `loop`; None if disabled."""
    if not config.access_log or not access_logger.isEnabledFor(logging.INFO):
        return None
    if not _take_uvicorns_settings():
        return None
    handler = next(iter(access_logger.handlers), None)
    if isinstance(handler, _DirectHandler) and handler.alone():
        stream = handler.stream
        colors = _wants_colors(config, stream)
        describe = _json_line if config.access_format == "json" else _text_line
        start = "" if config.access_format == "json" else prefix(logging.INFO, colors)
        return _Direct(loop, stream, start, describe, colors).log
    if config.access_format == "json":
        return lambda scope, status, nbytes, seconds: access_logger.info(
            "%s", _json_line(scope, status, nbytes, seconds, False)
        )

    def log(scope: Mapping[str, Any], status: int, nbytes: int, seconds: float) -> None:
        # uvicorn's arguments in uvicorn's order, for formatters that are written for uvicorn.
        access_logger.info('%s - "%s %s HTTP/%s" %d', *_words(scope), status)

    return log


def _take_uvicorns_settings() -> bool:
    """Apply the settings of uvicorn's access logger; return False if its level is too high.

    Applications written for uvicorn add a filter there to leave out health checks, or raise its
    level.
    """
    uvicorns = logging.getLogger("uvicorn.access")
    if uvicorns.level > logging.INFO:
        return False
    for each in uvicorns.filters:
        access_logger.addFilter(each)  # has no effect if the filter has been added before
    return True


class _Direct:
    """Write the lines of one loop iteration together, at its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: TextIO,
        start: str,
        describe: Callable[[Mapping[str, Any], int, int, float, bool], str],
        colors: bool,
    ) -> None:
        self._loop, self._stream, self._start = loop, stream, start
        self._describe, self._colors = describe, colors
        self._lines: list[str] = []

    def log(self, scope: Mapping[str, Any], status: int, nbytes: int, seconds: float) -> None:
        if not self._lines:
            self._loop.call_soon(self._flush)
        line = self._describe(scope, status, nbytes, seconds, self._colors)
        self._lines.append(f"{self._start}{line}\n")

    def _flush(self) -> None:
        text = "".join(self._lines)
        self._lines.clear()
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as exc:  # a closed pipe or stream must not stop the server
            logger.debug("Cannot write the access log: %s", exc)


def _text_line(
    scope: Mapping[str, Any], status: int, nbytes: int, seconds: float, colors: bool
) -> str:
    return _describe(*_words(scope), status, colors)


def _words(scope: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return client, method, path and HTTP version, in the order of uvicorn's access log."""
    return _client(scope), _method(scope), _path(scope), _version(scope)


def _describe(client: str, method: str, path: str, version: str, status: int, colors: bool) -> str:
    request = f"{method} {path} HTTP/{version}"
    if colors:
        request = paint(request, "1")
    return f'{client} - "{request}" {paint_status(status, colors)}'


def _json_line(
    scope: Mapping[str, Any], status: int, nbytes: int, seconds: float, colors: bool
) -> str:
    return json.dumps(
        {
            "time": _timestamp(time.time()),
            "client": _client(scope),
            "method": _method(scope),
            "path": _path(scope),
            "http_version": _version(scope),
            "status": status,
            "bytes": nbytes,
            "seconds": round(seconds, 6),
        }
    )


def _timestamp(seconds: float) -> str:
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{start}.{int(seconds % 1 * 1000):03d}Z"


def _client(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    if not client:
        return "-"
    host, port = client
    if not host.isprintable() or '"' in host:
        host = quote(host)  # a proxy passed on an arbitrary string
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _method(scope: Mapping[str, Any]) -> str:
    return scope.get("method") or "WebSocket"


def _version(scope: Mapping[str, Any]) -> str:
    return scope.get("http_version") or "1.1"


def _path(scope: Mapping[str, Any]) -> str:
    """Return path and query, without characters that could forge a line or control a terminal."""
    path = quote(scope["path"])
    query = scope.get("query_string")
    if not query:
        return path
    text = query.decode("ascii", "backslashreplace").replace('"', "%22")
    return f"{path}?{text if text.isprintable() else quote(query)}"
