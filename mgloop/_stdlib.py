# SPDX-License-Identifier: GPL-2.0-only
"""Every private name of the standard library that mgloop depends on, and the reason.

Wherever code runs per connection or per loop, mgloop uses asyncio's own code, so that its semantics
are those of the running version. Some of that code has no public name. All private names are
accessed through this module, so only this module has to be checked against a new CPython.
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
    streams,
    tasks,
    transports,
    trsock,
    unix_events,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# --- Borrowed methods: functions of asyncio's selector loops that work on any loop that has
# _add_reader(), _ensure_fd_no_transport() and similar methods. Those that call super() must be
# converted with with_class().
SelectorLoop: Any = selector_events.BaseSelectorEventLoop
UnixLoop: Any = unix_events._UnixSelectorEventLoop  # type: ignore[attr-defined]

# The module from which asyncio takes the default policy since 3.14.8; before, its package.
policy_home: Any = unix_events

# Since 3.14.8, the fallback of sendfile() starts at its offset even if that is 0 (before, at the
# current position of the file), and it drains after each block (before, ahead of each block). The
# first name that its code uses distinguishes the two versions.
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
    """Return whether a socket's class overrides one of these methods of socket.socket.

    asyncio calls such a method, so mgloop must not use a system call instead.
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
StreamReader: Any = streams.StreamReader
StreamWriter: Any = streams.StreamWriter
StreamReaderProtocol: Any = streams.StreamReaderProtocol
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
    """The base class of native stream transports. asyncio's sendfile() requires the mix-in."""


class DatagramTransport(transports._FlowControlMixin, transports.DatagramTransport):  # type: ignore[misc,name-defined]
    """The base class of native datagram transports."""


def is_buffered(protocol: Any) -> bool:
    """Return whether received data goes into a buffer of the protocol.

    That is the case for asyncio.BufferedProtocol, and for a protocol that has get_buffer() but not
    data_received(). uvloop accepts the latter as well, and asyncio would fail.
    """
    # Almost no protocol has get_buffer: check that before the slower isinstance().
    return hasattr(protocol, "get_buffer") and (
        isinstance(protocol, protocols.BufferedProtocol) or not hasattr(protocol, "data_received")
    )


def with_class(function: Any, owner: type) -> Any:
    """Return a copy of a borrowed method in which super() refers to `owner` as its class."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells["__class__"] = types.CellType(owner)
    borrowed = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )  # fmt: skip
    borrowed.__kwdefaults__ = function.__kwdefaults__
    return borrowed


def with_globals(function: Any, module: str, **names: Any) -> Any:
    """Return a copy of a borrowed function of `module` that finds `names` instead of asyncio's."""
    borrowed = types.FunctionType(
        function.__code__, function.__globals__ | names | {"__name__": module},
        function.__name__, function.__defaults__, function.__closure__,
    )  # fmt: skip
    borrowed.__kwdefaults__ = function.__kwdefaults__
    borrowed.__doc__ = function.__doc__
    borrowed.__qualname__ = function.__qualname__
    return borrowed


# The name in error messages of writelines(), which before 3.12 calls write() with the joined data.
WRITELINES = (
    "writelines" if "writelines" in vars(selector_events._SelectorSocketTransport) else "write"  # type: ignore[attr-defined]
)

# In 3.12 and 3.13.0, writelines() never calls pause_writing(), however large the buffer becomes.
WRITELINES_PAUSES = (
    WRITELINES == "write"
    or "_maybe_pause_protocol"
    in selector_events._SelectorSocketTransport.writelines.__code__.co_names  # type: ignore[attr-defined]
)

SendfileMode: Any = constants._SendfileMode  # type: ignore[attr-defined]

# BaseEventLoop.create_task() accepts `name` and `context` up to 3.13.2. Since 3.13.3 it passes all
# keyword arguments to the task.
CREATE_TASK_FORWARDS_EVERY_KEYWORD: bool = (
    base_events.BaseEventLoop.create_task.__code__.co_flags & inspect.CO_VARKEYWORDS != 0
)

