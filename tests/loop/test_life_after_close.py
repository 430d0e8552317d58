# SPDX-License-Identifier: GPL-2.0-only
"""Objects that outlive their loop can still be called: transports, servers, handles, socket calls.

A program closes its loop while transports are open, in all their states, and calls one method of
each. asyncio's outcome, mostly RuntimeError "Event loop is closed", is the specification: the same
program is run over both loops, and the outcomes are compared. The methods are listed by dir(), so
that all are covered. And no callable may crash, not even on objects that were never initialised.

All programs run in fresh interpreters; their last line of output shows the call that crashed.
"""

import asyncio.selector_events
import textwrap

import pytest
import support

#: asyncio has its own writelines() since 3.12: it queues, then finds the loop closed or no socket.
OWN_WRITELINES = "writelines" in vars(asyncio.selector_events._SelectorSocketTransport)

#: The common part of the programs below: it calls a method and records the outcome.
_ANSWERS = """\
import gc, inspect, types
warnings.simplefilter("ignore")
# SIGALRM ends a method that waits forever.
signal.alarm(40)

BIG = bytes(4 << 20)

ARGUMENTS = {
    "write": [(b"x",), (BIG,), (bytearray(BIG),), (5,)],
    "writelines": [([b"x", b"y"],), ([BIG, BIG],), ([],)],
    "sendto": [(b"x",), (b"x" * 100, None), (5,)],
    "set_protocol": [(asyncio.Protocol(),)],
    "set_write_buffer_limits": [(), (0,), (None, 5), (1, 5)],
    "get_extra_info": [("socket",), ("peername",), ("sockname",), ("pipe",), ("nothing", 5)],
}

def attempt(call, *args):
    '''Return the result as text: the value, if it is a constant, or the exception.'''
    try:
        value = call(*args)
        if inspect.isawaitable(value):
            value = drive(value)
    except (Exception, asyncio.CancelledError) as exc:
        return f"raises {exc if str(exc) == 'Event loop is closed' else type(exc).__name__}"
    return repr(value) if value is None or isinstance(value, bool) else "a value"

def drive(awaitable):
    '''Take its first step.'''
    iterator = awaitable.__await__()
    try:
        iterator.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
    return "waits"

def forgets(call, *args):
    '''Call a function, and ignore its result and its exception.'''
    try:
        attempt(call, *args)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:
        pass

def public(thing):
    '''The names of its methods: what dir() lists, but for what every object has.'''
    return [name for name in dir(thing)
            if not name.startswith("_") and callable(getattr(thing, name, None))]

def say(*words):
    print(*words, flush=True)
"""


def answers(kind, code):
    """Run `code` over a loop of `kind`; return its output as a dict of call to outcome."""
    out, _ = support.run_python(kind, _ANSWERS + textwrap.dedent(code))
    table = {}
    for line in out.splitlines():
        what, _, answer = line.partition(" -> ")
        table[what] = answer
    return table


def compare(kind, code, *, but=()):
    """Check that a loop of `kind` has the same outcomes as asyncio's, except those in `but`."""
    expected = answers("asyncio", code)
    assert expected
    if kind == "asyncio":
        return expected
    got = answers(kind, code)
    different = {
        what: (got.get(what, "is not there"), answer)
        for what, answer in expected.items()
        if got.get(what, "is not there") != answer
        # Ignore methods of asyncio that fail because of an attribute deleted earlier, and methods
        # that it lacks: 3.11.2's datagram transports cannot pause.
        and answer not in ("raises AttributeError", "raises NotImplementedError")
        and what not in but
        and not (OWN_WRITELINES and "writelines" in what)
    }
    assert not different, "\n".join(
        f"{what}: {ours}, with asyncio: {theirs}" for what, (ours, theirs) in different.items()
    )
    return expected


# --- transports ----------------------------------------------------------------------------------

