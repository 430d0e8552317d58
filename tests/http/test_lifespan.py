# SPDX-License-Identifier: GPL-2.0-only
"""Start-up and shutdown of the application: ASGI's lifespan protocol."""

import asyncio
import logging

import pytest
import support

from mgloop.http import LifespanError
from mgloop.http.lifespan import Lifespan


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
    caplog.set_level(logging.INFO, "mgloop.http")


def answering(*answers, log=None):
    """Return an application that sends one of `answers` for each message that it receives."""

    async def app(scope, receive, send):
        assert scope["type"] == "lifespan"
        assert scope["asgi"]["version"] == "3.0"
        scope["state"]["key"] = "value"
        for answer in answers:
            message = await receive()
            if log is not None:
                log.append(message["type"])
            await send(answer)

    return app


STARTED = {"type": "lifespan.startup.complete"}
STOPPED = {"type": "lifespan.shutdown.complete"}


@pytest.mark.parametrize("mode", ["auto", "on"])
async def test_the_application_receives_startup_and_shutdown(loop, mode, caplog):
    log = []
    lifespan = Lifespan(answering(STARTED, STOPPED, log=log), mode)
    await lifespan.startup()
    assert lifespan.state == {"key": "value"}
    assert log == ["lifespan.startup"]
    await lifespan.shutdown()
    assert log == ["lifespan.startup", "lifespan.shutdown"]
    assert caplog.messages == [
        "Waiting for application startup.",
        "Application startup complete.",
        "Waiting for application shutdown.",
        "Application shutdown complete.",
    ]


async def test_off_means_that_it_is_not_called(loop):
    lifespan = Lifespan(None, "off")
    await lifespan.startup()
    assert lifespan.state is None
    await lifespan.shutdown()


class Unusual(BaseException):
    """An exception that is neither an Exception nor one of asyncio's."""


#: Exceptions that end a lifespan, but not the server.
KINDS = [ValueError, asyncio.CancelledError, SystemExit, Unusual]


def raising(kind):
    async def app(scope, receive, send):
        raise kind("only http")

    return app


async def returning(scope, receive, send):
    pass


UNSUPPORTED = [*map(raising, KINDS), returning]
NAMES = [*(kind.__name__ for kind in KINDS), "returns"]


@pytest.mark.parametrize("app", UNSUPPORTED, ids=NAMES)
async def test_auto_does_without(loop, app, caplog):
    lifespan = Lifespan(app, "auto")
    await lifespan.startup()
    assert lifespan.state is None
    await lifespan.shutdown()
    assert caplog.messages[-1] == "ASGI 'lifespan' protocol appears unsupported."


@pytest.mark.parametrize("app", UNSUPPORTED, ids=NAMES)
async def test_on_does_not_do_without(loop, app, caplog):
    with pytest.raises(LifespanError, match="Application startup failed"):
        await Lifespan(app, "on").startup()
    assert caplog.messages[-1] in (
        "Application returned before its startup was complete.",
        "Exception in 'lifespan' protocol",
    )


@pytest.mark.parametrize("mode", ["auto", "on"])
async def test_a_start_up_that_fails_is_logged_and_raised(loop, mode, caplog):
    failed = {"type": "lifespan.startup.failed", "message": "no database"}
    with pytest.raises(LifespanError) as caught:
        await Lifespan(answering(failed), mode).startup()
    assert caught.value.status == 3
    assert "no database" in caplog.messages


async def test_a_shutdown_that_fails_is_logged(loop, caplog):
    failed = {"type": "lifespan.shutdown.failed", "message": "still busy"}
    lifespan = Lifespan(answering(STARTED, failed), "auto")
    await lifespan.startup()
    await lifespan.shutdown()
    assert caplog.messages[-2:] == ["still busy", "Application shutdown failed."]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_at_the_end_is_logged_with_its_traceback(loop, kind, caplog):
    async def app(scope, receive, send):
        await receive()
        await send(STARTED)
        await receive()
        raise kind("at the end")

    lifespan = Lifespan(app, "auto")
    await lifespan.startup()
    await lifespan.shutdown()
    assert f"{kind.__name__}: at the end" in caplog.text
    assert caplog.messages[-1] == "Application shutdown failed."


async def test_a_shutdown_that_is_cancelled_is_no_exception_of_the_application(loop, caplog):
    async def app(scope, receive, send):
        await receive()
        await send(STARTED)
        await asyncio.Event().wait()

    lifespan = Lifespan(app, "on")
    await lifespan.startup()
    task = asyncio.ensure_future(lifespan.shutdown())
    await asyncio.sleep(0)
    await support.cancel(task)
    assert caplog.messages[-1] == "Waiting for application shutdown."


async def test_an_application_that_ended_early_has_no_shutdown(loop, caplog):
    lifespan = Lifespan(answering(STARTED), "auto")
    await lifespan.startup()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await lifespan.shutdown()
    assert caplog.messages[-1] == "Application startup complete."


@pytest.mark.parametrize("kind", ["lifespan.shutdown.complete", "http.response.start"])
async def test_a_message_out_of_order_raises_in_the_application(loop, kind, caplog):
    async def app(scope, receive, send):
        await receive()
        with pytest.raises(RuntimeError, match="Unexpected ASGI message"):
            await send({"type": kind})
        await send(STARTED)
        with pytest.raises(RuntimeError, match="Unexpected ASGI message"):
            await send(STARTED)
        await receive()
        await send(STOPPED)

    lifespan = Lifespan(app, "on")
    await lifespan.startup()
    await lifespan.shutdown()
    assert caplog.messages[-1] == "Application shutdown complete."


async def test_the_application_may_continue_after_its_last_message(loop):
    done = []

    async def app(scope, receive, send):
        await receive()
        await send(STARTED)
        await receive()
        await send(STOPPED)
        await asyncio.sleep(0.01)
        done.append(True)

    lifespan = Lifespan(app, "on")
    await lifespan.startup()
    await lifespan.shutdown()
    assert done == [True]


async def test_a_cancelled_start_up_leaves_nothing(loop):
    async def app(scope, receive, send):
        await receive()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(Lifespan(app, "on").startup())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await support.cancel(task)


@pytest.mark.parametrize("ends", ["cancelled", "returns", "raises"])
def test_a_cancelled_start_up_says_nothing_of_support(run, ends, caplog):
    """As on a signal: the application may still support the protocol."""

    async def app(scope, receive, send):
        await receive()
        waiting.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if ends == "raises":
                raise ValueError("the clean-up failed") from None
            if ends == "cancelled":
                raise

    async def main():
        nonlocal waiting
        waiting = asyncio.Event()
        starting = asyncio.ensure_future(Lifespan(app, "auto").startup())
        await waiting.wait()
        await support.cancel(starting)

    waiting = None
    run(main())
    expected = ["Waiting for application startup."]
    if ends == "raises":
        expected.append("Exception in 'lifespan' protocol")
    assert caplog.messages == expected