# The C implementations. They read their keyword arguments and keep no reference to the dictionary.
NativeFuture: Any = getattr(futures, "_CFuture", None)
NativeTask: Any = getattr(tasks, "_CTask", None)

# The class of handles that call_soon_threadsafe() returns since 3.14.
ThreadSafeHandle: Any = getattr(events, "_ThreadSafeHandle", None)

# --- Borrowed functions and constants.
asyncgen_begins: Any = base_events.BaseEventLoop._asyncgen_firstiter_hook  # type: ignore[attr-defined]
check_ssl_socket: Any = base_events._check_ssl_socket  # type: ignore[attr-defined]
set_result_unless_cancelled: Any = futures._set_result_unless_cancelled  # type: ignore[attr-defined]
copy_future_state: Any = futures._copy_future_state  # type: ignore[attr-defined]
ACCEPT_RETRY_DELAY: float = constants.ACCEPT_RETRY_DELAY
STREAM_LIMIT: int = streams._DEFAULT_LIMIT  # type: ignore[attr-defined]
LOG_THRESHOLD: int = constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
SSL_HANDSHAKE_TIMEOUT: float = constants.SSL_HANDSHAKE_TIMEOUT
SSL_SHUTDOWN_TIMEOUT: float = constants.SSL_SHUTDOWN_TIMEOUT

# Whether Server._attach() takes the transport, as in versions that have close_clients().
SERVER_KNOWS_CLIENTS: bool = (
    base_events.Server._attach.__code__.co_argcount == 2  # type: ignore[attr-defined]
)

_FORMAT_TAKES_DEBUG = (
    "debug" in format_helpers._format_callback_source.__code__.co_varnames  # type: ignore[attr-defined]
)


def format_callback(callback: Any, args: Any, debug: bool) -> str:
    """Return the description of a callback in asyncio's messages."""
    format_source: Any = format_helpers._format_callback_source  # type: ignore[attr-defined]
    if _FORMAT_TAKES_DEBUG:
        return str(format_source(callback, args, debug=debug))
    return str(format_source(callback, args))


def format_handle(handle: Any) -> str:
    """Return the description of a handle in asyncio's message about a slow callback.

    An exception in a repr() of the user must not stop the loop, because production programs enable
    timing, too.
    """
    try:
        if isinstance(handle, events.Handle):
            return str(base_events._format_handle(handle))  # type: ignore[attr-defined]
        return repr(handle)
    except Exception as exc:
        return f"<{type(handle).__name__} whose repr() raised {type(exc).__name__}>"


def extract_stack() -> Any:
    """Return the stack of the caller of call_soon(), which debug mode attaches to a handle."""
    return format_helpers.extract_stack(sys._getframe(1))


def report_callback_failure(loop: Any, handle: Any, exc: BaseException) -> None:
    """Pass an exception of a handle's callback to the loop's exception handler, as asyncio does."""
    try:
        callback = format_callback(handle._callback, handle._args, loop.get_debug())
    except Exception:  # a repr() of the user raised; the callback's exception must be reported
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
    """Return whether `run`, the current asyncio.Handle._run, comes from asyncio's own source."""
    code = getattr(run, "__code__", None)
    return code is not None and code.co_filename == events.Handle.__init__.__code__.co_filename


def run_handle(handle: Any) -> None:
    """Run a handle of asyncio's own class, which inherited code created, unless it is cancelled."""
    if not handle._cancelled:
        handle._run()


def fileno(fd: Any) -> int:
    """Return the descriptor of an int or of an object with fileno(), as the selectors module does.

    Raises ValueError.
    """
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
    """Return sys.is_finalizing(), through the module whose signal code calls it in asyncio."""
    return bool(unix_events.sys.is_finalizing())  # type: ignore[attr-defined]


# --- Threads.
def has_gil() -> bool:
    """Return whether the GIL is enabled (sys._is_gil_enabled(), since 3.13)."""
    ask = getattr(sys, "_is_gil_enabled", None)
    return ask is None or bool(ask())