TRANSPORTS = """\
import itertools
number = itertools.count()      # for the names of sockets

class Anything:
    '''A protocol of every kind.'''
    def __init__(self):
        self.told = []
    def connection_made(self, transport):
        self.transport = transport
        self.told.append("made")
    def connection_lost(self, exc):
        self.told.append("lost")
    def data_received(self, data): pass
    def datagram_received(self, data, address): pass
    def error_received(self, exc): pass
    def eof_received(self): pass
    def pause_writing(self): self.told.append("pause")
    def resume_writing(self): self.told.append("resume")

def keep_small(sock):
    '''Or the kernel's buffer may grow until BIG goes into it, and nothing is queued.'''
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

async def make_tcp(loop, kept):
    listener = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listener.getsockname())
    keep_small(sock)
    peer, _ = listener.accept()
    listener.close()
    kept += [sock, peer]
    return loop.create_connection(Anything, sock=sock)

async def make_accepted(loop, kept, family="TCP"):
    '''The server's end of a connection, which makes its Python socket on request.'''
    made = []
    def factory():
        made.append(Anything())
        return made[0]
    if family == "TCP":
        server = await loop.create_server(factory, "127.0.0.1", 0)
    else:
        server = await loop.create_unix_server(factory, f"{PATH}/{KIND} {next(number)}")
    keep_small(server.sockets[0])       # whose connections inherit it
    peer = socket.socket(server.sockets[0].family)
    peer.connect(server.sockets[0].getsockname())
    kept += [peer]
    while not made or not hasattr(made[0], "transport"):
        await asyncio.sleep(0)
    server.close()
    async def connected():
        return made[0].transport, made[0]
    return connected()

async def make_accepted_unix(loop, kept):
    return await make_accepted(loop, kept, "UNIX")

async def make_unix(loop, kept):
    pair = socket.socketpair()
    kept += pair
    return loop.create_connection(Anything, sock=pair[0])

async def make_udp(loop, kept):
    pair = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in pair:
        sock.bind(("127.0.0.1", 0))
    pair[0].connect(pair[1].getsockname())
    kept += pair
    return loop.create_datagram_endpoint(Anything, sock=pair[0])

async def make_udp_unconnected(loop, kept):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    kept += [sock]
    return loop.create_datagram_endpoint(Anything, sock=sock)

async def make_unix_datagrams(loop, kept):
    pair = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in pair:
        sock.bind(f"{PATH}/{KIND} {next(number)}")
    pair[0].connect(pair[1].getsockname())
    kept += pair
    return loop.create_datagram_endpoint(Anything, sock=pair[0])

async def make_read_pipe(loop, kept):
    ends = os.pipe()
    pipes = [open(ends[0], "rb", 0), open(ends[1], "wb", 0)]
    kept += pipes
    return loop.connect_read_pipe(Anything, pipes[0])

async def make_write_pipe(loop, kept):
    ends = os.pipe()
    pipes = [open(ends[0], "rb", 0), open(ends[1], "wb", 0)]
    kept += pipes
    return loop.connect_write_pipe(Anything, pipes[1])

def queue(transport):
    if hasattr(transport, "sendto"):
        for _ in range(1000):
            if transport.get_write_buffer_size():
                break
            transport.sendto(bytes(100), None)
    elif hasattr(transport, "write"):
        transport.write(BIG)

def end(transport, how="close"):
    getattr(transport, how if hasattr(transport, how) else "close")()

# In which state the transports are as their loop is closed.
STATES = {
    "open": lambda transport: None,
    "paused": lambda transport: hasattr(transport, "pause_reading") and pause(transport),
    "with a queue": queue,
    "closing": end,
    "closing with a queue": lambda transport: (queue(transport), end(transport)),
    "aborted": lambda transport: end(transport, "abort"),
    "after write_eof": lambda transport: eof(transport),
    "lost": end,
}

def pause(transport):
    try:
        transport.pause_reading()
    except (NotImplementedError, AttributeError):
        pass

def eof(transport):
    try:
        transport.write_eof()
    except (NotImplementedError, AttributeError):
        pass

async def prepare(loop, make, count, kept):
    '''`count` transports at work.'''
    transports = []
    for _ in range(count):
        transport, protocol = await (await make(loop, kept))
        transports.append(transport)
    await asyncio.sleep(0)
    return transports

def quiet_loop():
    loop = new_loop()
    loop.set_exception_handler(lambda loop, context: None)
    return loop

def calls_of(transport):
    for name in public(transport):
        for number, args in enumerate(ARGUMENTS.get(name, [()])):
            yield name, number, args

def examine(make, state):
    kept = []
    loop = quiet_loop()
    model, = loop.run_until_complete(prepare(loop, make, 1, kept))
    calls = list(calls_of(model))
    transports = loop.run_until_complete(prepare(loop, make, len(calls), kept))
    # Outside run_until_complete(): the loop ends before the callbacks of the transports run.
    for transport in [model, *transports]:
        STATES[state](transport)
    if state == "lost":
        turn(loop, 5)
    loop.close()
    for transport, (name, number, args) in zip(transports, calls):
        call = f"{name}/{number}"
        method = getattr(transport, name)
        say(f"{state}: {call} ->", attempt(method, *args))
        say(f"{state}: {call} again ->", attempt(method, *args))
        repr(transport)
        for question in ("is_closing", "is_reading"):
            if hasattr(transport, question):
                say(f"{state}: {question} after {call} ->",
                    attempt(getattr(transport, question)))
        if hasattr(transport, "get_write_buffer_size"):
            say(f"{state}: something queued after {call} ->", transport.get_write_buffer_size() > 0)
        say(f"{state}: close after {call} ->", attempt(transport.close))
    return kept

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def main(make):
    quiet_loop().close()
    gc.collect()
    before = descriptors()
    for state in STATES:
        kept = examine(make, state)
        # Whatever was left open is closed by the collector.
        gc.collect()
        for thing in kept:
            thing.close()
        kept = thing = None
        gc.collect()
        gc.collect()
        say(f"{state}: descriptors left ->", descriptors() - before)
"""

