# SPDX-License-Identifier: GPL-2.0-only
"""Every option of the server: its name, type, default and description, in one place.

The fields of Config are the only table of options. The command line, the MGLOOP_SERVE_*
environment variables, the TOML file, the keyword arguments of mgloop.serve() and the reference in
docs/serve.md are all generated from it, so they cannot diverge. Options that uvicorn also has use
uvicorn's names. The module is Python because it runs once per process.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .proxy import TrustedProxies

PREFIX = "MGLOOP_SERVE_"

_LOOPS = ("auto", "mgloop", "asyncio")

# Environment variables that hosting platforms set for any server, and the options they set here.
_COMMON_VARIABLES = {"WEB_CONCURRENCY": "workers", "FORWARDED_ALLOW_IPS": "forwarded_allow_ips"}

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers that delimit one response. The same value on all responses would make clients misread
# some of them.
_FRAMING = {"connection", "content-length", "transfer-encoding"}
#: Patterns that --reload always includes and excludes, in addition to the configured ones.
RELOAD_INCLUDES = ("*.py",)
RELOAD_EXCLUDES = (".*", "*.py[cod]", ".sw.*", "~*", "__pycache__")
# Backslash escapes inside double quotes in an environment file.
_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
# One assignment in an environment file, or a comment or an empty line.
_ENV_LINE = re.compile(
    r"""[^\S\n]*(?:\#[^\n]*|(?:export[^\S\n]+)?([A-Za-z_][A-Za-z0-9_.]*)[^\S\n]*=[^\S\n]*+"""
    r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|((?!["'])[^\n]*?))(?:[^\S\n]+\#[^\n]*)?)?"""
    r"""[^\S\n]*(?:\n|\Z)""",
    re.DOTALL,
)
_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _whole(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("is not a valid integer")


def _number(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError("is not a valid number")


def _size(value: object) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+)\s*([kmg]?)(?:i?b)?\s*", value, re.IGNORECASE)
        if match:
            return int(match[1]) * _UNITS[match[2].lower()]
        raise ValueError("is not a valid size: expected bytes, or a number such as 64K, 16M or 1G")
    return _whole(value)


def _mode(value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"(0o)?[0-7]{1,4}", value):
            raise ValueError("is not a valid octal mode such as 660")
        return int(value, 8)
    mode = _whole(value)
    # The decimal number 660 is a common mistake for 0o660. It is greater than any valid mode.
    if not 0 <= mode <= 0o777:
        raise ValueError("is not a valid file mode such as 0o660")
    return mode


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    raise ValueError("is not a valid boolean: expected true or false")


def _text(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        text: object = os.fspath(value)
        if isinstance(text, str) and "\0" not in text:
            return text
    raise ValueError("is not a valid string")


def _header(value: object) -> tuple[str, str]:
    if isinstance(value, str):
        name, colon, content = value.partition(":")
        if not colon:
            raise ValueError("is not a header of the form Name:Value")
    else:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError("is not a header: expected a pair of name and value")
        name, content = (
            part.decode("latin-1") if isinstance(part, bytes) else _text(part) for part in value
        )
    name, content = name.strip(), content.strip(" \t")
    if not _TOKEN.fullmatch(name):
        raise ValueError("is not a header with a valid name")
    if name.lower() in _FRAMING:
        raise ValueError("is a framing header, which cannot be the same for all responses")
    if any(c in "\r\n\0" for c in content) or any(ord(c) > 255 for c in content):
        raise ValueError("is not a header with a valid value")
    return name, content


def _level(value: object) -> str | int:
    """Return the lower-case name of a log level, or its number in the logging module."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _text(value).lower()


def _log_config(value: object) -> str | dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else _text(value)


def _joined(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(_text, value))
    return _text(value)


def _anything(value: object) -> object:
    return value


@dataclasses.dataclass(frozen=True)
class Option:
    """Describe how one field of Config is parsed, bounded and documented.

    read: converts a value or raises ValueError. low, high: inclusive bounds of a number. many: the
    option may be repeated.
    """

    group: str
    help: str
    read: Callable[[object], object] = _text
    choices: tuple[str, ...] = ()
    many: bool = False
    low: float | None = None
    high: float | None = None
    metavar: str = ""
    flag: str = ""  # name on the command line, if it differs from the name of the field
    separator: str = ","  # between several values in one environment variable
    valued: bool = False  # the flag takes true or false as its value, as in uvicorn
    shown: str = ""  # description of the default, if the value itself is not descriptive

    @property
    def is_flag(self) -> bool:
        return self.read is _flag


def _option(default: Any, group: str, help: str, **rest: Any) -> Any:  # noqa: A002
    return dataclasses.field(default=default, metadata={"option": Option(group, help, **rest)})


_APP, _WHERE, _PROC = "Application", "Addresses", "Processes"
_DEV, _LOG, _METRICS, _HTTP = "Development", "Logging", "Metrics", "HTTP"
_LIMIT, _TIME, _WS, _TLS = "Limits", "Timeouts", "WebSocket", "TLS"

_COUNT: dict[str, Any] = {"read": _whole, "low": 0, "high": 2**31 - 1, "metavar": "N"}
_BYTES: dict[str, Any] = {"read": _size, "low": 0, "high": 2**62, "metavar": "BYTES"}
_SECONDS: dict[str, Any] = {"read": _number, "low": 0, "metavar": "SECONDS"}
_FLAG: dict[str, Any] = {"read": _flag}
_FILE: dict[str, Any] = {"metavar": "FILE"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hold all options of a server, validated.

    Sizes are in bytes and times in seconds. For a limit or a timeout, None and 0 mean no limit.

    Raises ConfigError for an invalid value or an invalid combination of values.
    """

    app: Any = _option(None, _APP, "serve this application: pkg.mod:attribute", read=_anything)
    factory: bool = _option(
        False, _APP, "treat APP as an application factory: call it without arguments", **_FLAG
    )
    app_dir: str = _option(
        "", _APP, "import APP from this directory", metavar="DIR", shown="current directory"
    )
    interface: str = _option(
        "auto",
        _APP,
        "select the interface of APP; wsgi requires the package a2wsgi",
        choices=("auto", "asgi3", "asgi2", "wsgi"),
    )
    lifespan: str = _option(
        "auto", _APP, "send lifespan events to APP", choices=("auto", "on", "off")
    )
    root_path: str = _option(
        "", _APP, "set the path under which a proxy serves APP", metavar="PATH"
    )
    env_file: str | None = _option(
        None,
        _APP,
        "load environment variables from a file of NAME=value lines; variables that are already"
        " set take precedence",
        **_FILE,
    )
    loop: str = _option(
        "auto",
        _APP,
        "select the event loop: auto (mgloop), mgloop, asyncio, or pkg.mod:factory",
        metavar="LOOP",
    )

    host: str = _option("127.0.0.1", _WHERE, "bind to this address or host name", metavar="HOST")
    port: int = _option(
        8000,
        _WHERE,
        "bind to this port; 0 picks an available one",
        read=_whole,
        low=0,
        high=65535,
        metavar="PORT",
    )
    bind: tuple[str, ...] = _option(
        (),
        _WHERE,
        "bind to HOST:PORT or unix:PATH instead of --host and --port; may be repeated",
        many=True,
        metavar="ADDRESS",
    )
    uds: str | None = _option(None, _WHERE, "bind to a UNIX domain socket", metavar="PATH")
    uds_mode: int | None = _option(
        None,
        _WHERE,
        "set the permissions of UNIX domain sockets (octal)",
        read=_mode,
        metavar="MODE",
        shown="those of the socket file that is replaced, else 666",
    )
    fd: int | None = _option(
        None,
        _WHERE,
        "listen on the socket with this file descriptor",
        read=_whole,
        low=0,
        metavar="FD",
    )
    backlog: int = _option(
        2048,
        _WHERE,
        "limit the number of connections that wait to be accepted",
        read=_whole,
        low=1,
        high=2**31 - 1,
        metavar="N",
    )

    workers: int = _option(
        1,
        _PROC,
        "start this many worker processes; $WEB_CONCURRENCY overrides the default",
        read=_whole,
        low=1,
        high=1024,
        metavar="N",
    )
    threads: int = _option(
        1,
        _PROC,
        "run this many event loops per process, each in a thread; for Python without the GIL",
        read=_whole,
        low=1,
        high=1024,
        metavar="N",
    )
    limit_max_requests: int | None = _option(
        None,
        _PROC,
        "restart a worker after it has handled this many requests; without --workers, exit instead",
        **_COUNT,
    )
    limit_max_requests_jitter: int = _option(
        0,
        _PROC,
        "add a random number of requests, at most this many, to --limit-max-requests",
        **_COUNT,
    )
    limit_max_memory: int | None = _option(
        None,
        _PROC,
        "restart a worker when its resident memory reaches this size; without --workers, exit"
        " instead",
        **_BYTES,
    )
    timeout_worker_healthcheck: float | None = _option(
        None,
        _PROC,
        "kill and replace a worker whose event loop has been unresponsive for this long",
        **_SECONDS,
    )

    reload: bool = _option(False, _DEV, "restart the server when files change", **_FLAG)
    reload_dirs: tuple[str, ...] = _option(
        (),
        _DEV,
        "watch this directory; may be repeated",
        many=True,
        metavar="DIR",
        flag="reload-dir",
        shown="current directory",
    )
    reload_includes: tuple[str, ...] = _option(
        (),
        _DEV,
        "watch files that match this pattern, in addition to *.py; may be repeated",
        many=True,
        metavar="PATTERN",
        flag="reload-include",
    )
    reload_excludes: tuple[str, ...] = _option(
        (),
        _DEV,
        "ignore files and directories that match this pattern, in addition to .*, *.py[cod], .sw.*,"
        " ~* and __pycache__; may be repeated",
        many=True,
        metavar="PATTERN",
        flag="reload-exclude",
    )
    reload_delay: float = _option(
        0.25,
        _DEV,
        "check files for changes at this interval",
        read=_number,
        low=0.01,
        metavar="SECONDS",
    )
    debug: bool = _option(False, _DEV, "show tracebacks to clients in error responses", **_FLAG)

    log_level: str | int | None = _option(
        None,
        _LOG,
        "set the minimum severity to log",
        read=_level,
        choices=("critical", "error", "warning", "info", "debug", "trace"),
        shown="info",
    )
    log_config: str | dict[str, Any] | None = _option(
        None,
        _LOG,
        "load the logging configuration from a .json, .toml, .yaml or (by default) .ini file;"
        " uvicorn's configurations work unchanged",
        read=_log_config,
        **_FILE,
    )
    log_format: str = _option(
        "text",
        _LOG,
        "set the format of log lines; ignored with --log-config",
        choices=("text", "json"),
    )
    access_log: bool = _option(True, _LOG, "log each request", **_FLAG)
    access_log_format: str | None = _option(
        None,
        _LOG,
        "set the format of the access log",
        choices=("text", "json"),
        shown="same as --log-format",
    )
    use_colors: bool | None = _option(
        None, _LOG, "colorize the log", shown="on a terminal", **_FLAG
    )

    metrics_port: int | None = _option(
        None,
        _METRICS,
        "serve Prometheus metrics (GET /metrics) on this port; 0 picks an available one; requires"
        " the package prometheus_client",
        read=_whole,
        low=0,
        high=65535,
        metavar="PORT",
    )
    metrics_address: str = _option(
        "127.0.0.1", _METRICS, "bind --metrics-port to this address or host name", metavar="HOST"
    )
    server_header: bool = _option(True, _HTTP, "send a Server header", **_FLAG)
    date_header: bool = _option(True, _HTTP, "send a Date header", **_FLAG)
    headers: tuple[tuple[str, str], ...] = _option(
        (),
        _HTTP,
        "add this Name:Value header to every response; may be repeated",
        read=_header,
        many=True,
        metavar="HEADER",
        flag="header",
        separator="\n",
    )
    proxy_headers: bool = _option(
        True, _HTTP, "take client address and scheme from the headers of trusted proxies", **_FLAG
    )
    proxy_protocol: bool = _option(
        False,
        _HTTP,
        "require a PROXY protocol header on each connection; only accept peers listed in"
        " --forwarded-allow-ips",
        **_FLAG,
    )
    forwarded_allow_ips: str = _option(
        "127.0.0.1",
        _HTTP,
        "trust these proxies: addresses, networks, unix: (UNIX sockets) or *, separated by commas;"
        " $FORWARDED_ALLOW_IPS overrides the default",
        read=_joined,
        metavar="LIST",
    )
    sendfile: bool = _option(
        False,
        _HTTP,
        "advertise the ASGI pathsend and zerocopysend extensions; every middleware has to pass"
        " their messages on",
        **_FLAG,
    )
    health_path: str | None = _option(
        None,
        _HTTP,
        "answer health checks at this path: 200, or 503 during shutdown",
        metavar="PATH",
    )
    body_buffer: int = _option(
        64 << 10,
        _HTTP,
        "buffer at most this much of a request body until the application receives it",
        **_BYTES | {"low": 1},
    )

    limit_concurrency: int | None = _option(
        None, _LIMIT, "limit concurrent requests; answer more with 503", **_COUNT
    )
    limit_connections: int | None = _option(None, _LIMIT, "limit concurrent connections", **_COUNT)
    limit_request_line: int = _option(
        8190, _LIMIT, "limit the length of the request line", **_BYTES
    )
    limit_request_head: int = _option(
        64 << 10, _LIMIT, "limit the total length of request line and headers", **_BYTES
    )
    limit_request_field: int = _option(8190, _LIMIT, "limit the length of one header", **_BYTES)
    limit_request_headers: int = _option(
        100, _LIMIT, "limit the number of headers in a request", **_COUNT
    )
    limit_request_body: int | None = _option(
        None, _LIMIT, "limit the length of a request body", **_BYTES
    )

    timeout_head: float | None = _option(
        10.0, _TIME, "wait this long for the head of a request", **_SECONDS
    )
    timeout_body: float | None = _option(
        30.0, _TIME, "wait this long for more of a request body", **_SECONDS
    )
    timeout_keep_alive: float | None = _option(
        5.0, _TIME, "close a connection that has been idle for this long", **_SECONDS
    )
    timeout_write: float | None = _option(
        60.0,
        _TIME,
        "disconnect a client that has not read any of its response for this long",
        **_SECONDS,
    )
    timeout_graceful_shutdown: float | None = _option(
        None,
        _TIME,
        "cancel requests that have not finished this long after shutdown began",
        **_SECONDS,
    )
    timeout_stream_shutdown: float | None = _option(
        5.0,
        _TIME,
        "disconnect clients whose response without Content-Length or request body has not ended"
        " this long after shutdown began",
        **_SECONDS,
    )
    drain_delay: float | None = _option(
        None,
        _TIME,
        "keep serving for this long after SIGTERM, while --health-path answers 503",
        shown="0",
        **_SECONDS,
    )

    ws_max_size: int = _option(16 << 20, _WS, "limit the size of a message", **_BYTES)
    ws_max_queue: int = _option(
        32, _WS, "buffer at most this many messages until the application receives them", **_COUNT
    )
    ws_ping_interval: float | None = _option(20.0, _WS, "send pings at this interval", **_SECONDS)
    ws_ping_timeout: float | None = _option(
        20.0, _WS, "close a connection whose pong has not arrived after this long", **_SECONDS
    )
    ws_per_message_deflate: bool = _option(
        True, _WS, "compress messages", valued=True, metavar="BOOL", **_FLAG
    )

    ssl_keyfile: str | None = _option(
        None, _TLS, "load the private key from this file (PEM)", **_FILE
    )
    ssl_certfile: str | None = _option(
        None, _TLS, "load the certificate chain from this file (PEM)", **_FILE
    )
    ssl_keyfile_password: str | None = _option(
        None, _TLS, "decrypt the private key with this password", metavar="PASSWORD"
    )
    ssl_version: int | None = _option(
        None,
        _TLS,
        "use this protocol number of the ssl module",
        metavar="N",
        read=_whole,
        high=2**31 - 1,
    )
    ssl_cert_reqs: int = _option(
        0,
        _TLS,
        "request client certificates: 0 no, 1 optional, 2 required",
        read=_whole,
        low=0,
        high=2,
        metavar="N",
    )
    ssl_ca_certs: str | None = _option(
        None,
        _TLS,
        "verify client certificates against the CA certificates in this file (PEM)",
        **_FILE,
    )
    ssl_ciphers: str | None = _option(
        None, _TLS, "allow these ciphers, in OpenSSL's format", metavar="LIST"
    )

    def __post_init__(self) -> None:
        for name in OPTIONS:
            object.__setattr__(self, name, convert(name, getattr(self, name), name))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.app is None or self.app == "":
            raise ConfigError("no application given: use mgloop serve pkg.mod:app")
        places = [name for name in ("bind", "uds", "fd") if getattr(self, name) not in ((), None)]
        if len(places) > 1:
            raise ConfigError(
                f"{' and '.join(places)} are mutually exclusive: use --bind for several addresses"
            )
        if self.reload and self.workers > 1:
            raise ConfigError("reload and several workers are mutually exclusive: use one of them")
        if (self.reload or self.workers > 1) and not isinstance(self.app, str):
            raise ConfigError(
                "you must pass the application as an import string such as 'pkg.mod:app' to enable"
                " 'reload' or 'workers'"
            )
        if self.loop not in _LOOPS and ":" not in self.loop:
            raise ConfigError(
                f"loop: {self.loop!r} is not one of {', '.join(_LOOPS)} or pkg.mod:factory"
            )
        if any("\ud800" <= c <= "\udfff" for c in self.root_path):
            raise ConfigError(f"root_path: {self.root_path!r} is not valid UTF-8")
        if self.health_path is not None and not self.health_path.startswith("/"):
            raise ConfigError(f"health_path: {self.health_path!r} does not start with a slash")
        TrustedProxies(self.forwarded_allow_ips)
        for name in ("ssl_keyfile", "ssl_cert_reqs"):
            if getattr(self, name) and not self.ssl_certfile:
                raise ConfigError(f"{name} requires ssl_certfile: set the certificate as well")
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            raise ConfigError(
                "ssl_cert_reqs requires ssl_ca_certs: set the CA certificates to trust"
            )

    @property
    def access_format(self) -> str:
        """Return the format of the access log: "text" or "json"."""
        return self.access_log_format or self.log_format

    @property
    def tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self.ssl_certfile is not None

    @property
    def supervised(self) -> bool:
        """Return whether a supervisor process starts the worker processes."""
        return self.reload or self.workers > 1


OPTIONS: dict[str, Option] = {
    field.name: field.metadata["option"] for field in dataclasses.fields(Config)
}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Config)}


def convert(name: str, value: object, where: str) -> object:
    """Return `value` converted to the type of the option `name`.

    where: the source of the value, for the message of the ConfigError that an invalid one raises.
    """
    option = OPTIONS[name]
    if value is None:
        if DEFAULTS[name] is None:
            return None
        # In Python, None is a natural way to disable a limit whose default is a number.
        if option.group in (_LIMIT, _WS, _TIME) and not option.is_flag:
            return 0
        raise ConfigError(f"{where}: a value is required")
    if not option.many:
        return _convert_one(option, value, where)
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    return tuple(_convert_one(option, item, where) for item in value)


def _convert_one(option: Option, value: object, where: str) -> object:
    try:
        result = option.read(value)
    except ValueError as exc:
        raise ConfigError(f"{where}: {value!r} {exc}") from None
    if option.choices and isinstance(result, str) and result not in option.choices:
        raise ConfigError(f"{where}: {value!r} is not one of {', '.join(option.choices)}")
    if isinstance(result, int | float):
        if option.low is not None and result < option.low:
            raise ConfigError(f"{where}: {value!r} is less than the minimum of {option.low}")
        if option.high is not None and result > option.high:
            raise ConfigError(f"{where}: {value!r} is greater than the maximum of {option.high}")
    return result


def load(
    given: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    file: str | None = None,
    update_environ: Callable[[Mapping[str, str]], None] | None = None,
) -> Config:
    """Return the configuration from a TOML file, the environment and the command line.

    Later sources in this order override earlier ones. given: values from the command line, by
    option name. file: the TOML file; None selects the one that MGLOOP_SERVE_CONFIG names.
    update_environ: called with the variables that an env_file adds. Raises ConfigError.
    """
    environ = dict(environ)
    values: dict[str, object] = {}

    file = file or environ.get(f"{PREFIX}CONFIG")
    if file:
        values.update(from_toml(file))
    env_file = given.get("env_file", environ.get(f"{PREFIX}ENV_FILE", values.get("env_file")))
    if env_file is not None:
        added = {
            name: value
            for name, value in read_env_file(str(env_file)).items()
            if name not in environ
        }
        environ.update(added)
        if update_environ is not None:
            update_environ(added)
    platform, chosen = from_platform(environ), from_environ(environ)
    chosen.update({name: convert(name, value, flag_of(name)) for name, value in given.items()})
    if (values | chosen).get("reload"):
        platform.pop("workers", None)  # $WEB_CONCURRENCY is meant for production
    return Config(**values | platform | chosen)  # type: ignore[arg-type]


def flag_of(name: str) -> str:
    """Return the option `name` as it is written on the command line."""
    return "APP" if name == "app" else "--" + (OPTIONS[name].flag or name.replace("_", "-"))


def from_toml(file: str) -> dict[str, object]:
    """Return the options in a TOML file; in a pyproject.toml, those of [tool.mgloop.serve].

    Raises ConfigError if the file cannot be read or has an unknown or invalid option.
    """
    path = Path(file)
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read the configuration file {file}: {exc.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file} is not valid TOML: {exc}") from None
    if path.name == "pyproject.toml":
        for key in ("tool", "mgloop", "serve"):
            table = table.get(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{file}: {key} is not a table")
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in OPTIONS:
            raise ConfigError(f"{file}: unknown option {key!r}{guess(name)}")
        values[name] = convert(name, value, f"{key} in {file}")
    return values


def from_platform(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options in environment variables that other servers use as well."""
    values = {}
    for variable, name in _COMMON_VARIABLES.items():
        # An empty FORWARDED_ALLOW_IPS is significant: it means that no proxy is trusted.
        if environ.get(variable) or (variable in environ and name == "forwarded_allow_ips"):
            values[name] = convert(name, environ[variable], variable)
    return values


def from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options in environment variables such as MGLOOP_SERVE_PORT."""
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == f"{PREFIX}CONFIG":
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in OPTIONS:
            raise ConfigError(f"{variable}: unknown option {name!r}{guess(name)}")
        option = OPTIONS[name]
        parts: object = text
        if option.many:
            parts = [part.strip() for part in text.split(option.separator) if part.strip()]
        values[name] = convert(name, parts, variable)
    return values


def guess(name: str) -> str:
    """Return the end of an error message that suggests an option similar to `name`, or ""."""
    import difflib

    close = difflib.get_close_matches(name, OPTIONS, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_env_file(file: str) -> dict[str, str]:
    """Read a file of NAME=value lines and return the variables.

    Values may be quoted. Comments, empty lines and a leading `export` are accepted. A quoted value
    may have several lines, and its backslash escapes are those of python-dotenv. References to
    other variables are not expanded. Raises ConfigError.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"cannot read the environment file {file}: {reason}") from None
    values = {}
    place = 0
    while place < len(text):
        match = _ENV_LINE.match(text, place)
        if not match:  # the message omits the line because it may contain a secret
            number = text.count("\n", 0, place) + 1
            raise ConfigError(f"{file}, line {number}: expected NAME=value")
        place = match.end()
        name, double, single, plain = match.groups()
        if double is not None:
            values[name] = re.sub(r"\\([\\'\"abfnrtv])", lambda m: _ESCAPES.get(m[1], m[1]), double)
        elif single is not None:
            values[name] = re.sub(r"\\([\\'])", r"\1", single)
        elif name is not None:
            values[name] = plain
    return values
