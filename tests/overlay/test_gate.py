"""Nobody without the key gets in, nobody hangs, and whoever is refused costs a count and nothing else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.overlay import gate
from peerinfer.overlay.swarm_stream import GREETING, NO_MEMBER
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, answer, request
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import raw_host
from tests.overlay.test_hardening import host_of

KEY, OTHER = SwarmKey(b"k" * 32), SwarmKey(b"o" * 32)


def port_of(peer: Peer) -> int:
    return int(peer.address.split("/")[4])


@asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[trio.SocketStream]:
    """A bare TCP connection to a peer."""
    async with await trio.open_tcp_stream("127.0.0.1", port_of(peer)) as stream:
        yield stream


async def closed(stream: trio.SocketStream) -> None:
    """Return once the other side has closed the connection."""
    with trio.fail_after(SOON_S), suppress(trio.BrokenResourceError):
        while await stream.receive_some(4096):
            pass


async def test_members_of_a_closed_swarm_talk(world: LibP2PWorld) -> None:
    """Method: three peers, of which two know only the first, so that discovery runs over the key too."""
    a = await world.start(swarm_key=KEY)
    b = await world.start(swarm_key=KEY, join=[a.address])
    c = await world.start(swarm_key=KEY, join=[a.address])
    await until(lambda: b.linked_to(a.id, c.id) and c.linked_to(a.id, b.id), within_s=SOON_S)
    assert len(await answer(b, c.id, request("r1"))) == DATA_FRAMES + 2
    with trio.fail_after(SOON_S):
        while not (b.sink.messages and c.sink.messages):
            await a.overlay.publish(b"to all")
            await trio.sleep(0.2)
    assert not a.sink.drops


@pytest.mark.parametrize(("ours", "theirs"), [(OTHER, KEY), (None, KEY), (KEY, None)])
async def test_without_the_swarms_key_nobody_gets_in_and_is_told_why(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture, ours: SwarmKey | None, theirs: SwarmKey | None
) -> None:
    """Goal: told within 5 s, in one line; tried on; a link to neither side."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    member = await world.start(swarm_key=theirs)
    stranger = await world.start(swarm_key=ours, join=[member.address])
    await until(lambda: NO_MEMBER in caplog.text, within_s=5)
    tried = member.sink.drops["handshake"]
    await until(lambda: member.sink.drops["handshake"] > tried + 1, within_s=SOON_S)
    told = [each for each in caplog.messages if each.startswith(f"peer={member.id} state=unreachable")]
    assert len(told) == 1
    assert NO_MEMBER in told[0]
    for peer in (member, stranger):
        assert not peer.overlay.links()
        assert not peer.sink.up
    refused = [each for each in caplog.messages if each.startswith("refused=")]
    assert len(refused) == 1, "the log of the swarm has a line now and then, not one per try"


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\xff" * 100_000,
        b"\x13/multistream/1.0.0\n\x07/tls/1\n",
        b"\x13/multistream/1.0.0\n" + b"\xff" * 9 + b"\x01",
        b"",
    ],
)
async def test_garbage_is_counted_and_costs_its_connection(
    world: LibP2PWorld, key: SwarmKey | None, garbage: bytes
) -> None:
    peer = await world.start(swarm_key=key)
    async with connected(peer) as stream:
        with suppress(trio.BrokenResourceError):  # it may be closed on before all is sent
            await stream.send_all(garbage)
            await stream.send_eof()
        await closed(stream)
    await until(lambda: peer.sink.drops["handshake"] == 1, within_s=SOON_S)
    other = await world.start(swarm_key=key, join=[peer.address])
    await until(lambda: other.linked_to(peer.id), within_s=SOON_S)


