"""What may be listened on, dialled and told to others, and what people are told about the rest."""

from __future__ import annotations

import socket
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from peerinfer.core.types import PeerId
from peerinfer.overlay import addresses, swarm
from peerinfer.overlay.addresses import (
    ADDRESSES_PER_PEER_MAX,
    AddressInUseError,
    advertised,
    as_strings,
    check_free,
    dialable,
    on_loopback,
    parse_listen_address,
    parse_peer_address,
    resolve,
)
from peerinfer.overlay.dialler import DialError

ED25519 = "12D3KooWRj8fEjQGsHqpUMhXsHsE8NVXqWVGGGKRmYZAJAv1KsAH"
RSA = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize("peer", [ED25519, RSA])
@pytest.mark.parametrize(
    "where", ["/ip4/1.2.3.4/tcp/4001", "/ip6/2001:db8::1/tcp/4001", "/dns4/a.example/tcp/1"]
)
def test_a_peers_address_is_its_place_and_its_id(where: str, peer: str) -> None:
    assert parse_peer_address(f"{where}/p2p/{peer}") == (peer, where)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends with its id"),
        ("localhost:4001", "no multiaddr"),
        ("/ip4/300.1.1.1/tcp/1/p2p/" + ED25519, "no multiaddr"),
        ("/ip4/1.2.3.4/tcp/99999/p2p/" + ED25519, "no multiaddr"),
        ("/ip4/1.2.3.4/tcp/4001", "ends with its id"),
        ("/ip4/1.2.3.4/tcp/4001/p2p/12D3nonsense", "no peer id"),
        ("/ip4/0.0.0.0/tcp/4001/p2p/" + ED25519, "not where it can be reached"),
        ("/ip6/::/tcp/4001/p2p/" + ED25519, "not where it can be reached"),
        ("/ip4/224.0.0.1/tcp/4001/p2p/" + ED25519, "multicast"),
        ("/ip4/1.2.3.4/tcp/0/p2p/" + ED25519, "port 0"),
        ("/ip4/1.2.3.4/udp/4001/p2p/" + ED25519, "only /ip4"),
        ("/ip4/1.2.3.4/udp/4001/quic-v1/p2p/" + ED25519, "ends with its id"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{ED25519}/p2p-circuit/p2p/{ED25519}", "ends with its id"),
    ],
)
def test_a_bad_address_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_peer_address(text)


@pytest.mark.parametrize("text", ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/4001", "/ip4/127.0.0.1/tcp/1"])
def test_an_address_to_listen_on_is_an_ip_and_a_port(text: str) -> None:
    assert parse_listen_address(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "0.0.0.0:1", "/dns4/a.example/tcp/1", "/ip4/1.2.3.4/udp/1", "/ip4/1.2.3.4/tcp/1/p2p/" + ED25519],
)
def test_a_bad_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"multiaddr|listen|supported"):
        parse_listen_address(text)


def test_only_addresses_worth_dialling_are_kept() -> None:
    announced = [
        "/ip4/10.0.0.1/tcp/1",
        "/ip4/0.0.0.0/tcp/1",
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/224.0.0.1/tcp/1",
        "/ip6/fe80::1/tcp/1",
        "/ip4/10.0.0.1/udp/1",
        "garbage",
        f"/ip4/10.0.0.2/tcp/2/p2p/{ED25519}",
        "/ip4/10.0.0.1/tcp/1",
        "/dns4/a.example/tcp/3",
    ]
    worth = ("/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/2", "/dns4/a.example/tcp/3")
    assert dialable(announced, loopback=False) == worth
    assert "/ip4/127.0.0.1/tcp/1" in dialable(announced, loopback=True)


@pytest.mark.parametrize("nothing", ["", "/", "//", b""])
def test_an_address_of_nothing_is_dropped(nothing: str) -> None:
    assert dialable([nothing, "/ip4/10.0.0.1/tcp/1"], loopback=False) == ("/ip4/10.0.0.1/tcp/1",)


PARTS = st.sampled_from(["/", "ip4", "ip6", "dns4", "tcp", "p2p", "1.2.3.4", "fe80::1%lo", "99999", "\0"])


@given(st.text() | st.lists(PARTS | st.text(max_size=3)).map("/".join), st.booleans())
def test_whatever_is_announced_is_an_address_or_dropped(text: str, loopback: bool) -> None:
    """Goal: no text of a peer raises. Method: any text, and such as looks like an address."""
    for addr in dialable([text], loopback=loopback):
        assert dialable([addr], loopback=loopback) == (addr,)


