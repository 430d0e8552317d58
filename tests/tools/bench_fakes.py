# SPDX-License-Identifier: GPL-2.0-only
"""Event loops with known faults, for the tests of the benchmarks: a harness that does not notice
them measures nothing. The command line of a run names them ``bench_fakes:factory``."""

import asyncio
import functools
import os
import time


class SlowLoop(asyncio.SelectorEventLoop):
    """A working loop that wastes 20 us in each call_soon."""

    def call_soon(self, callback, *args, context=None):
        until = time.thread_time_ns() + 20_000
        while time.thread_time_ns() < until:
            pass
        return super().call_soon(callback, *args, context=context)


class _Faulty(asyncio.SelectorEventLoop):
    """Serves with its own protocol instead of the given one."""

    protocol: type[asyncio.Protocol]

    async def create_server(self, protocol_factory, *args, **kwargs):
        return await super().create_server(self.protocol, *args, **kwargs)


class _Connected(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport


class _Liar(_Connected):
    def data_received(self, data):
        self.transport.write(bytes(len(data)))


class _Closer(_Connected):
    def data_received(self, data):
        self.transport.close()


class _Mortal(_Connected):
    answered = 0

    def data_received(self, data):
        type(self).answered += 1
        if self.answered > 200:
            os._exit(7)
        self.transport.write(data)


class _Silent(_Connected):
    answered = 0

    def data_received(self, data):
        type(self).answered += 1
        if self.answered <= 200:
            self.transport.write(data)


class LyingLoop(_Faulty):
    """Answers immediately, with the right number of wrong bytes."""

    protocol = _Liar


class ClosingLoop(_Faulty):
    """Closes every connection instead of answering."""

    protocol = _Closer


class DyingLoop(_Faulty):
    """Its process ends in the middle of the load."""

    protocol = _Mortal


class SilentLoop(_Faulty):
    """Stops answering in the middle of the load, and lives on."""

    protocol = _Silent


class StuckLoop(asyncio.SelectorEventLoop):
    """Cannot serve, and raises an error that says so."""

    async def create_server(self, *args, **kwargs):
        raise NotImplementedError("no servers")


def over(factory):
    """Return a factory of loops with another create_server(), as aiofastnet wraps a loop."""

    def make():
        loop = factory()
        loop.create_server = functools.partial(StuckLoop.create_server, loop)
        return loop

    return make


class FragileLoop(asyncio.SelectorEventLoop):
    """Its process ends when a timer is set."""

    def call_at(self, when, callback, *args, context=None):
        os._exit(9)
