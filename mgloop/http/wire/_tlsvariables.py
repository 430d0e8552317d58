# SPDX-License-Identifier: GPL-2.0-only
"""The variables of a TLS connection in a WSGI environ, under the names of Apache's mod_ssl.

They are made once per connection, from what the ssl module reports, and are therefore Python.
"""

from __future__ import annotations

import ssl
from typing import Any

from . import _peer

#: mod_ssl's abbreviations of the parts of a name, by OpenSSL's long names.
_PARTS = {
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "commonName": "CN",
    "title": "T",
    "initials": "I",
    "givenName": "G",
    "surname": "S",
    "description": "D",
    "userId": "UID",
    "emailAddress": "Email",
}
#: mod_ssl's names of the kinds of alternative names, by those of getpeercert().
_ALTERNATIVES = {"email": "Email", "DNS": "DNS"}


def variables(tls: ssl.SSLObject) -> dict[str, str]:
    """Return HTTPS and the SSL_* variables of a connection."""
    found = {"HTTPS": "on", "SSL_CLIENT_VERIFY": "NONE", "SSL_PROTOCOL": tls.version() or ""}
    cipher = tls.cipher()
    if cipher is not None:
        found["SSL_CIPHER"] = cipher[0]
        found["SSL_CIPHER_USEKEYSIZE"] = str(cipher[2])
    certificate = tls.getpeercert(binary_form=True)
    details: dict[str, Any] = tls.getpeercert() or {}
    # The details are empty unless the certificate has been verified.
    if certificate and details:
        found["SSL_CLIENT_VERIFY"] = "SUCCESS"
        found["SSL_CLIENT_CERT"] = ssl.DER_cert_to_PEM_cert(certificate)
        found |= _of_certificate(details)
    return {name: _latin(value) for name, value in found.items()}


def _of_certificate(details: dict[str, Any]) -> dict[str, str]:
    found = {
        "SSL_CLIENT_M_VERSION": str(details.get("version", "")),
        "SSL_CLIENT_M_SERIAL": details.get("serialNumber", ""),
        "SSL_CLIENT_V_START": details.get("notBefore", ""),
        "SSL_CLIENT_V_END": details.get("notAfter", ""),
    }
    for letter, kind in (("S", "subject"), ("I", "issuer")):
        name = details.get(kind, ())
        found[f"SSL_CLIENT_{letter}_DN"] = _peer.distinguished_name(name)
        counts: dict[str, int] = {}
        for part in name:
            for attribute, text in part:
                short = _PARTS.get(attribute)
                if short is not None:
                    number = counts[short] = counts.get(short, -1) + 1
                    suffix = f"_{number}" if number else ""
                    found[f"SSL_CLIENT_{letter}_DN_{short}{suffix}"] = text
    numbers = dict.fromkeys(_ALTERNATIVES, 0)
    for kind, text in details.get("subjectAltName", ()):
        if kind in numbers:
            found[f"SSL_CLIENT_SAN_{_ALTERNATIVES[kind]}_{numbers[kind]}"] = text
            numbers[kind] += 1
    return found


def _latin(text: str) -> str:
    """Return the UTF-8 bytes of the text, one character for each, as PEP 3333 requires."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")
