# SPDX-License-Identifier: GPL-2.0-only
"""Any call at any time may raise an exception, but never crashes.

Native objects can be reached before they are initialised, after their connection or their loop has
ended, and with any argument. Each program here calls everything that Python can see of the TLS
protocol and its transport, in a separate interpreter; the test is that it ends with exit status 0.
"""

import pathlib

import certificates
import pytest
import support

pytestmark = pytest.mark.skipif(not certificates.available, reason=certificates.SKIPPED)

PREAMBLE = f"""
import contextlib, faulthandler, gc, logging, ssl
import asyncio.sslproto
faulthandler.enable()
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
sys.unraisablehook = lambda unraisable: None
sys.path.insert(0, {str(pathlib.Path(__file__).parent / "protocol")!r})
import certificates
from harness import App, BufferedApp, Connection
if KIND == "mgloop":
    from mgloop.tls._protocol import SSLProtocol
else:
    SSLProtocol = asyncio.sslproto.SSLProtocol

server, client = certificates.contexts()
contexts = client, server

def new(app=App, **kwargs):
    loop = new_loop()
    loop.set_exception_handler(lambda loop, context: None)
    return Connection(loop, SSLProtocol, contexts, app(), **kwargs)

def lost(connection):
    connection.lose()
    return connection

def loop_closed(connection):
    connection.loop.close()
    return connection

def begin(connection):
    connection.proto.connection_made(connection.below)
    connection.arrive(b"garbage"[:3])
    return connection

def paused(connection):
    connection.app.transport.pause_reading()
    connection.proto.pause_writing()
    connection.arrive(connection.peer_says(b"a", b"b" * 20_000))
    connection.app.transport.write(b"c" * 20_000)
    return connection

def closing(connection):
    connection.app.transport.close()
    return connection

STAGES = {{
    "new": new,
    "handshake": lambda: begin(new()),
    "handshake, loop closed": lambda: loop_closed(begin(new())),
    "connected": lambda: new().shake_hands(),
    "connected, buffered": lambda: new(lambda: BufferedApp(10)).shake_hands(),
    "connected, loop closed": lambda: loop_closed(new().shake_hands()),
    "paused": lambda: paused(new().shake_hands()),
    "paused, loop closed": lambda: loop_closed(paused(new().shake_hands())),
    "closing": lambda: closing(new().shake_hands()),
    "closing, loop closed": lambda: loop_closed(closing(new().shake_hands())),
    "lost": lambda: lost(new().shake_hands()),
    "lost, unwanted, loop closed":
        lambda: loop_closed(lost(closing(closing(new().shake_hands())))),
}}

def call(function, *args):
    with contextlib.suppress(Exception):
        return function(*args)

def call_one(thing, name, values):
    \"\"\"Set, delete, read and call `name` of `thing`, with none to two of `values`.\"\"\"
    for value in values:
        call(setattr, thing, name, value)
    call(delattr, thing, name)
    attribute = call(getattr, thing, name)
    if callable(attribute):
        call(attribute)
        for first in values:
            call(attribute, first)
            for second in values[::4]:
                call(attribute, first, second)

def names_of(kind):
    return [name for name in dir(kind) if name not in ("__class__", "__getattribute__")]

def finish(loop):
    if not loop.is_closed():
        turn(loop, 3)
        loop.close()

def values_for(connection):
    proto = connection.proto
    return [
        None, 0, -1, 100, 10**30, b"", b"data", bytearray(5000), memoryview(b"abcd")[::2], "text",
        object(), OSError("no"), App(), BufferedApp(0), [b"x", bytearray(7)], connection.loop,
        connection.below, proto, ssl.MemoryBIO(), connection.peer, server,
    ]

gc.freeze()  # the modules, which each collection would look through
"""


def run_misuse(kind, code):
    support.run_python(kind, PREAMBLE + code)


STAGES = [
    line.split('"')[1] for line in PREAMBLE.splitlines() if line.startswith('    "') and ":" in line
]


@pytest.mark.mgloop_only
@pytest.mark.parametrize("stage", STAGES)
def test_each_method_at_each_stage(loop_kind, stage):
    run_misuse(
        loop_kind,
        f"""
def make():
    connection = STAGES[{stage!r}]()
    connection.transport = getattr(connection.app, "transport", connection.proto._app_transport)
    return connection

for which in ("proto", "transport"):
    sample = make()
    everything, values = getattr(sample, which), values_for(sample)
    for name in names_of(type(everything)):
        connection = make()
        call_one(getattr(connection, which), name, values_for(connection))
        finish(connection.loop)
        call_one(everything, name, values)
    finish(sample.loop)
gc.collect()
""",
    )


