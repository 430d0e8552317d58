# SPDX-License-Identifier: GPL-2.0-only
"""The sockets that a server listens on: created from options, inherited, shared and removed."""

import contextlib
import os
import socket
import stat
import subprocess
import sys

import pytest
import support
from commands import Command, environment, get, serve, write_app

from mgloop.http import Config, ConfigError, StartError
from mgloop.http.process import sockets as listening


@pytest.fixture(autouse=True)
def no_descriptor_leaks():
    before = support.open_fds()
    yield
    assert not support.fds_opened_since(before)


@pytest.fixture
def opened():
    """Yield a function from options to Listeners, which are closed after the test."""
    made = []

    def function(environ=None, **options):
        config = Config(app="main:app", **{"port": 0, **options})
        made.append(listening.open_all(config, {} if environ is None else environ))
        return made[-1]

    yield function
    for listeners in made:
        listeners.close()


def test_host_and_port(opened):
    (url,) = opened().urls
    host, _, port = url.rpartition(":")
    assert host == "http://127.0.0.1"
    assert int(port) > 0


def test_the_scheme_is_that_of_the_connections(opened):
    assert opened(ssl_certfile="not read here").urls[0].startswith("https://")


def test_a_name_is_resolved_and_has_one_port_on_all_its_addresses(opened):
    urls = opened(host="localhost").urls
    assert urls
    assert len({url.rpartition(":")[2] for url in urls}) == 1


@support.needs_ipv6
def test_a_port_that_is_anothers_on_the_second_address_is_not_taken(opened, monkeypatch):
    families = []
    others = []

    def tcp_address(family, address, slots):
        families.append(family)
        if len(families) == 2:
            others.append(socket.create_server(address, family=family))
        return listening_on(family, address, slots)

    listening_on = listening._tcp_address
    monkeypatch.setattr(listening, "_tcp_address", tcp_address)
    try:
        urls = opened(host="").urls
    finally:
        for other in others:
            other.close()
    assert len(urls) == 2
    assert len({url.rpartition(":")[2] for url in urls}) == 1
    assert len(families) >= 4


@support.needs_ipv6
def test_ipv6_is_bound_beside_ipv4(opened):
    for _ in range(10):  # another process may have the port over IPv4
        listeners = opened(bind=["[::]:0"])
        port = listeners.addresses[0].sockets[0].getsockname()[1]
        assert listeners.urls == [f"http://[::]:{port}"]
        with contextlib.suppress(StartError):
            assert opened(bind=[f"0.0.0.0:{port}"]).urls == [f"http://0.0.0.0:{port}"]
            return
    pytest.fail("never bound over both")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", ("a", 1)),
        ("a", ("a", 8000)),
        (":1", ("", 1)),
        ("[::1]:1", ("::1", 1)),
        ("[::1]", ("::1", 8000)),
        ("::1", ("::1", 8000)),
    ],
)
def test_the_forms_of_bind(text, expected):
    assert listening._parse(text, 8000) == expected


def test_several_addresses(opened, tmp_path):
    path = str(tmp_path / "a.sock")
    listeners = opened(bind=["127.0.0.1:0", "127.0.0.1:0", f"unix:{path}"])
    assert len(listeners.urls) == 3
    assert listeners.urls[2] == f"unix:{path}"


def test_each_worker_has_a_socket_of_its_own_at_the_same_port(opened):
    listeners = opened(workers=3)
    numbers = [sock.getsockname() for sock in listeners.addresses[0].sockets]
    assert len(numbers) == 3
    assert len(set(numbers)) == 1
    inodes = set()
    for slot in range(3):
        (sock,) = listeners.of_slot(slot)
        with sock:
            inodes.add(os.fstat(sock.fileno()).st_ino)
    assert len(inodes) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_of_several_workers_cannot_be_bound_unnoticed(opened, workers):
    listeners = opened(workers=2)
    for sock in listeners.addresses[0].sockets:
        sock.listen()
    port = listeners.addresses[0].sockets[0].getsockname()[1]
    with pytest.raises(StartError, match=f"127.0.0.1:{port}: address already in use"):
        opened(workers=workers, port=port)


def test_waiting_connections_outlive_their_worker(opened):
    listeners = opened(workers=2)
    for sock in listeners.addresses[0].sockets:
        sock.listen()
    address = listeners.addresses[0].sockets[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(20)]
    accepted = []
    for slot in (0, 1):
        for _ in range(2):  # the second is the worker that replaces the first
            (sock,) = listeners.of_slot(slot)
            with sock:
                try:
                    while True:
                        accepted.append(sock.accept()[0])
                        if len(accepted) % 3 == 0:
                            break
                except BlockingIOError:
                    pass
    for slot in (0, 1):
        (sock,) = listeners.of_slot(slot)
        with sock:
            try:
                while True:
                    accepted.append(sock.accept()[0])
            except BlockingIOError:
                pass
    assert len(accepted) == 20
    for sock in (*clients, *accepted):
        sock.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "192.0.2.1"}, "192.0.2.1:0: cannot assign requested address"),
        ({"host": "no such host.invalid"}, "cannot listen on 'no such host.invalid'"),
        ({"uds": "/no/such/folder/a.sock"}, "cannot listen on /no/such/folder/a.sock"),
        ({"uds": "/tmp/" + "a" * 200}, "choose a shorter path"),
        ({"uds": "/dev/null"}, "/dev/null exists and is not a socket"),
        ({"fd": 999}, "--fd 999 is not a socket"),
        ({"fd": 0}, "--fd 0 is no"),
        ({"bind": ["127.0.0.1:0", "192.0.2.1:0"]}, "cannot assign requested address"),
    ],
)
def test_a_failed_bind_is_reported_in_one_line(opened, options, says, tmp_path):
    with pytest.raises(StartError) as caught:
        opened(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a:b", "a:70000", "unix:"])
def test_a_bind_that_is_no_address_is_one_line(opened, text):
    with pytest.raises(ConfigError):
        opened(bind=text)


# --- UNIX sockets --------------------------------------------------------------------------------


def test_a_unix_socket_has_its_mode_and_is_removed(opened, tmp_path):
    path = tmp_path / "a.sock"
    listeners = opened(uds=path, uds_mode="600")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listeners.close()
    assert not path.exists()


@pytest.mark.parametrize("mode", ["600", "660", "666", "777", "000"])
@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_a_unix_socket_is_made_with_its_mode(opened, tmp_path, monkeypatch, mode, umask):
    """It never has another mode, and no chmod() can affect another file at the path."""
    monkeypatch.setattr(os, "chmod", None)
    path = tmp_path / "a.sock"
    before = os.umask(umask)
    try:
        opened(uds=path, uds_mode=mode)
    finally:
        after = os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)
    assert after == umask