MAKERS = [
    "tcp",
    "accepted",
    "accepted_unix",
    "unix",
    "udp",
    "udp_unconnected",
    "unix_datagrams",
    "read_pipe",
    "write_pipe",
]

#: Outcomes that may differ from asyncio's: a second abort() of its pipes tries to end them again
#: (docs/differences.md).
SECOND_ABORT = {"open: abort/0 again", "with a queue: abort/0 again"} | {
    f"{state}: abort/0{again}"
    for state in ("closing", "closing with a queue", "aborted", "after write_eof")
    for again in ("", " again")
}

#: asyncio's datagram transports forget the datagrams on abort(), but not their size.
QUEUE_OF_DATAGRAMS = {
    f"{state}: something queued after abort/0" for state in ("with a queue", "closing with a queue")
}
DIFFERENT = {"write_pipe": SECOND_ABORT, "unix_datagrams": QUEUE_OF_DATAGRAMS}


@pytest.mark.parametrize("make", MAKERS)
def test_transports(loop_kind, tmp_path, make):
    code = f"PATH = {str(tmp_path)!r}\n{TRANSPORTS}\nmain(make_{make})"
    table = compare(loop_kind, code, but=DIFFERENT.get(make, ()))
    left = {answer for what, answer in table.items() if what.endswith("descriptors left")}
    assert left == {"0"}
    assert table["open: close/0"] == "raises Event loop is closed"


# --- servers, handles, waiting calls, the loop itself --------------------------------------------


