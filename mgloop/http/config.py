# SPDX-License-Identifier: GPL-2.0-only
"""Every option of the server: its name, type, default and description, in one place.

The fields of Config are the only table of options. The command line, the MGLOOP_SERVE_*
environment variables, the TOML file, the keyword arguments of mgloop.serve() and the reference in
docs/serve.md are all generated from it, so they cannot diverge. Options that uvicorn also has use
uvicorn's names. The module is Python because it runs once per process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from . import converters
from .errors import ConfigError
from .option import Option
from .proxy import TrustedProxies

_LOOPS = ("auto", "mgloop", "asyncio")

# The options that only WSGI applications have.
_WSGI_ONLY = ("wsgi_threads", "wsgi_stream_input", "timeout_request")
# What to do about options that need a thread besides that of the event loop.
_WITHOUT_THREADS = {
    "wsgi_stream_input": "reading the body would block the event loop that receives it",
    "timeout_request": "set timeout_worker_healthcheck, which watches the event loop",
}

#: Patterns that --reload always includes and excludes, in addition to the configured ones.
RELOAD_INCLUDES = ("*.py",)
RELOAD_EXCLUDES = (".*", "*.py[cod]", ".sw.*", "~*", "__pycache__")


def _option(default: Any, group: str, help: str, **rest: Any) -> Any:  # noqa: A002
    return dataclasses.field(default=default, metadata={"option": Option(group, help, **rest)})


_APP, _WHERE, _PROC = "Application", "Addresses", "Processes"
_DEV, _LOG, _METRICS, _HTTP = "Development", "Logging", "Metrics", "HTTP"
_LIMIT, _TIME, _WS, _WSGI, _TLS = "Limits", "Timeouts", "WebSocket", "WSGI", "TLS"

_COUNT: dict[str, Any] = {"read": converters.integer, "low": 0, "high": 2**31 - 1, "metavar": "N"}
_BYTES: dict[str, Any] = {"read": converters.size, "low": 0, "high": 2**62, "metavar": "BYTES"}
_SECONDS: dict[str, Any] = {"read": converters.number, "low": 0, "metavar": "SECONDS"}
_FLAG: dict[str, Any] = {"read": converters.flag}
_FILE: dict[str, Any] = {"metavar": "FILE"}


# The class is long because it is the table of all options: the command line, the TOML file, the
# environment and the documentation are made from its fields.
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hold all options of a server, validated.

    Sizes are in bytes and times in seconds. For a limit or a timeout, None and 0 mean no limit.

    Raises ConfigError for an invalid value or an invalid combination of values.
    """

    app: Any = _option(
        None,
        _APP,
        "serve this application: pkg.mod:attribute, or pkg.mod for its application or app",
        read=converters.anything,
    )
    compiled_handler: Any = _option(
        None,
        _APP,
        "call this compiled handler, pkg.mod:attribute, for each request before APP",
        read=converters.anything,
        metavar="HANDLER",
    )
    factory: bool = _option(
        False, _APP, "treat APP as an application factory: call it without arguments", **_FLAG
    )
    app_dir: str = _option(
        "", _APP, "import APP from this directory", metavar="DIR", shown="current directory"
    )
    interface: str = _option(
        "auto",
        _APP,
        "select the interface of APP",
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
        read=converters.integer,
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
        read=converters.mode,
        metavar="MODE",
        shown="those of the socket file that is replaced, else 666",
    )
    fd: int | None = _option(
        None,
        _WHERE,
        "listen on the socket with this file descriptor",
        read=converters.integer,
        low=0,
        metavar="FD",
    )
    backlog: int = _option(
        2048,
        _WHERE,
        "limit the number of connections that wait to be accepted",
        read=converters.integer,
        low=1,
        high=2**31 - 1,
        metavar="N",
    )

    workers: int = _option(
        1,
        _PROC,
        "start this many worker processes; $WEB_CONCURRENCY overrides the default",
        read=converters.integer,
        low=1,
        high=1024,
        metavar="N",
    )
    threads: int = _option(
        1,
        _PROC,
        "run this many event loops per process, each in a thread; for Python without the GIL",
        read=converters.integer,
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
        read=converters.number,
        low=0.01,
        metavar="SECONDS",
    )
    debug: bool = _option(False, _DEV, "show tracebacks to clients in error responses", **_FLAG)

    log_level: str | int | None = _option(
        None,
        _LOG,
        "set the minimum severity to log",
        read=converters.log_level,
        choices=("critical", "error", "warning", "info", "debug", "trace"),
        shown="info",
    )
    log_config: str | dict[str, Any] | None = _option(
        None,
        _LOG,
        "load the logging configuration from a .json, .toml, .yaml or (by default) .ini file;"
        " uvicorn's configurations work unchanged",
        read=converters.log_config,
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
        read=converters.integer,
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
        read=converters.header,
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
        read=converters.comma_separated,
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
    timeout_request: float | None = _option(
        None,
        _TIME,
        "log the stack of a thread whose WSGI request takes longer than this, and replace the"
        " worker once its other requests have ended",
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

    wsgi_threads: int = _option(
        10,
        _WSGI,
        "run a WSGI application in at most this many threads per process; 0 runs it in the event"
        " loop's thread, one request at a time",
        read=converters.integer,
        low=0,
        high=4096,
        metavar="N",
    )
    wsgi_stream_input: bool = _option(
        False,
        _WSGI,
        "start a WSGI application before the request body has arrived; a slow client then occupies"
        " a thread",
        **_FLAG,
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
        read=converters.integer,
        high=2**31 - 1,
    )
    ssl_cert_reqs: int = _option(
        0,
        _TLS,
        "request client certificates: 0 no, 1 optional, 2 required",
        read=converters.integer,
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
        for what, value in (("application", self.app), ("handler", self.compiled_handler or "")):
            if (self.reload or self.workers > 1) and not isinstance(value, str):
                raise ConfigError(
                    f"you must pass the {what} as an import string such as 'pkg.mod:app' to enable"
                    " 'reload' or 'workers'"
                )
        if self.interface not in ("auto", "wsgi"):
            self.check_interface(self.interface)
        for name in ("wsgi_stream_input", "timeout_request"):
            if getattr(self, name) and not self.wsgi_threads:
                raise ConfigError(
                    f"{name} and wsgi_threads=0 are mutually exclusive: {_WITHOUT_THREADS[name]}"
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

    def check_interface(self, interface: str) -> None:
        """Raise ConfigError if an option is set that the application's interface does not have.

        interface: "asgi3", "asgi2" or "wsgi".
        """
        if interface == "wsgi":
            return
        given = [name for name in _WSGI_ONLY if getattr(self, name) != DEFAULTS[name]]
        if given:
            options = " and ".join(map(flag_of, given))
            raise ConfigError(
                f"{self.app!r} is an ASGI application: remove {options} (for WSGI applications"
                " only), or set --interface wsgi"
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
        return option.convert_one(value, where)
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    return tuple(option.convert_one(item, where) for item in value)


def flag_of(name: str) -> str:
    """Return the option `name` as it is written on the command line."""
    return "APP" if name == "app" else "--" + (OPTIONS[name].flag or name.replace("_", "-"))


def guess(name: str) -> str:
    """Return the end of an error message that suggests an option similar to `name`, or ""."""
    import difflib

    close = difflib.get_close_matches(name, OPTIONS, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
