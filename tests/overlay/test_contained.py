"""What a peer sends, or whoever is told of it raises, ends neither the node nor any of its loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.pb import identify_pb2
from libp2p.kad_dht.pb import kademlia_pb2
from libp2p.peer.id import ID

from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.contained import contained
from peerinfer.overlay.frame_stream import FrameStream
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.pull import Pull
from peerinfer.overlay.unfinished import Unfinished
from tests.contract.overlay_worlds import LibP2PWorld, Peer, RecordingSink, until
from tests.contract.test_overlay_contract import SOON_S, answer, request, start_linked
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import raw_host
from tests.overlay.test_hardening import assert_gossip_flows, host_of

IDENTIFY, IDENTIFY_PUSH, KADEMLIA = (TProtocol(f"/ipfs/{name}/1.0.0") for name in ("id", "id/push", "kad"))
NO_ADDRESSES = [b"\xff\xff", b"", b"\x04\x01"]
"""Bytes that the library takes for an address until somebody looks."""
STRANGER = b"\x00\x24\x08\x01\x12\x20" + b"k" * 32
"""A well-formed peer id."""


async def assert_works(peer: Peer, other: Peer) -> None:
    """Calls, gossip and links of a peer are as good as before."""
    assert len(await answer(other, peer.id, request("after"))) == DATA_FRAMES + 2
    await assert_gossip_flows(other, peer)
    assert other.id in peer.overlay.links()


def test_a_failure_is_logged_with_its_peer_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    with contained("reading it", peer=None, refuse=counted.append):
        [].pop()
    assert counted == ["IndexError"]
    (record,) = caplog.records
    assert record.getMessage() == "peer=None reading it failed, goes on: IndexError('pop from empty list')"


async def test_cancellation_passes() -> None:
    went_on = False
    with trio.move_on_after(0):
        with contained("waiting"):
            await trio.Event().wait()
        went_on = True
    assert not went_on


class BrokenStream:
    """A stream of the library's in which everything but its name goes wrong."""

    muxed_conn = SimpleNamespace(peer_id=ID(STRANGER))

    async def read(self, _n: int) -> bytes:
        raise IndexError("a bug in the library")

    async def write(self, _data: bytes) -> None:
        raise IndexError("a bug in the library")

    async def reset(self) -> None:
        raise KeyError("another one")


