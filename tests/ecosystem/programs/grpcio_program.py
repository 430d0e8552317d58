# SPDX-License-Identifier: GPL-2.0-only
"""grpc.aio: server and client; its own poller thread wakes the loop through a socket."""

import asyncio

import grpc
import grpc.aio
from common import expect, run, say


async def hello(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    """Answer with a greeting, or with an error status for one special name."""
    if request == b"nobody":
        await context.abort(grpc.StatusCode.NOT_FOUND, "nobody is here")
    return b"Hello, " + request


async def count(request: bytes, _context: grpc.aio.ServicerContext):
    """Server stream: as many messages as asked for."""
    for number in range(int(request)):
        yield str(number).encode()


async def chat(requests, _context: grpc.aio.ServicerContext):
    """Both ways: each message back in capitals."""
    async for request in requests:
        yield request.upper()


async def main() -> None:
    """500 unary calls at a time, a stream, a conversation, an error, a deadline."""
    say(f"grpcio {grpc.__version__}")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "eco.Greeter",
                {
                    "Hello": grpc.unary_unary_rpc_method_handler(hello),
                    "Count": grpc.unary_stream_rpc_method_handler(count),
                    "Chat": grpc.stream_stream_rpc_method_handler(chat),
                },
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        greet = channel.unary_unary("/eco.Greeter/Hello")
        answers = await asyncio.gather(*(greet(str(number).encode()) for number in range(500)))
        expect(answers == [f"Hello, {number}".encode() for number in range(500)], "500 greetings")
        say("500 unary calls at a time")

        numbers = [
            int(message) async for message in channel.unary_stream("/eco.Greeter/Count")(b"2000")
        ]
        expect(numbers == list(range(2000)), "2,000 streamed messages in order")
        call = channel.stream_stream("/eco.Greeter/Chat")()
        for word in ("one", "two", "three"):
            await call.write(word.encode())
            expect(await call.read() == word.upper().encode(), "the answer in capitals")
        await call.done_writing()
        say("2,000 streamed messages, and a conversation")

        try:
            await greet(b"nobody")
        except grpc.aio.AioRpcError as exc:
            expect(exc.code() is grpc.StatusCode.NOT_FOUND, "the status arrives")
        else:
            expect(False, "an aborted call is an error")
        try:
            await channel.unary_unary("/eco.Greeter/Missing")(b"")
        except grpc.aio.AioRpcError as exc:
            expect(exc.code() is grpc.StatusCode.UNIMPLEMENTED, "an unknown method")
        else:
            expect(False, "an unknown method is an error")
        say("error statuses arrive")
    await server.stop(None)


run(main())