def test_servers(loop_kind, tmp_path):
    """Servers that serve or not, over TCP and UNIX; closing them still closes their sockets."""
    compare(
        loop_kind,
        f"""
        PATH = {str(tmp_path)!r}

        async def make(loop, kind, number):
            serving = kind.endswith("serving")
            if kind.startswith("TCP"):
                return await loop.create_server(
                    asyncio.Protocol, "127.0.0.1", 0, start_serving=serving)
            return await loop.create_unix_server(
                asyncio.Protocol, f"{{PATH}}/{{KIND}} {{kind}} {{number}}", start_serving=serving)

        for kind in "TCP, serving", "TCP", "UNIX, serving", "UNIX":
            loop = new_loop()
            model = loop.run_until_complete(make(loop, kind, "model"))
            names = public(model)
            servers = [loop.run_until_complete(make(loop, kind, name)) for name in names]
            loop.close()
            for server, name in zip(servers, names):
                numbers = [sock.fileno() for sock in server.sockets]
                for again in "", " again":
                    say(f"{{kind}}: {{name}}{{again}} ->", attempt(getattr(server, name)))
                repr(server)
                say(f"{{kind}}: is_serving after {{name}} ->", attempt(server.is_serving))
                say(f"{{kind}}: close after {{name}} ->", attempt(server.close))
                for fd in numbers:
                    try:
                        os.fstat(fd)
                    except OSError:
                        pass
                    else:
                        raise AssertionError("a listening socket is still open")
            model.close()
        """,
    )


def test_handles(loop_kind):
    """Handles of every scheduling method; cancelled, run, or waiting as the loop was closed."""
    compare(
        loop_kind,
        """
        def nothing(*args): pass

        SCHEDULE = {
            "call_soon": lambda loop: loop.call_soon(nothing),
            "call_soon with arguments": lambda loop: loop.call_soon(nothing, *range(10)),
            "call_soon_threadsafe": lambda loop: loop.call_soon_threadsafe(nothing, 1),
            "call_later": lambda loop: loop.call_later(1000, nothing, 1),
            "call_later, due": lambda loop: loop.call_later(0, nothing, 1),
            "call_at": lambda loop: loop.call_at(0, nothing, 1),
        }
        ENDS = {
            "waiting": lambda loop, handle: None,
            "cancelled": lambda loop, handle: handle.cancel(),
            "run": lambda loop, handle: turn(loop, 2),
        }
        for debug in False, True:
            for how, schedule in SCHEDULE.items():
                for end, act in ENDS.items():
                    loop = new_loop()
                    loop.set_debug(debug)
                    names = public(schedule(loop))
                    handles = [schedule(loop) for _ in names]
                    for handle in handles:
                        act(loop, handle)
                    loop.close()
                    for handle, name in zip(handles, names):
                        what = f"{how}, {end}, debug={debug}: {name}"
                        for again in "", " again":
                            answer = attempt(getattr(handle, name))
                            # Documented: a handle that has run keeps no context.
                            say(what + again, "->", name if name == "get_context" else answer)
                        repr(handle), hash(handle), handle == handles[0]
                        say(what, "cancelled ->", handle.cancelled() if name == "cancel" else "")
                        forgets(lambda: handle < handles[0])
                        forgets(handle._run)
                        handle.cancel()
        """,
    )


def test_the_handles_of_readers_and_writers(loop_kind):
    compare(
        loop_kind,
        """
        for side in "reader", "writer":
            loop = new_loop()
            left, right = socket.socketpair()
            handle = getattr(loop, f"_add_{side}")(left, print)
            other = getattr(loop, f"_add_{side}")(right, print)
            loop.close()
            say(side, "cancel ->", attempt(handle.cancel))
            say(side, "cancel again ->", attempt(handle.cancel))
            say(side, "cancelled ->", attempt(handle.cancelled))
            forgets(other._run)
            repr(handle), repr(other)
            left.close()
            right.close()
        """,
    )