async def test_a_stream_that_breaks_in_an_unknown_way_costs_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a kept-open stream and a pull end as lost, at either side. Method: a stream that only raises."""
    peer, sink = PeerId("peer"), RecordingSink()
    unfinished = Unfinished(per_peer_bytes_max=100, bytes_max=100, refused=lambda *_: None)
    frames = FrameStream(
        BrokenStream(), peer=peer, frame_bytes_max=100, unfinished=unfinished, refuse=lambda *_: None
    )
    await frames.run(lambda *_: None)
    assert frames.reason == "the stream failed"

    async def open_stream(_peer: PeerId) -> BrokenStream:
        return BrokenStream()

    pull = Pull(sink=sink, open_stream=open_stream)
    with pytest.raises(PeerLostError):
        await pull.pull(peer)
    await pull.accept(BrokenStream())
    assert "pulling from it failed: IndexError" in caplog.text
    assert "answering its pull failed, goes on: IndexError" in caplog.text


@pytest.mark.parametrize("protocol", [IDENTIFY, IDENTIFY_PUSH])
async def test_identify_with_bytes_that_are_no_address(world: LibP2PWorld, protocol: TProtocol) -> None:
    """Goal: a link whose addresses cannot be read is a link. Method: connect, be looked at, and leave."""
    a, b = await start_linked(world)
    async with raw_host() as attacker:
        lies = identify_pb2.Identify(
            public_key=attacker.host.get_public_key().serialize(),
            listen_addrs=NO_ADDRESSES,
            protocols=[str(KADEMLIA)],
        )

        async def lie(stream: Any) -> None:
            await stream.write(with_length(lies.SerializeToString()))
            await stream.close()

        attacker.host.set_stream_handler(IDENTIFY, lie)
        await attacker.connect(a.address)
        if protocol == IDENTIFY_PUSH:
            await lie(await attacker.open(a.id, IDENTIFY_PUSH))
        known = host_of(a).host.get_peerstore()
        attackers = ID.from_base58(attacker.id)
        await until(
            lambda: attackers in known.peer_data_map and bool(known.peer_data_map[attackers].addrs),
            within_s=SOON_S,
        )
        await until(lambda: attacker.id in a.overlay.links(), within_s=SOON_S)
    await until(lambda: a.sink.down == [attacker.id], within_s=SOON_S)
    await assert_works(a, b)


@pytest.mark.parametrize("peer_id", [STRANGER, b"", b"\x01\x02\x03"])
async def test_an_answer_about_peers_that_are_none(world: LibP2PWorld, peer_id: bytes) -> None:
    """Goal: discovery outlives what it is told. Method: a peer with a bad id, or bad addresses."""
    a, b = await start_linked(world)
    asked = 0
    lies = kademlia_pb2.Message(type=kademlia_pb2.Message.MessageType.FIND_NODE)
    lies.closerPeers.add(id=peer_id, addrs=[*NO_ADDRESSES, b"\x04\x7f\x00\x00\x01\x06\x10\x00"])

    async def lie(stream: Any) -> None:
        nonlocal asked
        await stream.read(2000)
        await stream.write(with_length(lies.SerializeToString()))
        await stream.close()
        asked += 1

    async with raw_host() as attacker:
        attacker.host.set_stream_handler(KADEMLIA, lie)
        await attacker.connect(a.address)
        await until(lambda: asked >= 2, within_s=SOON_S)
        await assert_works(a, b)


async def test_a_negotiation_that_is_answered_with_garbage(world: LibP2PWorld) -> None:
    """Goal: a stream that cannot be opened is a peer lost for that call. Method: no UTF-8 in the answer."""
    a, b = await start_linked(world)

    async def babble(stream: Any) -> None:
        await stream.write(b"\x03\xff\xff\n" * 10)
        await stream.close()

    async with raw_host() as attacker:
        await attacker.connect(a.address)
        await until(lambda: a.linked_to(attacker.id), within_s=SOON_S)
        attacker.host.get_network().set_stream_handler(babble)
        with pytest.raises(PeerLostError):
            await a.overlay.pull(attacker.id)
        with pytest.raises(PeerLostError):
            await answer(a, attacker.id, request("r1"))
    await assert_works(a, b)


async def test_a_sink_that_fails_costs_what_it_was_told(
    world: LibP2PWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a bug in whoever is told ends no loop. Method: fail on everything for a while, then do not."""
    a, b = await start_linked(world)
    failing = True

    def fail_first(name: str) -> None:
        tell = getattr(a.sink, name)

        def told(*args: Any) -> Any:
            if failing:
                raise ZeroDivisionError(name)
            return tell(*args)

        setattr(a.sink, name, told)

    for name in ("gossip", "link_up", "link_down", "hello"):
        fail_first(name)
    c = await world.start(join=[a.address])
    await until(lambda: a.linked_to(c.id) and c.linked_to(a.id), within_s=SOON_S)
    with pytest.raises(PeerLostError):
        await b.overlay.pull(a.id)
    with trio.fail_after(SOON_S):
        while not a.sink.drops["gossip"]:
            await b.overlay.publish(b"the tree")
            await trio.sleep(0.3)
    await world.stop(c)
    failed = ("'gossip'", "'link_up'", "'link_down'", "'hello'")
    await until(lambda: all(f"ZeroDivisionError({name})" in caplog.text for name in failed), within_s=SOON_S)
    assert f"peer={c.id}" in caplog.text
    assert set(a.sink.reasons) == {"ZeroDivisionError"}
    failing = False
    await assert_works(a, b)
    assert await b.overlay.pull(a.id)
    d = await world.start(join=[a.address])
    await until(lambda: d.id in a.sink.up, within_s=SOON_S)
