"""Multiaddrs and HOST:PORT as people type them."""

from __future__ import annotations

import pytest

from peerinfer.cli.addresses import (
    AddressError,
    HostPort,
    parse_announce,
    parse_host_port,
    parse_join,
    parse_listen,
)

PEER = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"
RSA_PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{RSA_PEER}",
        f"/ip6/2001:db8::7/tcp/4001/p2p/{PEER}",
        f"/dns4/gpu.example.org/tcp/4001/p2p/{PEER}",
    ],
)
def test_every_form_that_the_overlay_speaks_can_be_joined(text: str) -> None:
    assert parse_join(text) == text


@pytest.mark.parametrize("text", ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4001"])
def test_any_address_and_port_0_can_be_listened_on(text: str) -> None:
    assert parse_listen(text) == text


@pytest.mark.parametrize("text", ["/ip4/192.0.2.7/tcp/4001", "/dns4/gpu.example.org/tcp/4001"])
def test_what_others_can_dial_can_be_announced(text: str) -> None:
    assert parse_announce(text) == text


@pytest.mark.parametrize("text", ["/ip4/192.0.2.7/tcp/0", f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}"])
def test_what_nobody_can_dial_is_not_announced(text: str) -> None:
    with pytest.raises(AddressError):
        parse_announce(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("192.0.2.7:4001", "starts with '/'"),
        ("", "starts with '/'"),
        ("/", "'/'"),
        ("/foo/bar/tcp/1", "'/foo'"),
        (f"/ip4/300.0.0.1/tcp/1/p2p/{PEER}", "'300.0.0.1' is no IPv4 address"),
        (f"/ip6/192.0.2.7/tcp/1/p2p/{PEER}", "'192.0.2.7' is no IPv6 address"),
        (f"/dns4//tcp/1/p2p/{PEER}", "'' is no host name"),
        (f"/dns4/a b/tcp/1/p2p/{PEER}", "'a b' is no host name"),
        ("/ip4/192.0.2.7", "/tcp/PORT must follow"),
        ("/ip4/192.0.2.7/tcp", "'/tcp': /tcp/PORT must follow"),
        (f"/ip4/192.0.2.7/udp/1/quic-v1/p2p/{PEER}", "'/udp/1/quic-v1"),
        (f"/ip4/192.0.2.7/tcp/0/p2p/{PEER}", "'0': a port is a number from 1 to 65535"),
        (f"/ip4/192.0.2.7/tcp/65536/p2p/{PEER}", "'65536': a port is a number"),
        (f"/ip4/192.0.2.7/tcp/-1/p2p/{PEER}", "'-1': a port is a number"),
        ("/ip4/192.0.2.7/tcp/4001", "'/p2p/…' is missing"),
        ("/ip4/192.0.2.7/tcp/4001/ws", "'/ws': after the port comes /p2p/"),
        ("/ip4/192.0.2.7/tcp/4001/p2p", "'/p2p': after the port comes /p2p/"),
        (f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER[:-9]}", "no peer id"),
        ("/ip4/192.0.2.7/tcp/4001/p2p/me", "'/p2p/me': no peer id"),
    ],
)
def test_what_cannot_be_joined_is_told_by_its_part(text: str, part: str) -> None:
    with pytest.raises(AddressError) as raised:
        parse_join(text)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("/dns4/localhost/tcp/1", "not on a name"),
        (f"/ip4/0.0.0.0/tcp/1/p2p/{PEER}", "nothing may follow the port"),
        ("/ip4/0.0.0.0/tcp/x", "'x': a port is a number from 0 to 65535"),
    ],
)
def test_what_cannot_be_listened_on_is_told_by_its_part(text: str, part: str) -> None:
    with pytest.raises(AddressError) as raised:
        parse_listen(text)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:8000", HostPort("127.0.0.1", 8000)),
        ("localhost:0", HostPort("localhost", 0)),
        ("[::1]:8000", HostPort("::1", 8000)),
    ],
)
def test_host_and_port_round_trip(text: str, parsed: HostPort) -> None:
    assert parse_host_port(text) == parsed
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["8000", ":8000", "::1:8000", "127.0.0.1:", "127.0.0.1:70000", "a:b"])
def test_half_a_host_and_port_is_an_error(text: str) -> None:
    with pytest.raises(AddressError):
        parse_host_port(text)
