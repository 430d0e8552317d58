# SPDX-License-Identifier: GPL-2.0-only
"""Serve on 127.0.0.1, port 8007, until Ctrl-C: `python -m compiled_protocols echo`."""

import argparse
import asyncio

import mgloop

from . import Calculator, Echo, EchoSocket

SERVERS = {"echo": Echo, "rpc": Calculator, "websocket": EchoSocket}


async def main(protocol):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 8007)
    await server.serve_forever()


parser = argparse.ArgumentParser(prog="python -m compiled_protocols")
parser.add_argument("server", choices=SERVERS)
mgloop.run(main(SERVERS[parser.parse_args().server]))
