# SPDX-License-Identifier: GPL-2.0-only
"""Every private name of the standard library that mgloop leans on, and why.

asyncio's own code is taken wherever it runs per connection or per loop, so that each version's
semantics come with it; some of it has no public name. All such names are used through this module,
so that a new CPython can be checked against one page.
"""

from __future__ import annotations

import _socket
import inspect
import operator
import socket
import sys
import types
from asyncio import (
    base_events,
    constants,
    events,
    format_helpers,
    futures,
    protocols,
    selector_events,
    tasks,
    transports,
    trsock,
    unix_events,
)
from typing import Any

# --- Borrowed methods: functions of asyncio's selector loops that work on any loop which offers
# _add_reader(), _ensure_fd_no_transport() and their like. None of them calls super(), or by way of
# with_class() only.
SelectorLoop: Any = selector_events.BaseSelectorEventLoop
UnixLoop: Any = unix_events._UnixSelectorEventLoop  # type: ignore[attr-defined]

# Where asyncio itself takes a policy from if none is set, since 3.14.8; before, from its package.
policy_home: Any = unix_events

# Since 3.14.8 sendfile()'s fall-back begins at its offset even if that is 0, and not where the file
# stands, and waits for each block to leave; before, for the one before it. The name of what is done
# first tells which it is.
SENDFILE_IS_STRICT = base_events.BaseEventLoop._sendfile_fallback.__code__.co_names[0] == "hasattr"  # type: ignore[attr-defined]


# --- Sockets.
def _plain_socket() -> Any:
    """Return the socket module's own class, even if gevent has replaced the module's name."""
    for kind in _socket.socket.__subclasses__():
        if (kind.__module__, kind.__qualname__) == ("socket", "socket"):
            return kind
    return socket.socket


PlainSocket: Any = _plain_socket()


def overrides(sock: Any, *names: str) -> bool:
    """Whether a socket's class overrides one of these methods of socket.socket.

    asyncio calls such a method, so a direct system call must not replace it.
    """
    kind = type(sock)
    return kind is not PlainSocket and any(
        getattr(kind, name, None) is not getattr(PlainSocket, name) for name in names
    )


# --- Borrowed classes.
SelectorSocketTransport: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
SelectorDatagramTransport: Any = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]
TransportSocket: Any = trsock.TransportSocket
UnixSubprocessTransport: Any = unix_events._UnixSubprocessTransport  # type: ignore[attr-defined]
UnixReadPipeTransport: Any = unix_events._UnixReadPipeTransport  # type: ignore[attr-defined]
SendfileFallbackProtocol: Any = base_events._SendfileFallbackProtocol  # type: ignore[attr-defined]
UnixWritePipeTransport: Any = unix_events._UnixWritePipeTransport  # type: ignore[attr-defined]


def forget_unconnected_pipes(transport: Any) -> None:
    """Let the transport of a subprocess end although not all of its pipes could be connected.

    asyncio's waits for the ends of all pipes, so that its _wait() never returns then. Its protocol
    has not got connection_made(), and gets no other call either.
    """
    for fd in [fd for fd, protocol in transport._pipes.items() if protocol is None]:
        del transport._pipes[fd]
    transport.set_protocol(protocols.SubprocessProtocol())
    transport._pending_calls = None


class StreamTransport(transports._FlowControlMixin, transports.Transport):  # type: ignore[misc,name-defined]
    """What a native stream transport says it is; asyncio's sendfile() insists on the mix-in."""


class DatagramTransport(transports._FlowControlMixin, transports.DatagramTransport):  # type: ignore[misc,name-defined]
    """What a native datagram transport says it is."""


def is_buffered(protocol: Any) -> bool:
    """Whether data goes into a buffer of the protocol's own.

    Besides asyncio.BufferedProtocol: who has get_buffer() and nothing else to receive data by.
    uvloop takes those too, and asyncio would only fail on them.
    """
    # Almost no protocol has get_buffer: ask for that before the slower isinstance().
    return hasattr(protocol, "get_buffer") and (
        isinstance(protocol, protocols.BufferedProtocol) or not hasattr(protocol, "data_received")
    )


