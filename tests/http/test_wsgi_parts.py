# SPDX-License-Identifier: GPL-2.0-only
"""wsgi.errors, wsgi.file_wrapper and the variables of TLS, each without a server."""

import gzip
import io
import logging
import os
import ssl
import tempfile
import threading
import traceback

import pytest
from support import open_fds

from mgloop.http.wire._errorlog import ErrorLog
from mgloop.http.wire._filewrapper import FileWrapper, plain_file
from mgloop.http.wire._peer import host_of, remote
from mgloop.http.wire._tlsvariables import variables

CONTENT = bytes(range(256)) * 1000


# --- wsgi.errors ---------------------------------------------------------------------------------


@pytest.fixture
def lines(caplog):
    """Return a function that returns the messages that were logged since its last call."""
    caplog.set_level(logging.ERROR, "mgloop.http")

    def logged():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return logged


def test_complete_lines_are_logged(lines):
    errors = ErrorLog()
    print("one", file=errors)
    errors.write("two")
    assert lines() == ["one"]
    errors.write(" parts\n")
    errors.writelines(["three\n", "100 %\n", "\n"])
    assert lines() == ["two parts", "three", "100 %"]


def test_text_in_one_write_is_one_record(lines):
    ErrorLog().write("Traceback:\n  a line\n")
    assert lines() == ["Traceback:\n  a line"]


def test_flush_logs_an_incomplete_line(lines):
    errors = ErrorLog()
    errors.write("incomplete")
    errors.flush()
    errors.flush()
    assert lines() == ["incomplete"]


def test_a_line_without_end_is_logged(lines):
    errors = ErrorLog()
    for _ in range(100):
        errors.write("x" * 1000)
    assert sum(map(len, lines())) > 60_000


def test_a_traceback(lines):
    try:
        raise ValueError("reason")
    except ValueError:
        traceback.print_exc(file=ErrorLog())
    assert lines()[-1] == "ValueError: reason"


def test_the_lines_of_threads_are_not_mixed(lines):
    errors = ErrorLog()
    errors.write("first ")
    thread = threading.Thread(target=lambda: print("second", file=errors))
    thread.start()
    thread.join(20)
    errors.write("third\n")
    assert lines() == ["second", "first third"]


def test_bytes_are_rejected():
    with pytest.raises(TypeError, match="must be str, not bytes"):
        ErrorLog().write(b"bytes")


# --- wsgi.file_wrapper ---------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


class Delegating:
    """As the class File of Django: the methods are those of another file."""

    def __init__(self, file):
        self.file = file

    read = property(lambda self: self.file.read)
    fileno = property(lambda self: self.file.fileno)
    close = property(lambda self: self.file.close)


class Decoding:
    """The descriptor's bytes are not those of read()."""

    def __init__(self, file):
        self.file = file

    def read(self, size=-1):
        return self.file.read(size)[::-1]

    def fileno(self):
        return self.file.fileno()


def written_temporary_file():
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115
    file.write(CONTENT)
    file.seek(0)
    return file


