# SPDX-License-Identifier: GPL-2.0-only
"""The application of the seeds without a framework, for `mgloop serve` to import."""

import json

from bench.seeds import payload


async def app(scope, receive, send):
    """Handle one ASGI call."""
    if scope["type"] != "http":
        raise RuntimeError(f"no {scope['type']} here")
    if scope["path"] == "/echo":
        text, more = b"", True
        while more:
            message = await receive()
            text += message["body"]
            more = message["more_body"]
        answer = json.loads(text)
    else:
        answer = payload.HELLO if scope["path"] == "/" else payload.NESTED
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
