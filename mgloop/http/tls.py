# SPDX-License-Identifier: GPL-2.0-only
"""The server's ssl.SSLContext, made from the ssl_* options.

A server that reloads its certificates creates a new context and never changes the one in use. A
failed load could leave the context without a key, and a context keeps the old certificate if the
new one has another type of key.
"""

from __future__ import annotations

import ssl

from .config import Config
from .errors import StartError


def make_context(config: Config) -> ssl.SSLContext | None:
    """Return the context for `config`, or None without TLS. Raises StartError."""
    if not config.tls:
        return None
    try:
        version = ssl.PROTOCOL_TLS_SERVER if config.ssl_version is None else config.ssl_version
        if version == ssl.PROTOCOL_TLS_CLIENT:
            raise ValueError
        context = ssl.SSLContext(version)
    except ValueError:
        raise StartError(
            f"ssl_version: {config.ssl_version} is not a server protocol of the ssl module: omit it"
        ) from None
    _load_certificate(context, config)
    context.set_alpn_protocols(["http/1.1"])
    if config.ssl_cert_reqs:
        context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    if config.ssl_ca_certs:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except OSError as exc:
            raise StartError(
                f"cannot load the CA certificates {config.ssl_ca_certs}: {_why(exc)}"
            ) from None
    if config.ssl_ciphers:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError:
            raise StartError(
                f"ssl_ciphers: no cipher can be selected from {config.ssl_ciphers!r}: see `openssl"
                " ciphers`"
            ) from None
    return context


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    """Load certificate and key, reading each file once. Raises StartError if they do not match."""
    assert config.ssl_certfile is not None
    asked = False

    def password() -> str:
        """Return the password of an encrypted key; without a callback OpenSSL would prompt."""
        nonlocal asked
        asked = True
        return config.ssl_keyfile_password or ""

    arguments = (config.ssl_certfile, config.ssl_keyfile, password)
    try:
        context.load_cert_chain(*arguments)
    except OSError as exc:
        if asked and not config.ssl_keyfile_password:
            key = config.ssl_keyfile or config.ssl_certfile
            raise StartError(f"the key in {key} is encrypted: set ssl_keyfile_password") from None
        if config.ssl_keyfile is None and _is_certificate_alone(config.ssl_certfile):
            raise StartError(
                f"no private key found in {config.ssl_certfile}: set --ssl-keyfile"
            ) from None
        files = " and ".join(file for file in arguments[:2] if file)
        raise StartError(f"cannot load the certificate from {files}: {_why(exc)}") from None
    except ValueError as exc:
        raise StartError(f"ssl_keyfile_password: {exc}") from None


def _is_certificate_alone(file: str) -> bool:
    """Return whether the file contains a PEM certificate and no private key."""
    try:
        with open(file, "rb") as stream:
            text = stream.read()
    except OSError:
        return False
    return b"-----BEGIN CERTIFICATE-----" in text and b"PRIVATE KEY-----" not in text


def _why(exc: OSError) -> str:
    if isinstance(exc, ssl.SSLError):
        reason = (exc.reason or "").replace("_", " ").lower()
        return (
            f"invalid PEM, mismatched key or wrong password ({reason or 'unknown OpenSSL error'})"
        )
    return exc.strerror or str(exc)