def test_an_address_that_cannot_be_written_is_dropped() -> None:
    """Method: what the library builds of bytes, without looking, and parses when asked to write it."""
    broken = [Multiaddr(b"\xff\xff"), Multiaddr(b"\x06"), Multiaddr(b"\x35\x02\xff\xff")]
    good = Multiaddr("/ip4/10.0.0.1/tcp/1")
    assert as_strings([*broken, good]) == [str(good)]


def test_no_peer_has_more_addresses_than_a_snapshot_carries() -> None:
    assert (
        len(dialable([f"/ip4/10.0.0.{n}/tcp/1" for n in range(50)], loopback=False)) == ADDRESSES_PER_PEER_MAX
    )


def test_a_wildcard_is_advertised_as_this_machines_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Situation 8: a node that binds 0.0.0.0 or :: never advertises it."""
    lan = {4: ["192.168.1.7", "10.8.0.2"], 6: ["2001:db8::7"]}
    monkeypatch.setattr(addresses, "get_network_addrs", lan.__getitem__)
    assert advertised(["/ip4/0.0.0.0/tcp/5", "/ip6/::/tcp/6", "/ip4/127.0.0.1/tcp/7"]) == [
        "/ip4/192.168.1.7/tcp/5",
        "/ip4/10.8.0.2/tcp/5",
        "/ip6/2001:db8::7/tcp/6",
        "/ip4/127.0.0.1/tcp/7",
    ]


def test_a_machine_without_a_network_advertises_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "get_network_addrs", lambda version: [])
    assert advertised(["/ip4/0.0.0.0/tcp/5", "/ip6/::/tcp/6"]) == ["/ip4/127.0.0.1/tcp/5", "/ip6/::1/tcp/6"]


def test_a_node_is_on_loopback_when_all_of_it_is() -> None:
    assert on_loopback(["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"])
    assert not on_loopback(["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1"])
    assert not on_loopback([])


def test_a_port_that_is_taken_is_noticed() -> None:
    """Goal: SO_REUSEPORT hides nobody. Method: a listener that shares its port, as the library's does."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=str(port)):
            check_free(f"/ip4/127.0.0.1/tcp/{port}")
        with pytest.raises(AddressInUseError):
            check_free(f"/ip4/0.0.0.0/tcp/{port}")
    check_free(f"/ip4/127.0.0.1/tcp/{port}")
    check_free("/ip4/127.0.0.1/tcp/0")


async def test_a_name_stands_for_its_addresses() -> None:
    assert [str(addr) for addr in await resolve("/ip4/10.0.0.1/tcp/5")] == ["/ip4/10.0.0.1/tcp/5"]
    assert "/ip4/127.0.0.1/tcp/5" in [str(addr) for addr in await resolve("/dns4/localhost/tcp/5")]
    with pytest.raises(OSError, match=r"."):
        await resolve("/dns4/no-such-host.invalid/tcp/5")


async def test_names_that_nobody_answers_for_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: peers that announce such names stop nobody's tokeniser. Method: more of them than threads."""
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answered.wait(10) and [])
    limiter = trio.CapacityLimiter(2)
    try:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(partial(resolve, f"/dns4/{number}.example/tcp/5", limiter=limiter))
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            assert await trio.to_thread.run_sync(lambda: 1) == 1
    finally:
        answered.set()


async def test_a_name_from_a_peer_does_not_lead_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address itself would have been filtered; one that was given by hand is dialled."""
    dialled: list[str] = []
    known: list[tuple[PeerId, str]] = []

    async def dial(_host: object, _peer: PeerId, addr: object) -> None:
        dialled.append(str(addr))

    monkeypatch.setattr(swarm, "dial", dial)
    peer, addr = PeerId("peer"), "/dns4/localhost/tcp/5"
    node: Any = SimpleNamespace(
        host=SimpleNamespace(network=SimpleNamespace(listeners={})),
        _loopback=False,
        _learned_names=trio.CapacityLimiter(1),
        _settings=SimpleNamespace(join=()),
        _known=SimpleNamespace(reached=lambda peer, addr, now_s: known.append((peer, addr))),
    )
    with pytest.raises(DialError, match="stands for no address"):
        await swarm.Swarm._dial(cast(swarm.Swarm, node), peer, addr)
    assert not dialled
    node._settings.join = ((peer, addr),)
    await swarm.Swarm._dial(cast(swarm.Swarm, node), peer, addr)
    assert dialled == ["/ip4/127.0.0.1/tcp/5"]
    assert known == [(peer, addr)], "what was reached is remembered as it was given"
