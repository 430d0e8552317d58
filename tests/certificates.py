# SPDX-License-Identifier: GPL-2.0-only
"""Temporary certificates for the TLS tests, made by trustme.

trustme needs `cryptography`, which lacks wheels for a free-threaded Python. There the openssl
command makes the certificates, with the part of trustme's interface that the tests use. Without
trustme and openssl the tests are skipped.
"""

import shutil
import ssl
import subprocess
import tempfile
import weakref
from pathlib import Path

try:
    import trustme
except ImportError:
    trustme = None

available = trustme is not None or shutil.which("openssl") is not None
SKIPPED = "TLS tests need trustme, or the openssl command"


def authority():
    """Return a certificate authority: ``trustme.CA()`` or its replacement."""
    return trustme.CA() if trustme is not None else Authority()


def contexts():
    """Return two ``ssl.SSLContext``: a localhost server's, and that of a client that trusts it."""
    issuer = authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuer.issue_cert("localhost").configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issuer.configure_trust(client)
    return server, client


def write(folder, issuer):
    """Write cert.pem and key.pem of a server on this machine to `folder`."""
    leaf = issuer.issue_cert("localhost", "127.0.0.1")
    (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    (folder / "key.pem").write_bytes(leaf.private_key_pem.bytes())


def trusting(issuer):
    """Return a client's ``ssl.SSLContext`` that trusts only certificates of `issuer`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issuer.configure_trust(context)
    return context


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def kind_of(name):
    """Return openssl's type for a name of this form."""
    if "@" in name:
        return "email"
    return "IP" if all(c in "0123456789abcdef.:" for c in name) else "DNS"


class Blob:
    def __init__(self, data):
        self.data = data

    def bytes(self):
        return self.data


class Authority:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mgloop-certificates-"))
        weakref.finalize(self, shutil.rmtree, self.folder)
        self.count = 0
        openssl(
            self.folder,
            *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
            *["-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30"],
            *["-subj", "/CN=mgloop's tests", "-addext", "keyUsage=critical,keyCertSign,cRLSign"],
        )

    @property
    def cert_pem(self):
        return Blob((self.folder / "ca.pem").read_bytes())

    def configure_trust(self, context):
        context.load_verify_locations(self.folder / "ca.pem")

    def issue_cert(self, *names):
        self.count += 1
        folder, name = self.folder, f"leaf{self.count}"
        alternatives = ",".join(f"{kind_of(n)}:{n}" for n in names)
        (folder / f"{name}.ext").write_text(
            f"subjectAltName={alternatives}\nbasicConstraints=CA:FALSE\n"
            "keyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        openssl(
            folder,
            *["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"],
            *["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={names[0]}"],
        )
        openssl(
            folder,
            *["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"],
            *["-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext"],
            *["-out", f"{name}.pem"],
        )
        return Leaf(self, folder / f"{name}.key", folder / f"{name}.pem")


class Leaf:
    def __init__(self, authority, key, certificate):
        self.authority = authority  # its folder contains the files
        self.key, self.certificate = key, certificate

    @property
    def private_key_pem(self):
        return Blob(self.key.read_bytes())

    @property
    def cert_chain_pems(self):
        return [Blob(self.certificate.read_bytes())]

    def configure_cert(self, context):
        assert isinstance(context, ssl.SSLContext)
        context.load_cert_chain(self.certificate, self.key)