async def test_what_a_stranger_sent_does_not_fill_the_log(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: a handshake that fails with what the stranger sent, as parsers of the library do."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    peer = await world.start()

    async def fail(*_: object) -> None:
        raise ValueError("\x1b[2J\n" * 10_000)

    monkeypatch.setattr(host_of(peer).network.upgrader.security_multistream, "secure_inbound", fail)
    async with connected(peer) as stream:
        await closed(stream)
    await until(lambda: peer.sink.drops["handshake"] == 1, within_s=SOON_S)
    assert len(peer.sink.reasons[0]) == gate.REASON_CHARS_MAX
    assert peer.sink.reasons[0].isprintable()
    assert "\x1b" not in caplog.text


async def test_who_says_nothing_is_closed_on(world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a connection that never sends; what it waits for is shortened."""
    monkeypatch.setattr(gate, "LET_IN_WITHIN_S", 0.2)
    peer = await world.start(swarm_key=KEY)
    async with connected(peer) as stream:
        with trio.fail_after(SOON_S):
            assert await stream.receive_some(1000), "a member greets first"
            assert await stream.receive_some(1000) == b""
    await until(lambda: bool(peer.sink.reasons), within_s=SOON_S)
    assert peer.sink.reasons == [f"no handshake within 0.2 s: {NO_MEMBER}"]


async def test_an_address_gets_so_many_handshakes_at_once(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: as many silent connections as it may have, then one more; then room for a member again."""
    monkeypatch.setattr(gate, "HANDSHAKES_PER_ADDRESS_MAX", 3)
    peer = await world.start()
    async with connected(peer) as one, connected(peer) as two, connected(peer) as three:
        for stream in (one, two, three):
            await stream.receive_some(1)
        async with connected(peer) as four:
            with trio.fail_after(SOON_S):
                assert await four.receive_some(1) == b""
        await until(lambda: peer.sink.reasons == ["too many handshakes at once"], within_s=SOON_S)
    other = await world.start(join=[peer.address])
    await until(lambda: other.linked_to(peer.id), within_s=SOON_S)


async def test_an_address_gets_so_many_connections_per_second(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "ARRIVALS_AT_ONCE_MAX", 2.0)
    monkeypatch.setattr(gate, "ARRIVALS_PER_S_MAX", 0.001)
    peer = await world.start()
    for _ in range(3):
        async with connected(peer) as stream:
            with trio.fail_after(SOON_S):
                said = await stream.receive_some(1)
    assert said == b""
    await until(lambda: peer.sink.drops["handshake"] == 3, within_s=SOON_S)
    assert peer.sink.reasons.count("too many connections from one address") == 1


async def test_a_line_of_a_negotiation_has_a_limit(world: LibP2PWorld) -> None:
    """Goal: who negotiates cannot have a node keep what it sends. Method: a line of a gigabyte."""
    peer = await world.start()
    async with connected(peer) as stream:
        await stream.send_all(GREETING + b"\x80\x80\x80\x80\x04" + b"x" * 100)
        await closed(stream)
    await until(lambda: peer.sink.drops["handshake"] == 1, within_s=SOON_S)
    async with raw_host() as host:
        await host.connect(peer.address)


async def test_a_denied_peer_is_neither_let_in_nor_dialled_nor_heard(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: a and b meet through c; a denies b. b's messages reach a through c alone, and are dropped."""
    caplog.set_level(logging.INFO, "peerinfer.overlay")
    c = await world.start()
    b = await world.start(join=[c.address])
    a = await world.start(join=[c.address, b.address], deny_peers=(b.id,))
    assert f"{b.address} is not joined through: this node's lists of peers do not want it" in caplog.text
    assert b.address in a.overlay.standing().unreached
    await until(lambda: c.linked_to(a.id, b.id), within_s=SOON_S)
    await until(lambda: f"peer={b.id} is not let in" in a.sink.reasons, within_s=SOON_S)
    await until(lambda: "it may not want this node" in caplog.text, within_s=SOON_S)
    with trio.fail_after(SOON_S):
        while not a.sink.drops["gossip"]:
            await b.overlay.publish(b"from the denied")
            await trio.sleep(0.2)
    assert not a.sink.messages
    assert b.id not in a.overlay.links()
    assert a.sink.up == [c.id]


async def test_with_a_list_of_the_allowed_nobody_else_gets_in(world: LibP2PWorld) -> None:
    """Method: b is allowed, c is not; c learns of a through b all the same."""
    b = await world.start()
    a = await world.start(join=[b.address], allow_peers=(b.id,))
    c = await world.start(join=[b.address])
    await until(lambda: b.linked_to(a.id, c.id), within_s=SOON_S)
    await until(lambda: f"peer={c.id} is not let in" in a.sink.reasons, within_s=SOON_S)
    assert set(a.overlay.links()) == {b.id}
    assert a.sink.up == [b.id]
