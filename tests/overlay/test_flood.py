"""A peer that sends too much of anything is counted and loses its stream, and the others notice nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.records.record import make_put_record

from peerinfer.core.frame_codec import encode_frame
from peerinfer.core.frames import Ask
from peerinfer.overlay import flood
from peerinfer.overlay.backoff import Rates
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, answer, request, start_linked
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import RawHost, raw_host
from tests.overlay.test_hardening import MESHSUB, host_of

KAD = "/ipfs/kad/1.0.0"


def test_each_has_a_rate_of_its_own_and_the_quiet_are_forgotten() -> None:
    rates = Rates[str](rate_per_s=1.0, burst=2.0, kept_max=2)
    assert [rates.take("a", now=0.0) for _ in range(3)] == [True, True, False]
    assert rates.take("b", now=0.0)
    assert not rates.take("a", now=0.5)
    assert rates.take("c", now=0.5)  # there is no room for b, which was quiet for longer than a
    assert [rates.take("b", now=0.5) for _ in range(3)] == [True, True, False]
    assert rates.take("a", now=1.0), "forgotten as well by now, and new"


async def assert_unharmed(a: Peer, b: Peer) -> None:
    """Two peers that are linked still talk."""
    assert len(await answer(b, a.id, request("after"))) == DATA_FRAMES + 2


async def send_until_reset(stream: Any, message: bytes) -> None:
    """The same message again and again, until the other side has enough."""
    with trio.fail_after(SOON_S):
        try:
            while True:
                await stream.write(message)
                await trio.lowlevel.checkpoint()
        except STREAM_ERRORS:
            return


async def test_streams_that_are_opened_too_fast_are_reset(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: an attacker opens streams and negotiates nothing; what it may open at once is made few."""
    monkeypatch.setattr(flood, "STREAMS_AT_ONCE_MAX", 5.0)
    a, b = await start_linked(world)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        (connection,) = attacker.host.get_network().get_connections(ID.from_base58(a.id))
        with trio.fail_after(SOON_S):
            while "too many new streams" not in a.sink.reasons:
                await connection.new_stream()
    assert set(a.sink.drops) == {"handshake"}
    await assert_unharmed(a, b)


async def test_lookups_are_limited_per_peer(world: LibP2PWorld) -> None:
    a, b = await start_linked(world)
    lookup = Message(type=Message.MessageType.FIND_NODE, key=ID.from_base58(b.id).to_bytes())
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        await send_until_reset(await attacker.open(a.id, KAD), with_length(lookup.SerializeToString()))
        await until(lambda: a.sink.drops["discovery"] > 0, within_s=SOON_S)
    assert set(a.sink.reasons) == {"too many lookups"}
    await assert_unharmed(a, b)


@pytest.mark.parametrize("rpc", [b"", rpc_pb2.RPC(control=rpc_pb2.ControlMessage()).SerializeToString()])
async def test_who_floods_the_mesh_is_disconnected_before_its_messages_are_read(
    world: LibP2PWorld, rpc: bytes
) -> None:
    """Method: messages that say nothing, so that no limit on what they say applies."""
    a = await world.start(gossip_passed_on_per_peer_per_s_max=10.0)
    b = await world.start(join=[a.address])
    await until(lambda: b.linked_to(a.id), within_s=SOON_S)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        await until(lambda: a.linked_to(attacker.id), within_s=SOON_S)
        await send_until_reset(await attacker.open(a.id, MESHSUB), with_length(rpc))
        await until(lambda: attacker.id in a.sink.down, within_s=SOON_S)
    assert "passes on too many messages" in a.sink.reasons
    assert set(a.sink.drops) == {"gossip"}
    await assert_unharmed(a, b)


async def test_requests_are_limited_per_peer(world: LibP2PWorld) -> None:
    a = await world.start(requests_per_peer_per_s_max=2.0)
    b = await world.start(join=[a.address])
    await until(lambda: b.linked_to(a.id), within_s=SOON_S)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        stream = await attacker.open(a.id, REQUEST_PROTOCOL)
        for number in range(30):
            ask = Ask(id=f"r{number}", prompt_tokens=1, expected_cached_tokens=0)
            try:
                await stream.write(with_length(encode_frame(ask)))
                await trio.sleep(0.02)
            except STREAM_ERRORS:
                break
        await until(lambda: a.sink.drops["request"] > 0, within_s=SOON_S)
    assert "too many requests" in a.sink.reasons
    await assert_unharmed(a, b)


async def test_what_a_stranger_puts_into_the_dht_is_not_kept(world: LibP2PWorld) -> None:
    """Method: a value and a provider, as the library's own client sends them."""
    (a,) = await start_linked(world, 1)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        for message in _puts(attacker):
            stream = await attacker.open(a.id, KAD)
            await stream.write(with_length(message.SerializeToString()))
            with trio.fail_after(SOON_S):
                with suppress(*STREAM_ERRORS):
                    await stream.read(1)
    dht = host_of(a).dht
    assert dht.value_store.size() == 0
    assert dht.provider_store.size() == 0


def _puts(attacker: RawHost) -> list[Message]:
    own = attacker.host.get_id()
    public = attacker.host.get_public_key().serialize()
    key = b"/pk/" + own.to_bytes()
    value = Message(type=Message.MessageType.PUT_VALUE, key=key, record=make_put_record(key, public))
    provider = Message(type=Message.MessageType.ADD_PROVIDER, key=b"\x12\x20" + bytes(32))
    entry = provider.providerPeers.add()
    entry.id = own.to_bytes()
    entry.addrs.append(attacker.host.get_addrs()[0].to_bytes())
    return [value, provider]
