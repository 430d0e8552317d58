# SPDX-License-Identifier: GPL-2.0-only
"""Which peers are trusted as proxies, and how their headers are interpreted."""

import time

import pytest
from sites import Recording, Serving, get

from mgloop.http.errors import ConfigError
from mgloop.http.proxy import TrustedProxies


def seen(trusted, headers, client=("127.0.0.1", 1234), scheme="http"):
    scope = {
        "client": client,
        "scheme": scheme,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    proxies = TrustedProxies(trusted)
    if proxies.trusts_peer(client):
        proxies(scope)
    return scope["client"], scope["scheme"]


FOR, PROTO, FORWARDED = "X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"
UNCHANGED = (("127.0.0.1", 1234), "http")


@pytest.mark.parametrize(
    ("trusted", "headers", "expected"),
    [
        ("127.0.0.1", [], UNCHANGED),
        ("", [(FOR, "1.1.1.1")], UNCHANGED),
        ("10.0.0.1", [(FOR, "1.1.1.1"), (PROTO, "https")], UNCHANGED),
        ("127.0.0.1", [(FOR, "1.1.1.1"), (PROTO, "https")], (("1.1.1.1", 0), "https")),
        ("127.0.0.0/8", [(FOR, "1.1.1.1")], (("1.1.1.1", 0), "http")),
        ("*", [(FOR, "1.1.1.1, 2.2.2.2")], (("1.1.1.1", 0), "http")),
        # The client may have written the first element itself.
        ("127.0.0.1", [(FOR, "6.6.6.6, 1.1.1.1")], (("1.1.1.1", 0), "http")),
        ("127.0.0.1, 10.0.0.0/8", [(FOR, "6.6.6.6, 1.1.1.1, 10.1.1.1")], (("1.1.1.1", 0), "http")),
        ("127.0.0.1", [(FOR, "6.6.6.6"), (FOR, "1.1.1.1")], (("1.1.1.1", 0), "http")),
        ("127.0.0.1", [(FOR, "127.0.0.1")], (("127.0.0.1", 0), "http")),
        ("127.0.0.1", [(FOR, "1.1.1.1:99")], (("1.1.1.1", 99), "http")),
        ("127.0.0.1", [(FOR, "::2")], (("::2", 0), "http")),
        ("127.0.0.1", [(FOR, "[::2]:99")], (("::2", 99), "http")),
        ("127.0.0.1", [(FOR, " , ")], UNCHANGED),
        ("127.0.0.1", [(PROTO, "gopher")], UNCHANGED),
        ("127.0.0.1", [(PROTO, "wss")], (("127.0.0.1", 1234), "https")),
        (
            "127.0.0.1",
            [(FORWARDED, 'for=6.6.6.6, for="[::3]:7";proto=https;by="a,b"')],
            (("::3", 7), "https"),
        ),
        ("127.0.0.1", [(FORWARDED, "For=unknown; Proto=HTTPS")], (("unknown", 0), "https")),
        ("127.0.0.1", [(FORWARDED, ";;=,")], UNCHANGED),
        # The client may have written a scheme, too.
        (
            "127.0.0.1",
            [(FORWARDED, "for=6.6.6.6;proto=https, for=1.1.1.1;proto=http")],
            (("1.1.1.1", 0), "http"),
        ),
        ("127.0.0.1", [(PROTO, "https"), (PROTO, "http")], UNCHANGED),
        ("127.0.0.1", [(PROTO, "http, https")], (("127.0.0.1", 1234), "https")),
        (
            "127.0.0.1",
            [(FOR, "6.6.6.6, 1.1.1.1"), (PROTO, "https, http")],
            (("1.1.1.1", 0), "http"),
        ),
        # The first of two proxies ends TLS.
        (
            "127.0.0.1, 10.0.0.0/8",
            [(FOR, "1.1.1.1, 10.1.1.1"), (PROTO, "https, http")],
            (("1.1.1.1", 0), "https"),
        ),
        (
            "127.0.0.1, 10.0.0.0/8",
            [(FORWARDED, "for=1.1.1.1;proto=https, for=10.1.1.1")],
            (("1.1.1.1", 0), "https"),
        ),
        ("127.0.0.1, 10.0.0.0/8", [(FORWARDED, "by=a, for=10.1.1.1")], (("10.1.1.1", 0), "http")),
        # A malformed element is a separator.
        ("127.0.0.1", [(FORWARDED, 'for="x;for=6.6.6.6;y, for=1.1.1.1')], (("1.1.1.1", 0), "http")),
        ("127.0.0.1", [(FORWARDED, 'x y="z"z for=1.1.1.1 ; a')], (("1.1.1.1", 0), "http")),
        ("127.0.0.1", [(FORWARDED, r'for="\[::3]\:7"')], (("::3", 7), "http")),
        # A client's unclosed quote or backslash must not swallow the proxy's own element.
        (
            "127.0.0.1",
            [(FORWARDED, 'for=6.6.6.6;x=", for=1.1.1.1;by=";a,b"')],
            (("1.1.1.1", 0), "http"),
        ),
        (
            "127.0.0.1",
            [(FORWARDED, r'for=6.6.6.6;proto=https;x="\, for="1.1.1.1"')],
            (("1.1.1.1", 0), "http"),
        ),
        (
            "127.0.0.1, 10.0.0.0/8",
            [(FORWARDED, r'for=6.6.6.6;x=", for=1.1.1.1;proto=wss;by=";\\", for=10.1.1.1;y="\","')],
            (("1.1.1.1", 0), "https"),
        ),
        # The proxy writes only one of the two headers, and may pass on the client's other one.
        ("127.0.0.1", [(FORWARDED, "for=6.6.6.6"), (FOR, "1.1.1.1")], (("1.1.1.1", 0), "http")),
    ],
)
def test_trusted_headers(trusted, headers, expected):
    assert seen(trusted, headers) == expected


@pytest.mark.parametrize("text", ['a="{}"x', "a={}x", "{}"])
@pytest.mark.parametrize("repeated", [" ", "a", "a=", r"\"", 'a="', r"a=\"", 'a="b" ', ";", ","])
def test_a_long_header_takes_no_long_time(text, repeated):
    value = text.format(repeated * 30_000)
    began = time.process_time()
    seen("127.0.0.1", [(FORWARDED, value)])
    assert time.process_time() - began < 1  # 0.01 to 0.1; minutes with quadratic time


def test_unix_sockets():
    headers = [(FOR, "1.1.1.1")]
    assert seen("127.0.0.1", headers, client=None) == (None, "http")
    assert seen("127.0.0.1, unix:", headers, client=None) == (("1.1.1.1", 0), "http")
    assert seen("*", headers, client=None) == (("1.1.1.1", 0), "http")


@pytest.mark.parametrize("trusted", ["10.0.0.1", "10.0.0.0/8", "0.0.0.0/0"])
@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "::ffff:a00:1"])
def test_an_ipv4_address_is_its_mapped_address(trusted, peer):
    for name in (trusted, "::ffff:10.0.0.1", "::ffff:10.0.0.0/104"):
        assert seen(name, [(FOR, "1.1.1.1")], client=(peer, 1))[0] == ("1.1.1.1", 0)
        assert seen(name, [(FOR, f"1.1.1.1, {peer}")], client=(peer, 1))[0] == ("1.1.1.1", 0)
    for name in ("10.0.0.2", "::ffff:10.0.0.2", "11.0.0.0/8", "::10.0.0.1", "::/96", "2000::/3"):
        assert seen(name, [(FOR, "1.1.1.1")], client=(peer, 1))[0] == (peer, 1)


