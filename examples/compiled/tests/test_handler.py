# SPDX-License-Identifier: GPL-2.0-only
"""The HTTP handler, in front of an ASGI application."""

import asyncio
import urllib.request

from compiled_protocols.handler import handler

import mgloop
from mgloop.http import Config, Server


async def app(scope, receive, send):
    """Answer everything with 404."""
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"not found"})


def fetch(url, data):
    """Return the status and the body of the response to a POST."""
    opener = urllib.request.build_opener(Accepting)
    with opener.open(urllib.request.Request(url, data), timeout=20) as response:
        return response.status, response.read()


class Accepting(urllib.request.HTTPErrorProcessor):
    """Return every response, whatever its status."""

    def http_response(self, request, response):
        return response


async def exchange(path, data):
    config = Config(app=app, port=0, lifespan="off", compiled_handler=handler)
    async with Server(config) as server:
        return await asyncio.to_thread(fetch, server.url + path, data)


def test_an_answer():
    before = handler.answered
    assert mgloop.run(exchange("/echo", b"hello")) == (200, b"hello")
    assert handler.answered == before + 1


def test_a_request_for_the_application():
    assert mgloop.run(exchange("/other", b"hello")) == (404, b"not found")
