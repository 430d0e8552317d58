# SPDX-License-Identifier: GPL-2.0-only
"""The fixtures that all tests of mgloop share.

A test that requests ``loop`` or ``loop_factory`` runs twice, as ``[asyncio]`` and as ``[mgloop]``:
the standard library's loop proves the test, and mgloop has to pass the proven test. Mark a test
``mgloop_only`` if only mgloop has the behaviour. A test that is a coroutine function runs on the
fixture ``loop``.

The fixtures also check for leaks. After a test its loops must be closed and no task may be pending.
The loop's exception handler must not have received an unexpected exception, and the process must
have the same descriptors as before. A leak therefore fails the test that caused it, not a later
one.
"""

import asyncio
import compileall
import functools
import gc
import inspect
import os
import pkgutil
import shutil
import signal
import ssl
import sys
import tempfile
from pathlib import Path

import certificates
import peers
import pytest
import support

LOOP_KINDS = ("asyncio", "mgloop")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the option
def pytest_configure(config):
    if support.SLOWNESS != 1 and config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * support.SLOWNESS
    # A script's background job ignores SIGINT, and programs started by tests would inherit this.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "mgloop_only: the behaviour is mgloop's own; skip asyncio")
    config.addinivalue_line(
        "markers",
        "without_debug: loops are not in debug mode, not even in Python's development mode",
    )
    # Otherwise exceptions in __del__ or in a thread are lost, because pytest only warns.
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")
    if not hasattr(config, "workerinput"):
        speed_up_imports(give_temporary_folder(config))


# The suite has its own temporary folder, which must be empty at the end. pytest's own folders are
# elsewhere, because they outlive the run on purpose. The workers of pytest-xdist inherit the
# environment.
temporary_folder = pytest.StashKey[Path]()


def give_temporary_folder(config):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="mgloop-"))
    folder.chmod(0o1777)  # tests run programs as other users
    config.stash[temporary_folder] = folder
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def speed_up_imports(folder):
    """Replace the import hook of an editable installation in the processes that tests start.

    See children/_mgloop_editable_loader.py, whose list of modules this writes to `folder`.
    """
    hook = next((f for f in sys.meta_path if type(f).__module__ == "_mgloop_editable_loader"), None)
    if hook is None or "MGLOOP_TEST_MODULES" in os.environ:
        return

    def modules(name):
        spec = hook.find_spec(name)
        if spec.origin is not None:
            yield name, spec.origin
        for module in pkgutil.iter_modules(spec.submodule_search_locations or (), f"{name}."):
            yield from modules(module.name)

    found = dict(modules("mgloop"))
    compileall.compile_dir(Path(found["mgloop"]).parent, quiet=2)
    listing = folder / "modules"
    listing.write_text("".join(f"{name}\t{path}\n" for name, path in found.items()))
    os.environ["MGLOOP_TEST_MODULES"] = str(listing)
    os.environ["PYTHONPATH"] = support.python_path(Path(__file__).with_name("children"))


@pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its workers
def pytest_sessionfinish(session):
    folder = session.config.stash.get(temporary_folder, None)
    if folder is None:
        return
    left = sorted({path.name for path in folder.iterdir()} - {"modules"})
    shutil.rmtree(folder, ignore_errors=True)
    if left:
        print(f"\nThe tests left files in the temporary folder: {', '.join(left)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser):
    parser.addoption(
        "--loops",
        type=lambda names: names.split(","),
        default=LOOP_KINDS,
        help="which loops to test; the memory checks leave asyncio's own out",
    )


def pytest_generate_tests(metafunc):
    if "loop_kind" in metafunc.fixturenames:
        mgloop_only = metafunc.definition.get_closest_marker("mgloop_only")
        wanted = metafunc.config.getoption("loops")
        kinds = ("mgloop",) if mgloop_only else [kind for kind in LOOP_KINDS if kind in wanted]
        metafunc.parametrize("loop_kind", kinds, ids=kinds)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test on the fixture ``loop`` if it is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "loop" not in pyfuncitem.funcargs:
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    fixtures["loop"].run_until_complete(pyfuncitem.obj(**fixtures))
    return True


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    """Start the fork server before a test compares descriptors."""
    server = support.fork_server()
    yield
    server.close()


@pytest.fixture(scope="module", autouse=True)
def frozen():
    # The fixtures collect garbage after each test; gc.freeze() excludes the modules' objects.
    gc.collect()
    gc.freeze()


class Reported:
    """The contexts that the loop's exception handler received.

    A test that provokes a report removes it with :meth:`pop`. The test fails if a report remains at
    its end.
    """

    def __init__(self):
        self.contexts = []

    def record(self, loop, context):
        """Record a context; this is the argument of ``loop.set_exception_handler``."""
        self.contexts.append(context)

    def pop(self, exception=None):
        """Remove and return the oldest context; its exception must be an `exception`, if given."""
        assert self.contexts, "nothing was reported to the loop's exception handler"
        context = self.contexts.pop(0)
        if exception is not None:
            assert isinstance(context.get("exception"), exception), context
        return context

    def pop_all(self):
        """Remove and return all contexts so far."""
        contexts, self.contexts = self.contexts, []
        return contexts

    def check(self):
        unexpected = self.pop_all()
        assert not unexpected, f"unexpected reports to the exception handler: {unexpected}"


@pytest.fixture
def reported():
    """Return the reports to the exception handler of ``loop``: see :class:`Reported`."""
    return Reported()


@pytest.fixture
def loop_factory(request, loop_kind):
    """Return a function that makes a loop of the kind under test; the test closes the loop."""
    before = support.open_fds()
    made = []

    def factory(**kwargs):
        loop = support.new_loop(loop_kind, **kwargs)
        if request.node.get_closest_marker("without_debug"):
            loop.set_debug(False)
        made.append(loop)
        return loop

    yield factory

    left_open = [loop for loop in made if not loop.is_closed()]
    for loop in left_open:
        support.finish(loop)
    made.clear()
    leaked = support.fds_opened_since(before)
    assert not left_open, f"loops that the test did not close: {left_open}"
    assert not leaked, f"descriptors leaked: {leaked}"


@pytest.fixture
def in_child(loop_kind):
    """Return :func:`support.run_python` for the kind of loop under test."""
    return functools.partial(support.run_python, loop_kind)


@pytest.fixture
def loop(loop_factory, reported):
    """Yield an open loop that is not running; close and check it after the test."""
    loop = loop_factory()
    loop.set_exception_handler(reported.record)
    yield loop
    pending = support.finish(loop)
    assert loop.is_closed()
    # Lost futures and tasks report their exceptions when they are collected.
    gc.collect()
    reported.check()
    assert not pending, f"tasks still pending when the test was over: {pending}"


@pytest.fixture
def run(loop):
    """Return ``run(awaitable)``, which runs ``loop`` until it is done and returns its result."""
    return loop.run_until_complete


@pytest.fixture
def debug_loop(loop):
    """Return ``loop`` in debug mode."""
    loop.set_debug(True)
    return loop


@pytest.fixture
def socketpair():
    """Yield two connected, non-blocking AF_UNIX stream sockets."""
    with support.nonblocking_socketpair() as pair:
        yield pair


@pytest.fixture
def tcp_pair():
    """Yield two connected, non-blocking TCP sockets on 127.0.0.1."""
    with support.nonblocking_tcp_pair() as pair:
        yield pair


@pytest.fixture
def left(socketpair):
    """Return the first socket of ``socketpair``."""
    return socketpair[0]


@pytest.fixture
def right(socketpair):
    """Return the second socket of ``socketpair``."""
    return socketpair[1]


@pytest.fixture
def ours(tcp_pair):
    """Return the connecting end of ``tcp_pair``."""
    return tcp_pair[0]


@pytest.fixture
def peer(tcp_pair):
    """Return the accepted end of ``tcp_pair``."""
    return tcp_pair[1]


@pytest.fixture
def recorder():
    """Return the class of ``protocol``; ``peers.either_protocol`` parametrizes it."""
    return peers.Recorder


@pytest.fixture
def protocol(recorder, loop):
    """Return a protocol that records its calls."""
    return recorder(loop)


@pytest.fixture
def client(loop):
    """Return a protocol that records its calls, for the client of a connection."""
    return peers.Recorder(loop)


@pytest.fixture
def server(loop):
    """Return a protocol that records its calls, for the server's end of a connection."""
    return peers.Recorder(loop)


@pytest.fixture
def short_path():
    """Yield a path that is short enough for AF_UNIX."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield os.path.join(folder, "socket")


@pytest.fixture(scope="session")
def certificate_authority():
    """Return a temporary certificate authority (``trustme.CA``)."""
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    return certificates.authority()


@pytest.fixture(scope="session")
def server_certificate(certificate_authority):
    """Return a ``trustme.LeafCert`` for localhost, 127.0.0.1 and ::1."""
    return certificate_authority.issue_cert("localhost", "127.0.0.1", "::1")


@pytest.fixture
def server_ssl_context(server_certificate):
    """Return an ``ssl.SSLContext`` for servers on localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_certificate.configure_cert(context)
    return context


@pytest.fixture
def client_ssl_context(certificate_authority):
    """Return an ``ssl.SSLContext`` for clients, which trusts only ``server_ssl_context``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate_authority.configure_trust(context)
    return context


@pytest.fixture
def contexts(client_ssl_context, server_ssl_context):
    """Return keyword arguments for ``peers.connected_pair()``."""
    return {"client_ssl": client_ssl_context, "server_ssl": server_ssl_context}


@pytest.fixture(autouse=True)
def no_current_loop():
    """Remove the current event loop and policy that the test may have installed."""
    yield
    support.reset_current_loop()
    assert asyncio._get_running_loop() is None