@pytest.mark.parametrize("network", ["::/0", "::/64", "::/95", "0:0:0:0:0:fffe::/95"])
def test_an_ipv6_network_contains_ipv4_addresses_only_in_their_mapped_form(network):
    """A server that trusts all IPv6 peers does not trust IPv4 peers, as with uvicorn."""
    believed = [(FOR, "1.1.1.1")]
    assert seen(network, believed, client=("10.0.0.1", 1))[0] == ("10.0.0.1", 1)
    is_mapped = network != "::/95"
    mapped = ("::ffff:10.0.0.1", 1)
    assert seen(network, believed, client=mapped)[0] == (("1.1.1.1", 0) if is_mapped else mapped)


@pytest.mark.parametrize("peer", ["::1", "2001:db8::1"])
def test_an_ipv6_address_is_no_ipv4_address(peer):
    assert seen("0.0.0.0/0", [(FOR, "1.1.1.1")], client=(peer, 1))[0] == (peer, 1)
    assert seen("::/0", [(FOR, "1.1.1.1")], client=(peer, 1))[0] == ("1.1.1.1", 0)


@pytest.mark.parametrize("name", [FOR, PROTO, FORWARDED])
@pytest.mark.parametrize("part", ["", "127.0.0.1", "for=127.0.0.1", '"', "a=b;" * 100])
@pytest.mark.parametrize("trusted", ["127.0.0.1", "*"])
def test_thousands_of_hops_take_no_long_time(name, part, trusted):
    """Eight lines of 8,000 bytes are the most that fits into a head."""
    headers = [(name, ",".join([part] * (8000 // (len(part) + 1))))] * 8
    began = time.process_time()
    for _ in range(20):
        seen(trusted, headers)
    assert time.process_time() - began < 0.4  # 0.05; 1.5 without a bound


def test_the_cache_of_addresses_keeps_no_long_text():
    proxies = TrustedProxies("127.0.0.1, fe80::/10")
    assert not proxies.trusts("1" * 8000)
    assert proxies.trusts("fe80::1111:2222:3333:4444%interface-name0")
    assert proxies._known.cache_info().currsize == 1


def test_of_a_long_chain_the_nearest_hops_count():
    hops = ["6.6.6.6"] * 500 + ["1.1.1.1"] + ["127.0.0.1"] * 50
    assert seen("127.0.0.1", [(FOR, ", ".join(hops))])[0] == ("1.1.1.1", 0)
    elements = ", ".join(f"for={hop}" for hop in hops)
    assert seen("127.0.0.1", [(FORWARDED, elements)])[0] == ("1.1.1.1", 0)
    hops += ["127.0.0.1"] * 100
    assert seen("127.0.0.1", [(FOR, ", ".join(hops))])[0] == ("127.0.0.1", 0)


def test_no_address():
    with pytest.raises(ConfigError, match="forwarded_allow_ips: 'localhost' is not an address"):
        TrustedProxies("localhost")


async def test_in_the_scope(loop):
    app = Recording()
    async with Serving(loop, app, proxy=TrustedProxies("127.0.0.1")) as serving:
        await serving.one(get("/", "X-Forwarded-For: 1.1.1.1", "X-Forwarded-Proto: https"))
    (scope,) = app.scopes
    assert (scope["client"], scope["scheme"]) == (("1.1.1.1", 0), "https")