def test_the_methods_of_the_loop(loop_kind):
    """Most methods raise; those that wait raise when they would have to wait."""
    compare(
        loop_kind,
        """
        def fresh():
            pair = socket.socketpair()
            for sock in pair:
                sock.setblocking(False)
            kept.append(pair)
            return pair

        def datagrams():
            return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

        def listener():
            sock = socket.create_server(("127.0.0.1", 0))
            sock.setblocking(False)
            return sock

        def full():
            left, right = fresh()
            try:
                while True:
                    left.send(bytes(65536))
            except BlockingIOError:
                return left

        def readable():
            left, right = fresh()
            right.send(b"data")
            return left

        P = asyncio.Protocol
        kept = []
        loop = new_loop()
        loop.set_exception_handler(lambda loop, context: None)
        waiting = [
            loop.create_task(loop.sock_recv(fresh()[0], 10)) for _ in range(3)
        ]
        turn(loop, 3)
        loop.close()
        CALLS = {
            "add_reader": lambda: (fresh()[0], print),
            "add_writer": lambda: (fresh()[0], print),
            "remove_reader": lambda: (fresh()[0],),
            "remove_writer": lambda: (fresh()[0],),
            "add_signal_handler": lambda: (signal.SIGUSR1, print),
            "remove_signal_handler": lambda: (signal.SIGUSR1,),
            "call_at": lambda: (0, print),
            "call_later": lambda: (0, print),
            "call_soon": lambda: (print,),
            "call_soon_threadsafe": lambda: (print,),
            "call_exception_handler": lambda: ({"message": "nothing"},),
            "connect_accepted_socket": lambda: (P, fresh()[0]),
            "connect_read_pipe": lambda: (P, fresh()[0]),
            "connect_write_pipe": lambda: (P, fresh()[0]),
            "create_connection": lambda: (P, "127.0.0.1", 1),
            "create_datagram_endpoint": lambda: (P, ("127.0.0.1", 0)),
            "create_server": lambda: (P, "127.0.0.1", 0),
            "create_unix_connection": lambda: (P, "/nowhere"),
            "create_unix_server": lambda: (P, "/nowhere/at/all"),
            "create_task": lambda: (asyncio.sleep(0),),
            "getaddrinfo": lambda: ("127.0.0.1", 80),
            "getnameinfo": lambda: (("127.0.0.1", 80),),
            "run_in_executor": lambda: (None, print),
            "run_until_complete": lambda: (asyncio.sleep(0),),
            "set_debug": lambda: (False,),
            "set_exception_handler": lambda: (None,),
            "set_task_factory": lambda: (None,),
            "sock_accept": lambda: (listener(),),
            "sock_recv": lambda: (fresh()[0], 10),
            "sock_recv_into": lambda: (fresh()[0], bytearray(10)),
            "sock_recvfrom": lambda: (fresh()[0], 10),
            "sock_recvfrom_into": lambda: (fresh()[0], bytearray(10)),
            "sock_sendall": lambda: (full(), b"data"),
            "sock_sendfile": lambda: (fresh()[0], open("/proc/self/status", "rb", 0)),
        }
        WITHOUT_ARGUMENTS = {
            "close", "create_future", "get_debug", "get_exception_handler", "get_task_factory",
            "is_closed", "is_running", "run_forever", "shutdown_asyncgens",
            "shutdown_default_executor", "stop", "time",
        }
        for name in public(loop):
            if name not in CALLS and name not in WITHOUT_ARGUMENTS:
                continue
            for again in "", " again":
                arguments = CALLS.get(name, tuple)()
                if isinstance(loop, asyncio.SelectorEventLoop):
                    # Since 3.14.8 asyncio closes the socket of a transport that came to nothing,
                    # and takes the next one of that number for it.
                    loop._transports.clear()
                say(name + again, "->", attempt(getattr(loop, name), *arguments))
        for method, *arguments in (
            ("sock_recv", readable(), 10),
            ("sock_recv_into", readable(), bytearray(10)),
            ("sock_sendall", readable(), b"data"),
            ("create_connection", P),
            ("_make_socket_transport", fresh()[0], P()),
            ("_make_datagram_transport", datagrams(), asyncio.DatagramProtocol()),
            ("_make_read_pipe_transport", fresh()[0], P()),
            ("_make_write_pipe_transport", fresh()[0], P()),
        ):
            say(method, "at once ->", attempt(getattr(loop, method), *arguments))
        say("create_connection with a socket ->",
            attempt(lambda: loop.create_connection(P, sock=fresh()[0])))
        say("create_server with a socket ->",
            attempt(lambda: loop.create_server(P, sock=listener())))
        for number, method in enumerate(("cancel", "done", "get_coro")):
            say("a task", method, "->", attempt(getattr(waiting[number], method)))
        del waiting
        gc.collect()
        """,
    )


