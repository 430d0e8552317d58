# SPDX-License-Identifier: GPL-2.0-only
"""The slow clients of a workload: a process that keeps them busy until it is killed.

``sleepers`` send a request for /sleep, and another after its response, so that each occupies a
thread of the server. ``trickle`` sends the body of a request at one byte per second. The process
announces itself when every client has sent the first part of its request. A client whose connection
the server closes connects again after a second.
"""

import heapq
import json
import selectors
import socket
import sys
import time

SLEEP = b"GET /sleep HTTP/1.1\r\nHost: localhost\r\n\r\n"
TRICKLE = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
# Seconds between two bytes, and before a new connection.
PAUSE = 1.0


class Client:
    """One slow client. The selector has its socket while that is open."""

    def __init__(self, port, kind, selector):
        self.port = port
        self.kind = kind
        self.selector = selector
        self.sock = None

    def act(self):
        """Send the next byte, or connect. Called once per PAUSE."""
        try:
            if self.sock is None:
                self.sock = socket.create_connection(("127.0.0.1", self.port), 5)
                self.selector.register(self.sock, selectors.EVENT_READ, self)
                self.sock.sendall(SLEEP if self.kind == "sleepers" else TRICKLE)
            elif self.kind == "trickle":
                self.sock.send(b"x")
        except OSError:
            self.close()

    def readable(self):
        """Read what the server has sent; after a whole response send the next request."""
        try:
            data = self.sock.recv(65536)
            if data.endswith(b"awake"):
                self.sock.sendall(SLEEP)
        except OSError:
            data = b""
        if not data:
            self.close()

    def close(self):
        if self.sock is not None:
            self.selector.unregister(self.sock)
            self.sock.close()
            self.sock = None


def main(port, kind, count):
    """Run the clients for ever."""
    begun = time.monotonic()
    with selectors.EpollSelector() as selector:
        clients = [Client(port, kind, selector) for _ in range(count)]
        # Their actions are spread over the pause, so that the server is not hit by all at once.
        due = [(begun + PAUSE * i / count, i) for i in range(count)]
        announced = False
        while True:
            when, index = due[0]
            for key, _ in selector.select(max(0.0, when - time.monotonic())):
                if key.data.sock is not None:
                    key.data.readable()
            if when > time.monotonic():
                continue
            clients[index].act()
            heapq.heapreplace(due, (when + PAUSE, index))
            if not announced and when - begun >= PAUSE:
                announced = True
                print(json.dumps({"clients": count}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