@pytest.mark.parametrize(
    ("given", "expected"), [({}, 0o600), ({"uds_mode": "640"}, 0o640)], ids=["kept", "given"]
)
def test_the_mode_of_a_stale_unix_socket(opened, tmp_path, given, expected):
    """An administrator may restrict a socket that way; uvicorn also keeps the mode."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    path.chmod(0o600)
    opened(uds=path, **given)
    assert stat.S_IMODE(path.stat().st_mode) == expected


def test_the_mode_of_a_unix_socket_by_default(opened, tmp_path):
    opened(uds=tmp_path / "a.sock")
    assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o666


def test_a_stale_unix_socket_is_replaced(opened, tmp_path):
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    assert path.exists()
    assert opened(uds=path).urls == [f"unix:{path}"]


@pytest.mark.parametrize(
    ("kind", "listens"),
    [
        (socket.SOCK_STREAM, True),
        (socket.SOCK_STREAM, False),  # the application is still being imported
        (socket.SOCK_DGRAM, False),
    ],
)
def test_a_unix_socket_in_use_is_refused_and_stays(opened, tmp_path, kind, listens):
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))
        if listens:
            sock.listen()
        before = path.stat().st_ino
        with pytest.raises(StartError, match=r"a\.sock: address already in use"):
            opened(uds=path)
        assert path.stat().st_ino == before


def test_one_unix_socket_twice_is_refused(opened, tmp_path):
    path = tmp_path / "a.sock"
    with pytest.raises(StartError, match=r"a\.sock: address already in use"):
        opened(bind=[f"unix:{path}", f"unix:{path}"])
    assert not path.exists()


def test_somebody_elses_unix_socket_is_not_removed(opened, tmp_path):
    path = tmp_path / "a.sock"
    listeners = opened(uds=path)
    path.unlink()
    other = opened(uds=path)
    listeners.close()
    assert path.exists()
    other.close()
    assert not path.exists()


def test_an_abstract_unix_socket(opened):
    name = f"@mgloop-test-{os.getpid()}"
    assert opened(uds=name).urls == [f"unix:{name}"]


def test_serving_on_a_unix_socket(tmp_path):
    write_app(tmp_path)
    path = tmp_path / "a.sock"
    with serve(tmp_path, "--uds", path) as command:
        url = command.url()
        assert url == f"unix:{path}"
        assert get(url) == str(command.pid)
        assert command.stop() == 0
    assert not path.exists()


# --- inherited descriptors -----------------------------------------------------------------------


def test_an_inherited_socket(tmp_path):
    write_app(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        arguments = ["serve", "main:app", "--fd", sock.fileno()]
        with Command(*arguments, cwd=tmp_path, pass_fds=[sock.fileno()]) as command:
            host, port = sock.getsockname()
            assert command.url() == f"http://{host}:{port}"
            assert get(f"http://{host}:{port}") == str(command.pid)
            assert command.stop() == 0


def test_a_datagram_socket_is_refused(opened):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        with pytest.raises(StartError, match="is not a TCP or UNIX stream socket"):
            opened(fd=sock.fileno())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_a_socket_without_an_address_is_refused(opened, family):
    with socket.socket(family) as sock:
        with pytest.raises(StartError, match="is not bound to an address"):
            opened(fd=sock.fileno())


@pytest.mark.parametrize(("more", "count"), [(1, "1"), (0, "\u00b2")])
def test_systemds_variables_that_are_not_for_us_are_ignored(opened, more, count):
    environ = {"LISTEN_PID": str(os.getpid() + more), "LISTEN_FDS": count}
    assert opened(environ).urls[0].startswith("http://127.0.0.1:")
    assert "LISTEN_FDS" in environ


#: Like systemd: the socket is descriptor 3, and the variables name the executed process.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
os.execv(sys.executable, [sys.executable, "-m", "mgloop", *sys.argv[2:]])
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_socket_activation(tmp_path, workers):
    write_app(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        fd = str(sock.fileno())
        arguments = ["serve", "main:app", "--workers", str(workers)]
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, fd, *arguments],
            cwd=tmp_path,
            env=environment(),
            pass_fds=[sock.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # It already listens: the connection waits until a worker accepts it.
            url = "http://{}:{}".format(*sock.getsockname())
            pid = int(get(url))
            assert (pid == process.pid) == (workers == 1)
            assert get(url, "/env/LISTEN_FDS") == ""
            process.terminate()
            assert process.wait(support.PATIENCE * 3) == 0
        finally:
            process.kill()
            process.wait()
