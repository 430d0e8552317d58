# SPDX-License-Identifier: GPL-2.0-only
"""For tornado: python tornado_app.py PORT."""

import asyncio
import sys

from asked import loop_class
from tornado.web import Application, RequestHandler


class Root(RequestHandler):
    def get(self) -> None:
        self.write(loop_class())


async def main() -> None:
    Application([("/", Root)]).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