def with_class(function: Any, owner: type) -> Any:
    """A borrowed method whose super() is to go on from `owner`, not from the class it is from."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells["__class__"] = types.CellType(owner)
    borrowed = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )  # fmt: skip
    borrowed.__kwdefaults__ = function.__kwdefaults__
    return borrowed


# By which name writelines() complains: before 3.12 it is a write() of everything joined.
WRITELINES = (
    "writelines" if "writelines" in vars(selector_events._SelectorSocketTransport) else "write"  # type: ignore[attr-defined]
)

# Of 3.12 and 3.13.0 it never calls pause_writing(), however much has to wait.
WRITELINES_PAUSES = (
    WRITELINES == "write"
    or "_maybe_pause_protocol"
    in selector_events._SelectorSocketTransport.writelines.__code__.co_names  # type: ignore[attr-defined]
)

SendfileMode: Any = constants._SendfileMode  # type: ignore[attr-defined]

# BaseEventLoop.create_task() takes `name` and `context` up to 3.13.2. Since 3.13.3 it passes every
# keyword on to the task.
CREATE_TASK_FORWARDS_EVERY_KEYWORD: bool = (
    inspect.getfullargspec(base_events.BaseEventLoop.create_task).varkw is not None
)

# The classes in C. They read the keywords that they are called with and keep no reference to them.
NativeFuture: Any = getattr(futures, "_CFuture", None)
NativeTask: Any = getattr(tasks, "_CTask", None)

# What call_soon_threadsafe() returns from 3.14 on.
ThreadSafeHandle: Any = getattr(events, "_ThreadSafeHandle", None)

# --- Borrowed functions and constants.
asyncgen_begins: Any = base_events.BaseEventLoop._asyncgen_firstiter_hook  # type: ignore[attr-defined]
check_ssl_socket: Any = base_events._check_ssl_socket  # type: ignore[attr-defined]
set_result_unless_cancelled: Any = futures._set_result_unless_cancelled  # type: ignore[attr-defined]
copy_future_state: Any = futures._copy_future_state  # type: ignore[attr-defined]
ACCEPT_RETRY_DELAY: float = constants.ACCEPT_RETRY_DELAY
LOG_THRESHOLD: int = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
SSL_HANDSHAKE_TIMEOUT: float = constants.SSL_HANDSHAKE_TIMEOUT
SSL_SHUTDOWN_TIMEOUT: float = constants.SSL_SHUTDOWN_TIMEOUT

# Server._attach() takes the transport from 3.12.? on (close_clients), and nothing before.
SERVER_KNOWS_CLIENTS: bool = (
    len(inspect.signature(base_events.Server._attach).parameters) == 2  # type: ignore[attr-defined]
)

_FORMAT_TAKES_DEBUG = (
    "debug"
    in inspect.signature(
        format_helpers._format_callback_source  # type: ignore[attr-defined]
    ).parameters
)


def format_callback(callback: Any, args: Any, debug: bool) -> str:
    """How asyncio names a callback in its messages."""
    format_source: Any = format_helpers._format_callback_source  # type: ignore[attr-defined]
    if _FORMAT_TAKES_DEBUG:
        return str(format_source(callback, args, debug=debug))
    return str(format_source(callback, args))


def format_handle(handle: Any) -> str:
    """How asyncio names a handle in the message about a slow callback. Whatever a repr() of the
    user's does, the loop goes on, which in production may have been made with timing."""
    try:
        if isinstance(handle, events.Handle):
            return str(base_events._format_handle(handle))  # type: ignore[attr-defined]
        return repr(handle)
    except Exception as exc:
        return f"<{type(handle).__name__} whose repr() raised {type(exc).__name__}>"


def extract_stack() -> Any:
    """The traceback that debug mode attaches to a handle: that of call_soon()'s caller."""
    return format_helpers.extract_stack(sys._getframe(1))


def report_callback_failure(loop: Any, handle: Any, exc: BaseException) -> None:
    """Tell the loop's exception handler that a handle's callback raised; as asyncio.Handle."""
    try:
        callback = format_callback(handle._callback, handle._args, loop.get_debug())
    except Exception:  # a repr() of the user's; whatever it says, the failure is to be told
        callback = f"of type {type(handle._callback).__name__}"
    context = {
        "message": f"Exception in callback {callback}",
        "exception": exc,
        "handle": handle,
    }
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    loop.call_exception_handler(context)


def is_asyncios(run: Any) -> bool:
    """Whether asyncio.Handle._run is what asyncio's own source has there."""
    code = getattr(run, "__code__", None)
    return code is not None and code.co_filename == events.Handle.__init__.__code__.co_filename


def run_handle(handle: Any) -> None:
    """Run a handle of asyncio's own class, made by inherited code, unless it was cancelled."""
    if not handle._cancelled:
        handle._run()


def fileno(fd: Any) -> int:
    """The descriptor of an int or of an object with fileno(), as the selectors module takes it."""
    number = fd
    if not isinstance(number, int):
        try:
            number = int(fd.fileno())
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"Invalid file object: {fd!r}") from None
    # A plain int: the comparison operators of a subclass cannot be trusted.
    number = operator.index(number)
    if number < 0:
        raise ValueError(f"Invalid file descriptor: {number}")
    return number


def is_finalizing() -> bool:
    """sys.is_finalizing(), asked where asyncio's signal code asks it."""
    return bool(unix_events.sys.is_finalizing())  # type: ignore[attr-defined]


# --- Threads.
def has_gil() -> bool:
    """Whether threads take turns, which they need not since 3.13 (sys._is_gil_enabled())."""
    ask = getattr(sys, "_is_gil_enabled", None)
    return ask is None or bool(ask())