def test_coroutines_of_the_socket_methods(loop_kind):
    """They begin before the loop is closed, and are resumed, thrown into or closed after it."""
    compare(
        loop_kind,
        """
        def begin(loop, method):
            left, right = socket.socketpair()
            for sock in left, right:
                sock.setblocking(False)
            if method == "sock_sendall":
                call = loop.sock_sendall(left, BIG)
            elif method == "sock_recv":
                call = loop.sock_recv(left, 10)
            else:
                call = getattr(loop, method)(left, bytearray(10))
            call.send(None)
            return left, right, call

        for method in "sock_recv", "sock_recv_into", "sock_sendall":
            for act in "send", "throw", "close":
                for closed in False, True:
                    loop = new_loop()
                    left, right, call = begin(loop, method)
                    if closed:
                        left.close()
                        right.close()
                    loop.close()
                    if act == "throw":
                        answer = attempt(call.throw, LookupError)
                    elif act == "close":
                        answer = attempt(call.close)
                    else:
                        answer = "is its own affair"
                        forgets(call.send, None)
                    say(f"{method} {act}, closed={closed} ->", answer)
                    forgets(call.send, None)
                    call.close()
                    repr(call)
                    left.close()
                    right.close()
                    del call, loop
                    gc.collect()
        """,
    )


# --- objects of every native class, initialised or not -------------------------------------------

EVERYTHING = """\
import importlib, pkgutil, mgloop

def is_native(kind):
    HEAP_TYPE = 1 << 9      # made by a class statement
    return kind.__module__.partition(".")[0] == "mgloop" and not kind.__flags__ & HEAP_TYPE

def native_types():
    '''The classes that are written in Cython, by their names.'''
    found = {}
    def add(kind):
        if is_native(kind):
            found[f"{kind.__module__}.{kind.__qualname__}"] = kind
            for base in kind.__mro__[1:]:
                add(base)
    for info in pkgutil.walk_packages(mgloop.__path__, "mgloop."):
        if "pytest" in info.name:
            continue
        for thing in vars(importlib.import_module(info.name)).values():
            if isinstance(thing, type):
                add(thing)
    return found

# Called without end on an open loop, as they are meant to be.
WAITING = {"_run_once", "run_forever", "run_until_complete"}
# Opens the stream, and then reading waits for data.
WAITING_STREAM = {"StreamInput": {"__init__"}}
NOT_OURS = {"__class__", "__del__", "__new__", "__init_subclass__", "__subclasshook__",
            "__reduce_ex__", "__reduce__", "__getattribute__", "__setattr__", "__delattr__",
            "__dir__", "__sizeof__", "__format__"}
def nothing(*args):
    pass

MANY = [(), (None,), (None, None), (None, None, None), (5,), (b"x",), (b"x", None), (nothing,),
        (0, nothing), (None, nothing), ("name", 5)]

def shake(thing, but=()):
    '''Call, and get, whatever `thing` has.'''
    for name in dir(thing):
        if name in but or name in NOT_OURS:
            continue
        say("   ", name)
        try:
            member = getattr(thing, name)
        except Exception:
            continue
        if callable(member):
            for args in [*ARGUMENTS.get(name, ()), *MANY]:
                forgets(member, *args)
    for act in repr, str, hash, bool, len, iter, next, list, bytes, memoryview, drive:
        say("   ", act)
        forgets(act, thing)
    forgets(lambda: thing == thing)
    forgets(lambda: thing < thing)
    forgets(lambda: type(thing)(thing))
    for name in dir(thing):
        if not name.startswith("__"):
            forgets(setattr, thing, name, None)
            forgets(delattr, thing, name)
"""


