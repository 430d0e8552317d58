# SPDX-License-Identifier: GPL-2.0-only
"""A worker class for gunicorn, whose processes then serve as `mgloop serve`'s do:

    gunicorn -k mgloop.http.gunicorn.Worker -w 4 pkg.mod:app

Listening, forking, restarting and signals to the whole are gunicorn's business, and its options
hold as far as there is such an option here; Worker.options has the others.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from gunicorn.arbiter import Arbiter
from gunicorn.workers import base

from . import running, signals
from .config import Config
from .errors import StartError
from .logs import access_logger, logger
from .server import Server

# How often gunicorn is told that the loop is alive, in seconds, at the least.
_BEAT = 1.0
# gunicorn's --keep-alive 0 is no time; here 0 would be no limit.
_AT_ONCE = 0.001


class Worker(base.Worker):
    """One process of gunicorn's.

    options: fields of mgloop.http.Config, for a subclass to set, over what gunicorn's options say.
    """

    options: ClassVar[Mapping[str, Any]] = {}

    def init_signals(self) -> None:
        """All but one are the loop's."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, self.handle_usr1)  # new log files
        signal.siginterrupt(signal.SIGUSR1, False)

    def run(self) -> None:
        """Serve until the end of the process."""
        try:
            config = self._config()
            self._use_log(logger, self.log.error_log)
            self._use_log(access_logger, self.log.access_log)
            running.run_loop(running.loop_factory(config), lambda: self._serve(config))
        except StartError as exc:
            self.log.error("%s", exc)
            # So that it is not tried for ever.
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    def _config(self) -> Config:
        given = self.cfg
        fields = {
            "app": self.wsgi,
            "backlog": given.backlog,
            "access_log": bool(given.accesslog),
            "limit_max_requests": None if self.max_requests == sys.maxsize else self.max_requests,
            "limit_request_line": given.limit_request_line,
            "limit_request_headers": given.limit_request_fields,
            "limit_request_field": given.limit_request_field_size,
            "timeout_keep_alive": given.keepalive or _AT_ONCE,
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
        return Config(**fields | dict(self.options))

    @staticmethod
    def _use_log(ours: logging.Logger, theirs: logging.Logger) -> None:
        ours.handlers = theirs.handlers
        ours.setLevel(theirs.level)
        ours.propagate = False

    async def _serve(self, config: Config) -> None:
        loop = asyncio.get_running_loop()
        given: list[Any] = list(self.sockets)  # each has the socket in it
        listeners = [each.sock for each in given]
        for sock in listeners:
            sock.setblocking(False)
        server = Server(config, listeners=listeners)
        at_once = functools.partial(server.stop, now=True)
        handlers: signals.Handlers = {
            signal.SIGTERM: server.stop,
            signal.SIGINT: at_once,
            signal.SIGQUIT: at_once,
        }
        self._beat(loop, server)
        with signals.handled(handlers):
            await server.serve(handle_signals=False)

    def _beat(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self.notify()
        if not self.alive:
            server.stop()  # --reload: a file has changed
        if os.getppid() != self.ppid:
            self.log.info("Parent changed, shutting down: %s", self)
            server.stop()
        else:
            interval = min(_BEAT, self.timeout or _BEAT)
            loop.call_later(interval, self._beat, loop, server)


def _addresses(allowed: Any) -> str:
    """As Config wants them: gunicorn has had a text, and lists of texts and of networks."""
    return allowed if isinstance(allowed, str) else ",".join(map(str, allowed))
