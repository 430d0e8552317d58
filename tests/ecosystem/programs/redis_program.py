# SPDX-License-Identifier: GPL-2.0-only
"""redis-py over Redis: load, pipelines, publish/subscribe, blocking pops, a UNIX socket."""

import asyncio
import os

import redis
import redis.asyncio
from common import expect, run, say


async def load(client: redis.asyncio.Redis) -> None:
    """10,000 increments by 50 tasks, a pipeline of 10,000 commands, and a value of 8 MiB."""

    async def increment() -> None:
        for _ in range(200):
            await client.incr("counter")

    await asyncio.gather(*(increment() for _ in range(50)))
    expect(int(await client.get("counter")) == 10_000, "no increment was lost")
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(10_000):
            pipeline.set(f"key:{number}", number)
        expect(all(await pipeline.execute()), "the pipeline was carried out")
    expect(await client.dbsize() == 10_001, "10,001 keys are there")
    blob = os.urandom(8 << 20)
    await client.set("blob", blob)
    expect(await client.get("blob") == blob, "8 MiB came back")
    say("10,000 increments by 50 tasks, 10,000 commands in a pipeline, 8 MiB there and back")


async def publish_and_block(client: redis.asyncio.Redis) -> None:
    """1,000 messages in order; a blocking pop is woken by a push, another is cancelled."""
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        first = await pubsub.get_message(timeout=10)
        expect(first["type"] == "subscribe", "subscribed")

        async def publish() -> None:
            for number in range(1000):
                await client.publish("news", number)

        async def receive() -> list[int]:
            heard = []
            async for message in pubsub.listen():
                heard.append(int(message["data"]))
                if len(heard) == 1000:
                    break
            return heard

        async with asyncio.timeout(60):
            heard, _ = await asyncio.gather(receive(), publish())
        expect(heard == list(range(1000)), "1,000 messages in order")
    say("1,000 messages published and heard in order")

    waiting = asyncio.ensure_future(client.blpop("queue", timeout=30))
    await asyncio.sleep(0.05)
    await client.rpush("queue", "job")
    expect(await waiting == (b"queue", b"job"), "the blocking pop was woken")
    waiting = asyncio.ensure_future(client.blpop("queue", timeout=30))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=30)
    expect(
        waiting.cancelled() and await client.ping(), "the client is usable after a cancelled pop"
    )
    say("a blocking pop woken by a push, another one cancelled")


async def main() -> None:
    """Everything above, over TCP; then the server's UNIX socket."""
    async with redis.asyncio.Redis(port=int(os.environ["ECOSYSTEM_REDIS_PORT"])) as client:
        say(f"Redis {(await client.info('server'))['redis_version']}, redis-py {redis.__version__}")
        await load(client)
        await publish_and_block(client)
    async with redis.asyncio.Redis(unix_socket_path=os.environ["ECOSYSTEM_REDIS_SOCKET"]) as client:
        expect(int(await client.get("counter")) == 10_000, "the same data over the UNIX socket")
    say("a connection over the UNIX socket")


run(main())