@pytest.mark.mgloop_only
def test_blank_objects(in_child):
    """`kind.__new__(kind)` and `kind()` of each native class, all methods: no crash."""
    code = """
        types = native_types()
        missing = {
            "_handle.Handle", "_handle.TimerHandle", "_handle.ThreadSafeHandle", "_loop.LoopCore",
            "_loop.Watcher", "_interest.FdWatch", "_sock.SockCall", "transports._stream.Stream",
            "transports._listener.Listener", "transports._datagram.Datagram",
            "transports._pipe.ReadPipe", "transports._pipe.WritePipe",
            "tls._direct_engine.DirectEngine", "tls._module_engine.ModuleEngine",
            "tls._protocol.SSLProtocol",
        } - {name.removeprefix("mgloop.") for name in types}
        assert not missing, missing
        gc.freeze()  # the modules, which each collection would traverse
        for name, kind in sorted(types.items()):
            waits = WAITING if hasattr(kind, "_run_once") else WAITING_STREAM.get(kind.__name__, ())
            for make in lambda: kind.__new__(kind), kind:
                say(name)
                try:
                    thing = make()
                except Exception:
                    continue
                shake(thing, waits)
                gc.collect()
                del thing
                gc.collect()
        say("survived")
        """
    program = _ANSWERS + EVERYTHING + textwrap.dedent(code)
    out, _ = in_child(program)
    assert out.endswith("survived\n")


@pytest.mark.mgloop_only
def test_every_object_of_a_closed_loop(in_child, tmp_path):
    """All objects of mgloop's classes known to the collector, including private ones: no crash."""
    code = """
        async def main(loop):
            things = []
            for make in MAKERS:
                for act in STATES.values():
                    transport, protocol = await (await make(loop, kept))
                    act(transport)
                    things.append(transport)
            things.append(await loop.create_server(Anything, "127.0.0.1", 0))
            things.append(await loop.create_unix_server(Anything, f"{PATH}/server"))
            for _ in range(3):
                left, right = socket.socketpair()
                left.setblocking(False)
                kept.extend([left, right])
                things.append(loop.create_task(loop.sock_recv(left, 10)))
                things.append(loop._add_reader(right, len, "x"))
                things.append(loop._add_writer(right, len, "x"))
                things.append(loop.call_later(1000, len, "x"))
                things.append(loop.call_soon(len, "x"))
                things.append(loop.call_soon_threadsafe(len, "x"))
            await asyncio.sleep(0)
            return things

        kept = []
        loop = quiet_loop()
        things = loop.run_until_complete(main(loop))
        things += [loop.call_soon(len, "x"), loop.call_soon_threadsafe(len, "x")]
        loop.close()
        found = [thing for thing in gc.get_objects() if is_native(type(thing))]
        known = {id(thing) for thing in found}
        found += [thing for thing in things if id(thing) not in known]
        names = {type(thing).__qualname__ for thing in found}
        assert {"Stream", "Datagram", "ReadPipe", "WritePipe", "TimerHandle"} <= names, names
        for thing in found:
            say(type(thing).__qualname__)
            shake(thing)
        shake(loop)
        del found, things, thing
        gc.collect()
        say("survived")
        """
    makers = ", ".join(f"make_{make}" for make in MAKERS)
    program = (
        f"{_ANSWERS}{TRANSPORTS}{EVERYTHING}PATH = {str(tmp_path)!r}\nMAKERS = [{makers}]\n"
        + textwrap.dedent(code)
    )
    out, _ = in_child(program)
    assert out.endswith("survived\n")
