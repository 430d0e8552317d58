# SPDX-License-Identifier: GPL-2.0-only
"""The TLS load generator in Python, for machines without OpenSSL's headers.

It accepts those options of ``native/client.c`` that TLS needs and prints the same JSON. It uses one
thread and non-blocking TLS sockets. It is slower than the servers that it measures, so such rows
are client-bound and marked; their server CPU time per operation is still valid.
"""

import argparse
import json
import selectors
import socket
import ssl
import sys
import time
from pathlib import Path

from .processes import cpu_seconds, rss_kib
from .stats import percentile

PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
STALL = 3.0


class Connection:
    """One TLS connection that repeats the request."""

    def __init__(self, client):
        self.client = client
        self.served = False
        self.open()

    def open(self):
        """Connect, also after a lost connection; :meth:`pump` performs the handshake."""
        raw = socket.create_connection(("127.0.0.1", self.client.args.port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setblocking(False)
        self.sock = self.client.context.wrap_socket(raw, do_handshake_on_connect=False)
        self.shaken = False
        self.begin()
        self.client.selector.register(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def begin(self):
        self.rest = memoryview(self.client.request)
        self.got = bytearray()
        self.started = time.perf_counter()

    def close(self):
        self.client.selector.unregister(self.sock)
        self.sock.close()

    def pump(self):
        """Make progress without blocking. Return False when the connection is lost."""
        events = selectors.EVENT_READ
        try:
            if not self.shaken:
                self.sock.do_handshake()
                self.shaken = True
            while self.rest:
                self.rest = self.rest[self.sock.send(self.rest) :]
            while True:
                data = self.sock.recv(65536)
                if not data:
                    return False
                self.got += data
                if len(self.got) >= len(self.client.reply):
                    return self.finish()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            events |= selectors.EVENT_WRITE
        except OSError:
            return False
        self.client.selector.modify(self.sock, events, self)
        return True

    def finish(self):
        """Count a complete reply and send the next request."""
        client = self.client
        if self.got != client.reply:
            client.errors["mismatched"] += 1
            return False
        self.served = True
        if client.measuring:
            client.latencies.append((time.perf_counter() - self.started) * 1e6)
        if client.args.mode == "accept":
            self.close()
            self.open()
            return True
        self.begin()
        client.selector.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        return True


class Client:
    """All connections and the measured window."""

    def __init__(self, args):
        self.args = args
        self.request = Path(args.request).read_bytes()
        self.reply = bytearray(Path(args.reply).read_bytes() * args.reply_repeat)
        self.errors = {"mismatched": 0, "closed": 0, "refused": 0, "stalled": 0}
        self.latencies = []
        self.measuring = False
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.selector = selectors.DefaultSelector()
        self.connections = set()
        for _ in range(args.conns):
            try:
                self.connections.add(Connection(self))
            except OSError:
                self.errors["refused"] += 1

    def run(self, seconds):
        """Drive all connections for *seconds*; stop earlier if none is left or none progresses."""
        ends = time.perf_counter() + seconds
        moved = time.perf_counter()
        while (now := time.perf_counter()) < ends and self.connections:
            if now - moved > STALL:
                self.errors["stalled"] += len(self.connections)
                return
            for key, _ in self.selector.select(min(0.05, ends - now)):
                moved = now
                if not key.data.pump():
                    self.errors["closed"] += 1
                    key.data.close()
                    self.connections.discard(key.data)

    def measure(self):
        """Return the result in the C client's format."""
        pid = [int(part) for part in self.args.pid.split(",")]
        self.run(self.args.warmup)
        # Handshakes and first replies belong to the warm-up, even if that exceeds its planned time.
        patience = time.perf_counter() + STALL
        while time.perf_counter() < patience and not all(c.served for c in self.connections):
            self.run(0.01)
        self.measuring = True
        server, own, begun = cpu_seconds(pid), time.process_time(), time.perf_counter()
        self.run(self.args.seconds)
        wall = time.perf_counter() - begun
        server = cpu_seconds(pid) - server
        latencies = self.latencies
        return {
            "ops": len(latencies),
            "seconds": wall,
            "bytes": 0,
            "errors": self.errors,
            "client_cpu_s": time.process_time() - own,
            "server_cpu_s": server,
            "server_main_cpu_s": server,
            "rss_kib": rss_kib(pid),
            "latency_us": {f"{p:g}": percentile(latencies, p) for p in PERCENTS if latencies},
        }


def main():
    parser = argparse.ArgumentParser()
    for name in ("request", "reply", "kind", "mode", "pid"):
        parser.add_argument(f"--{name}")
    for name in ("port", "conns", "idle", "reply-repeat"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("warmup", "seconds"):
        parser.add_argument(f"--{name}", type=float)
    print(json.dumps(Client(parser.parse_args()).measure()))


if __name__ == "__main__":
    sys.exit(main())