@pytest.mark.mgloop_only
def test_each_method_of_what_was_never_initialised(loop_kind):
    run_misuse(
        loop_kind,
        """
connection = new().shake_hands()
values = values_for(connection)
for kind in (type(connection.proto), type(connection.app.transport)):
    for name in names_of(kind):
        blank = kind.__new__(kind)
        call_one(blank, name, [*values, blank])
finish(connection.loop)
gc.collect()
""",
    )


@pytest.mark.mgloop_only
def test_a_stream_over_a_protocol_that_was_never_initialised(loop_kind):
    run_misuse(
        loop_kind,
        """
from mgloop.transports._stream import Stream
loop = new_loop()
reports = []
loop.set_exception_handler(lambda loop, context: reports.append(context["exception"]))
ours, peer = socket.socketpair()
ours.setblocking(False)
stream = Stream(loop, ours, SSLProtocol.__new__(SSLProtocol))
peer.send(b"data")
turn(loop, 5)
assert reports and all(isinstance(exc, AttributeError) for exc in reports), reports
assert stream.is_closing()
peer.close()
loop.close()
""",
    )


@pytest.mark.mgloop_only
def test_a_second_init(loop_kind):
    run_misuse(
        loop_kind,
        """
connection = new().shake_hands()
for again in (
    lambda: connection.proto.__init__(connection.loop, App(), server, None, True),
    lambda: connection.app.transport.__init__(connection.loop, connection.proto),
):
    try:
        again()
    except RuntimeError as exc:
        assert "twice" in str(exc)
    else:
        raise AssertionError
assert connection.app.transport._ssl_protocol is connection.proto
connection.lose()
connection.loop.close()
""",
    )


@pytest.mark.mgloop_only
def test_the_arrival_buffer_stays_in_place(loop_kind):
    run_misuse(
        loop_kind,
        """
connection = new().shake_hands()
view = connection.proto.get_buffer(-1)
memory = view.obj
view.release()
try:
    memory.clear()
except BufferError:
    pass
else:
    raise AssertionError
# What a native transport does with it.
connection.proto.buffer_updated(256 * 1024)
connection.lose()
connection.loop.close()
""",
    )


def test_an_ssl_object_that_returns_something_else(loop_kind):
    run_misuse(
        loop_kind,
        """
answers = [b"x" * 1_000_000, bytearray(5), memoryview(b"x" * 20), "text", 7, None, [b"x"], b""]

class Odd(ssl.SSLObject):
    answer = None

    def read(self, *args):
        if Odd.answer is None:
            return super().read(*args)
        answer, Odd.answer = Odd.answer, None
        return answer[0]

server.sslobject_class = Odd
for app in (App, lambda: BufferedApp(100)):
    for answer in answers:
        connection = new(app).shake_hands()
        Odd.answer = [answer]
        try:
            connection.arrive(connection.peer_says(b"data"))
        except TypeError:
            pass
        turn(connection.loop, 3)
        connection.lose()
        connection.loop.close()
""",
    )


@pytest.mark.mgloop_only
def test_an_ssl_object_that_says_it_has_written_something_else(loop_kind):
    run_misuse(
        loop_kind,
        """
class Odd(ssl.SSLObject):
    answer = None

    def write(self, data):
        super().write(data)
        return Odd.answer

server.sslobject_class = Odd
for Odd.answer in (-1, -10**9, 10**9, 10**30, None, "text", 0):
    for size in (10, 5000, 300_000):
        write = lambda app, data=None: app.transport.write(bytearray(size))
        for app in (App, lambda: App(write)):
            connection = new(app).shake_hands()
            connection.arrive(connection.peer_says(b"data"))
            write(connection.app)
            connection.app.transport.writelines([b"x" * size] * 3)
            turn(connection.loop, 3)
            connection.lose()
            connection.loop.close()
""",
    )


def test_the_collector_of_another_thread(loop_kind):
    """Unreferenced connections are collected in whichever thread the collector runs."""
    run_misuse(
        loop_kind,
        """
stop = threading.Event()

def collect():
    while not stop.is_set():
        gc.collect()

thread = threading.Thread(target=collect, daemon=True)
thread.start()
gc.disable()
used = []
for stage in STAGES.values():
    for _ in range(2):
        connection = stage()
        connection.knot = connection.app
        connection.app.knot = connection
        used.append(connection.loop)
        del connection
stop.set()
thread.join()
for loop in used:
    if not loop.is_closed():
        turn(loop)
        loop.close()
""",
    )
