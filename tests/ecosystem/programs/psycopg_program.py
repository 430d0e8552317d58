# SPDX-License-Identifier: GPL-2.0-only
"""psycopg 3 over PostgreSQL, which waits by add_reader and add_writer: COPY, pipeline, NOTIFY."""

import asyncio
import os

import psycopg
from common import expect, run, say


async def statements(connection: psycopg.AsyncConnection) -> None:
    """Statements, a rolled-back transaction, pipeline mode, and an error."""
    await connection.execute("create table item(id int primary key, body bytea)")
    try:
        async with connection.transaction():
            await connection.execute("insert into item values (1, 'x')")
            raise LookupError
    except LookupError:
        pass
    cursor = await connection.execute("select count(*) from item")
    expect(await cursor.fetchone() == (0,), "the transaction was undone")

    blob = os.urandom(4 << 20)
    await connection.execute("insert into item values (1, %b)", (blob,))
    async with connection.cursor(binary=True) as binary:
        await binary.execute("select body from item where id = 1")
        (back,) = await binary.fetchone()
    expect(bytes(back) == blob, "4 MiB came back")
    say("statements, a rollback, and 4 MiB there and back")

    async with connection.pipeline(), connection.cursor() as cursor:
        await cursor.executemany(
            "insert into item(id) values (%s)", [(n,) for n in range(10, 1010)]
        )
    cursor = await connection.execute("select count(*) from item")
    expect(await cursor.fetchone() == (1001,), "the pipeline inserted 1,000 rows")
    try:
        await connection.execute("select no_such_column")
    except psycopg.errors.UndefinedColumn as exc:
        say(f"1,000 rows in pipeline mode; a server error comes as {type(exc).__name__}")
    else:
        expect(False, "an unknown column is an error")


async def copy(connection: psycopg.AsyncConnection) -> None:
    """100,000 rows by COPY in and out."""
    await connection.execute("create table number(n int)")
    async with connection.cursor() as cursor:
        async with cursor.copy("copy number from stdin") as writer:
            for number in range(100_000):
                await writer.write_row((number,))
        total = 0
        async with cursor.copy("copy number to stdout") as reader:
            async for row in reader.rows():
                total += int(row[0])
    expect(total == 99_999 * 100_000 // 2, "COPY wrote and read 100,000 rows")
    say("100,000 rows by COPY in and out")


async def notify_and_cancel(connection: psycopg.AsyncConnection) -> None:
    """A notice from one connection wakes another; a cancelled query frees its connection."""
    async with await psycopg.AsyncConnection.connect(autocommit=True) as other:
        await connection.execute("listen news")

        async def listen() -> str:
            async for notice in connection.notifies():
                return notice.payload
            return ""

        waiting = asyncio.ensure_future(listen())
        await asyncio.sleep(0.05)
        await other.execute("select pg_notify('news', 'hello')")
        async with asyncio.timeout(30):
            expect(await waiting == "hello", "the notice was heard")
    say("a notification heard")

    task = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    expect(task.cancelled(), "the query was cancelled")
    cursor = await connection.execute("select 1")
    expect(await cursor.fetchone() == (1,), "the connection is usable afterwards")
    say("a cancelled query left the connection usable")


async def many() -> None:
    """40 connections at a time, each with 25 queries."""

    async def one(number: int) -> int:
        async with await psycopg.AsyncConnection.connect() as connection:
            total = 0
            for _ in range(25):
                cursor = await connection.execute("select %s::int", (number,))
                total += (await cursor.fetchone())[0]
            return total

    totals = await asyncio.gather(*(one(number) for number in range(40)))
    expect(totals == [25 * number for number in range(40)], "each connection saw its own answers")
    say("40 connections with 25 queries each")


async def main() -> None:
    """Everything above, over TCP; then the server's UNIX socket."""
    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        say(
            f"PostgreSQL {connection.info.server_version // 10000}, psycopg {psycopg.__version__} "
            f"({psycopg.pq.__impl__})"
        )
        await statements(connection)
        await copy(connection)
        await notify_and_cancel(connection)
    await many()
    async with await psycopg.AsyncConnection.connect(
        host=os.environ["ECOSYSTEM_PGSOCKET"]
    ) as connection:
        cursor = await connection.execute("select inet_client_addr()")
        expect(await cursor.fetchone() == (None,), "that was a UNIX socket")
    say("a connection over the UNIX socket")


run(main())