PLAIN = {
    "buffered": lambda path: path.open("rb"),
    "unbuffered": lambda path: path.open("rb", buffering=0),
    "for update": lambda path: path.open("r+b"),
    "delegating": lambda path: Delegating(path.open("rb")),
    "temporary": lambda path: written_temporary_file(),
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("position", [0, 10])
def test_a_plain_file_is_sent_from_its_position(path, kind, position):
    source = PLAIN[kind](path)
    assert source.read(position) == CONTENT[:position]
    before = open_fds()
    file, offset, size = plain_file(FileWrapper(source))
    assert (offset, size) == (position, len(CONTENT))
    source.close()
    assert os.pread(file.fileno(), 1000, offset) == CONTENT[offset : offset + 1000]
    file.close()
    assert open_fds().keys() < before.keys()


def closed(path):
    file = path.open("rb")
    file.close()
    return file


OTHERS = {
    "in memory": lambda path: io.BytesIO(CONTENT),
    "text": lambda path: path.open(encoding="latin-1"),
    "compressed": lambda path: gzip.open(path, "rb"),  # noqa: SIM115
    "buffered compressed": lambda path: io.BufferedReader(gzip.open(path, "rb")),  # noqa: SIM115
    "decoding": lambda path: Decoding(path.open("rb")),
    "a device": lambda path: open("/dev/null", "rb"),  # noqa: SIM115
    "a pipe": lambda path: open(os.pipe()[0], "rb"),  # noqa: SIM115
    "closed": closed,
    "without read()": lambda path: object(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_read(path, kind):
    source = OTHERS[kind](path)
    try:
        assert plain_file(FileWrapper(source)) is None
    finally:
        for each in (source, getattr(source, "file", None), getattr(source, "raw", None)):
            if hasattr(each, "close"):
                each.close()


@pytest.mark.parametrize("size", [[], [10_000]])
def test_the_blocks_of_a_file(size):
    wrapper = FileWrapper(io.BytesIO(CONTENT), *size)
    blocks = list(wrapper)
    assert b"".join(blocks) == CONTENT
    assert len(blocks[0]) == (size or [65536])[0]
    assert list(wrapper) == []


def test_close_is_that_of_the_file():
    source = io.BytesIO()
    FileWrapper(source).close()
    assert source.closed
    assert not hasattr(FileWrapper(object()), "close")


# --- the peer ------------------------------------------------------------------------------------


def test_remote():
    assert remote(("1.2.3.4", 5)) == ("1.2.3.4", "5")
    assert remote(("::1", 0)) == ("::1", "")
    assert remote(None) == ("", "")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a", "a", ""),
        ("a:80", "a", "80"),
        ("a:", "a", ""),
        ("[::1]", "::1", ""),
        ("[::1]:80", "::1", "80"),
        ("", "localhost", ""),
    ],
)
def test_the_host_of_a_header(text, host, port):
    assert host_of(text) == (host, port)


class Tls:
    """A connection as the ssl module describes it."""

    def __init__(self, certificate=None):
        self.certificate = certificate

    def version(self):
        return "TLSv1.3"

    def cipher(self):
        return "TLS_AES_256_GCM_SHA384", "TLSv1.3", 256

    def getpeercert(self, binary_form=False):
        return b"DER" if binary_form and self.certificate else self.certificate


def test_the_variables_without_a_client_certificate():
    assert variables(Tls()) == {
        "HTTPS": "on",
        "SSL_PROTOCOL": "TLSv1.3",
        "SSL_CIPHER": "TLS_AES_256_GCM_SHA384",
        "SSL_CIPHER_USEKEYSIZE": "256",
        "SSL_CLIENT_VERIFY": "NONE",
    }


def test_the_variables_of_a_client_certificate():
    certificate = {
        "subject": (
            (("countryName", "DE"),),
            (("organizationalUnitName", "one"),),
            (("organizationalUnitName", "two"), ("commonName", "Jürgen, client")),
        ),
        "issuer": ((("commonName", "CA"),),),
        "version": 3,
        "serialNumber": "0A",
        "notBefore": "Jan  1 00:00:00 2026 GMT",
        "notAfter": "Jan  1 00:00:00 2027 GMT",
        "subjectAltName": (("DNS", "a"), ("email", "x@a"), ("DNS", "b"), ("URI", "urn:x")),
    }
    found = variables(Tls(certificate))
    assert found.pop("SSL_CLIENT_CERT") == ssl.DER_cert_to_PEM_cert(b"DER")
    assert {name: value for name, value in found.items() if name.startswith("SSL_CLIENT")} == {
        "SSL_CLIENT_VERIFY": "SUCCESS",
        "SSL_CLIENT_M_VERSION": "3",
        "SSL_CLIENT_M_SERIAL": "0A",
        "SSL_CLIENT_V_START": "Jan  1 00:00:00 2026 GMT",
        "SSL_CLIENT_V_END": "Jan  1 00:00:00 2027 GMT",
        "SSL_CLIENT_S_DN": "OU=two+CN=J\xc3\xbcrgen\\, client,OU=one,C=DE",
        "SSL_CLIENT_S_DN_C": "DE",
        "SSL_CLIENT_S_DN_OU": "one",
        "SSL_CLIENT_S_DN_OU_1": "two",
        "SSL_CLIENT_S_DN_CN": "J\xc3\xbcrgen, client",
        "SSL_CLIENT_I_DN": "CN=CA",
        "SSL_CLIENT_I_DN_CN": "CA",
        "SSL_CLIENT_SAN_DNS_0": "a",
        "SSL_CLIENT_SAN_DNS_1": "b",
        "SSL_CLIENT_SAN_Email_0": "x@a",
    }
