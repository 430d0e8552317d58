# SPDX-License-Identifier: GPL-2.0-only
"""asyncpg over PostgreSQL: a pool, COPY, transactions, cursors, NOTIFY, cancellation."""

import asyncio
import io
import os

import asyncpg
from common import expect, run, say


async def queries(pool: asyncpg.Pool) -> None:
    """1,000 queries from 100 tasks over 10 connections, a rolled-back transaction, an error."""

    async def one(number: int) -> int:
        async with pool.acquire() as connection:
            return await connection.fetchval("select $1::int * 2", number)

    values = []
    for start in range(0, 1000, 100):
        values += await asyncio.gather(*(one(number) for number in range(start, start + 100)))
    expect(
        values == [2 * number for number in range(1000)], "1,000 queries answered in their order"
    )
    say("1,000 queries from 100 tasks over 10 connections")

    async with pool.acquire() as connection:
        await connection.execute("create table item(id int primary key, body bytea)")
        try:
            async with connection.transaction():
                await connection.execute("insert into item values (1, 'x')")
                raise LookupError
        except LookupError:
            pass
        expect(
            await connection.fetchval("select count(*) from item") == 0,
            "the transaction was undone",
        )
        try:
            await connection.execute("select no_such_column")
        except asyncpg.UndefinedColumnError as exc:
            say(f"a server error comes as an exception: {exc}")
        else:
            expect(False, "an unknown column is an error")


async def bulk(pool: asyncpg.Pool) -> None:
    """16 MiB there and back, 200,000 rows by COPY in, COPY out and a cursor."""
    async with pool.acquire() as connection:
        blob = os.urandom(16 << 20)
        await connection.execute("insert into item values (1, $1)", blob)
        expect(
            await connection.fetchval("select body from item where id = 1") == blob,
            "16 MiB came back",
        )
        say("16 MiB stored and read back")

        await connection.execute("create table number(n int)")
        await connection.copy_records_to_table("number", records=((n,) for n in range(200_000)))
        out = io.BytesIO()
        await connection.copy_from_table("number", output=out)
        expect(len(out.getvalue().split()) == 200_000, "COPY wrote and read 200,000 rows")
        total = 0
        async with connection.transaction():
            async for record in connection.cursor("select n from number", prefetch=1000):
                total += record["n"]
        expect(total == 199_999 * 200_000 // 2, "the cursor saw every row")
        say("200,000 rows by COPY in, COPY out and a cursor")


async def notify_and_cancel(pool: asyncpg.Pool) -> None:
    """NOTIFY reaches a listener; a cancelled query leaves the connection usable."""
    async with pool.acquire() as listener, pool.acquire() as sender:
        heard: asyncio.Queue[str] = asyncio.Queue()
        await listener.add_listener(
            "news", lambda _c, _pid, _channel, payload: heard.put_nowait(payload)
        )
        for number in range(100):
            await sender.execute("select pg_notify('news', $1)", str(number))
        async with asyncio.timeout(30):
            expect(
                [await heard.get() for _ in range(100)] == [str(n) for n in range(100)],
                "100 notices",
            )
        await listener.reset()
    say("100 notifications heard")

    async with pool.acquire() as connection:
        task = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        expect(task.cancelled(), "the query was cancelled")
        try:
            await connection.fetchval("select pg_sleep(60)", timeout=0.1)
        except TimeoutError:
            pass
        else:
            expect(False, "the query timed out")
        expect(await connection.fetchval("select 1") == 1, "the connection is usable afterwards")
    say("a cancelled query and a timed-out one left the connection usable")


async def main() -> None:
    """Everything above, over TCP; then a connection over the server's UNIX socket."""
    async with asyncpg.create_pool(min_size=2, max_size=10) as pool:
        version = await pool.fetchval("show server_version")
        say(f"PostgreSQL {version}, asyncpg {asyncpg.__version__}")
        await queries(pool)
        await bulk(pool)
        await notify_and_cancel(pool)
    connection = await asyncpg.connect(host=os.environ["ECOSYSTEM_PGSOCKET"])
    expect(await connection.fetchval("select inet_client_addr()") is None, "that was a UNIX socket")
    await connection.close()
    say("a connection over the UNIX socket")
    try:
        await asyncpg.connect(host="127.0.0.1", port=1)
    except OSError as exc:
        say(f"a refused connection is {type(exc).__name__}")
    else:
        expect(False, "a closed port refuses")


run(main())
