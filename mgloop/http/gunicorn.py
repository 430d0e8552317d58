# SPDX-License-Identifier: GPL-2.0-only
"""Worker classes for gunicorn whose processes serve requests with mgloop's server:

    gunicorn -k mgloop.http.gunicorn.Worker -w 4 pkg.mod:app                    # ASGI
    gunicorn -k mgloop.gunicorn.WsgiWorker -w 4 --threads 8 pkg.wsgi:application

gunicorn listens, forks, restarts workers and handles signals to the master process. gunicorn's
options apply where the server has an equivalent option; Worker.options sets the others.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from gunicorn.arbiter import Arbiter
from gunicorn.workers import base

from .config import Config
from .errors import StartError
from .logs import access_logger, logger
from .process import signals
from .process.loops import loop_factory, run_loop
from .server import Server

# Longest interval, in seconds, between two heartbeats that report to gunicorn that the loop runs.
_HEARTBEAT = 1.0
# Seconds for gunicorn's --keep-alive 0, which closes idle connections. Here, 0 would mean no limit.
_NO_KEEP_ALIVE = 0.001


class Worker(base.Worker):
    """One worker process of gunicorn.

    options: fields of mgloop.http.Config that a subclass sets. They override gunicorn's options.
    """

    options: ClassVar[Mapping[str, Any]] = {}

    def init_signals(self) -> None:
        """Reset all signals but SIGUSR1 to their defaults; the loop handles them."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, self.handle_usr1)  # reopens the log files
        signal.siginterrupt(signal.SIGUSR1, False)

    def run(self) -> None:
        """Serve until the process exits."""
        try:
            config = self._config()
            self._use_log(logger, self.log.error_log)
            self._use_log(access_logger, self.log.access_log)
            run_loop(loop_factory(config), lambda: self._serve(config))
        except StartError as exc:
            self.log.error("%s", exc)
            # With this status gunicorn does not restart the worker again and again.
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    def _config(self) -> Config:
        config = Config(**self._fields() | dict(self.options))
        if not config.limit_max_requests_jitter:
            # For wsgi.multiprocess. Config() refuses it, because gunicorn starts the processes; so
            # would the copy that the server makes to add the jitter.
            object.__setattr__(config, "workers", self.cfg.workers)
        return config

    def _fields(self) -> dict[str, Any]:
        """Return the fields of Config that gunicorn's options set."""
        given = self.cfg
        fields: dict[str, Any] = {
            "app": self.wsgi,
            "backlog": given.backlog,
            "access_log": bool(given.accesslog),
            "limit_max_requests": None if self.max_requests == sys.maxsize else self.max_requests,
            "limit_request_line": given.limit_request_line,
            "limit_request_headers": given.limit_request_fields,
            "limit_request_field": given.limit_request_field_size,
            "timeout_keep_alive": given.keepalive or _NO_KEEP_ALIVE,
            "timeout_graceful_shutdown": given.graceful_timeout,
            "proxy_protocol": str(given.proxy_protocol).lower() not in ("off", "false", "none"),
            "forwarded_allow_ips": _addresses(given.forwarded_allow_ips),
        }
        if fields["proxy_protocol"]:
            fields["forwarded_allow_ips"] = _addresses(given.proxy_allow_ips)
        if given.is_ssl:
            fields |= {
                "ssl_certfile": given.certfile,
                "ssl_keyfile": given.keyfile,
                "ssl_ca_certs": given.ca_certs,
                "ssl_cert_reqs": int(given.cert_reqs),
                "ssl_ciphers": given.ciphers,
            }
        return fields

    @staticmethod
    def _use_log(ours: logging.Logger, theirs: logging.Logger) -> None:
        ours.handlers = theirs.handlers
        ours.setLevel(theirs.level)
        ours.propagate = False

    async def _serve(self, config: Config) -> None:
        loop = asyncio.get_running_loop()
        given: list[Any] = list(self.sockets)  # gunicorn's wrappers of sockets
        listeners = [each.sock for each in given]
        for sock in listeners:
            sock.setblocking(False)
        # gunicorn starts another process when this one has ended.
        server = Server(config, listeners=listeners, replaceable=True)
        stop_now = functools.partial(server.stop, now=True)
        handlers: signals.Handlers = {
            signal.SIGTERM: server.stop,
            signal.SIGINT: stop_now,
            signal.SIGQUIT: stop_now,
        }
        self._send_heartbeat(loop, server)
        with signals.handled(handlers):
            await server.serve(handle_signals=False)

    def _send_heartbeat(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.notify()
        if not self.alive:
            server.stop()  # --reload: a file has changed
        if os.getppid() != self.ppid:
            self.log.info("Parent changed, shutting down: %s", self)
            server.stop()
        else:
            interval = min(_HEARTBEAT, self.timeout or _HEARTBEAT)
            loop.call_later(interval, self._send_heartbeat, loop, server)


class WsgiWorker(Worker):
    """One worker process of gunicorn that serves a WSGI application.

    gunicorn's --threads is the number of threads that run the application. A --timeout other than
    gunicorn's default also limits the time of a request: see --timeout-request.
    """

    def _fields(self) -> dict[str, Any]:
        if inspect.iscoroutinefunction(self.wsgi):
            raise StartError(
                "The application is an ASGI application: use -k mgloop.http.gunicorn.Worker."
            )
        timeout = self.cfg.settings["timeout"]
        limit = timeout.get() if timeout.get() != timeout.default else None
        return super()._fields() | {
            "interface": "wsgi",
            "wsgi_threads": self.cfg.threads,
            "timeout_request": limit or None,
        }


def _addresses(allowed: Any) -> str:
    """Return gunicorn's list of addresses as the comma-separated string that Config expects.

    Depending on its version, gunicorn has a string, or a list of strings or networks.
    """
    return allowed if isinstance(allowed, str) else ",".join(map(str, allowed))
