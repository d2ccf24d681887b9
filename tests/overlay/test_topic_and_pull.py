"""What a peer may put on the topic, and how often it may pull."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from trio.testing import MockClock

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.pull import HELLO_BYTES_MAX, PULLS_AT_ONCE_MAX, SNAPSHOT_PROTOCOL
from peerinfer.overlay.topic import GOSSIP_BYTES_MAX, Topic
from tests.contract.overlay_worlds import LibP2PWorld, Peer, RecordingSink, until
from tests.contract.test_overlay_contract import SOON_S, start_linked
from tests.overlay.peer_process import TOPIC
from tests.overlay.raw_host import raw_host
from tests.overlay.test_hardening import assert_gossip_flows, host_of


async def test_a_peer_that_publishes_too_much_is_disconnected_and_kept_out(world: LibP2PWorld) -> None:
    """Goal: the rate is held by whoever receives. Method: 200 messages at once; then it tries to return."""
    a, b = await start_linked(world)
    await assert_gossip_flows(b, a)
    began = trio.current_time()
    with trio.fail_after(SOON_S):
        while not a.sink.down:
            await b.overlay.publish(b"spam")
            await trio.sleep(0.002)
    assert a.sink.drops["gossip"] >= 1
    assert "too many messages" in a.sink.reasons
    lasted_s = trio.current_time() - began
    assert len(a.sink.messages) < 100 + lasted_s * OverlayConfig().gossip_per_peer_per_s_max
    await trio.sleep(1.5)
    assert not a.overlay.links()


async def test_an_author_is_not_blamed_for_what_others_send_again(autojump_clock: MockClock) -> None:
    """Its messages of a minute at once, old and properly signed; what it says itself still goes through."""
    author, attacker = ID(b"author"), ID(b"attacker")
    loud: list[PeerId] = []
    validators: list[Any] = []
    pubsub = SimpleNamespace(
        set_topic_validator=lambda _name, validator, _is_async: validators.append(validator), push_msg=None
    )
    Topic(
        "topic",
        me=PeerId("me"),
        pubsub=pubsub,
        config=OverlayConfig(),
        sink=RecordingSink(),
        wants=lambda _peer: True,
        too_loud=loud.append,
    )
    (welcome,) = validators
    message = rpc_pb2.Message(data=b"old", from_id=author.to_bytes())
    assert not all(welcome(attacker, message) for _ in range(500))
    assert not loud
    assert welcome(author, message)
    assert not all(welcome(author, message) for _ in range(500))
    assert set(loud) == {author.to_base58()}


def bare_pubsub(host: Any) -> tuple[Any, Any]:
    """The library's gossip, without our limits."""
    router = GossipSub(protocols=[PROTOCOL_ID], degree=3, degree_low=2, degree_high=4, heartbeat_interval=1)
    return Pubsub(host, router), router


async def publish_until(a: Peer, pubsub: Any, message: Any) -> None:
    """Push one forged message until it was refused."""
    with trio.fail_after(SOON_S):
        while not a.sink.drops["gossip"]:
            for queue in list(pubsub.peer_queues.values()):
                queue.push(rpc_pb2.RPC(publish=[message]))
            await trio.sleep(0.2)


async def test_a_message_in_anothers_name_is_refused_and_counted(world: LibP2PWorld) -> None:
    """Goal: `from` must be whoever signed. Method: the attacker's signature under a victim's name."""
    a, victim = await start_linked(world)
    async with raw_host() as attacker:
        pubsub, router = bare_pubsub(attacker.host)
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.subscribe(TOPIC)
            await attacker.connect(a.address)
            forged = rpc_pb2.Message(
                data=b"lies",
                topicIDs=[TOPIC],
                from_id=host_of(victim).host.get_id().to_bytes(),
                seqno=(1).to_bytes(8, "big"),
            )
            forged.signature = attacker.host.get_private_key().sign(
                b"libp2p-pubsub:" + forged.SerializeToString()
            )
            await publish_until(a, pubsub, forged)
    assert a.sink.reasons == ["not signed by its author"] * a.sink.drops["gossip"]
    assert not a.sink.messages


async def test_a_message_that_is_too_large_is_refused_and_counted(world: LibP2PWorld) -> None:
    a = await world.start()
    async with raw_host() as attacker:
        pubsub, router = bare_pubsub(attacker.host)
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.subscribe(TOPIC)
            await attacker.connect(a.address)
            with trio.fail_after(SOON_S):
                while not a.sink.drops["gossip"]:
                    await pubsub.publish(TOPIC, b"x" * (GOSSIP_BYTES_MAX + 1))
                    await trio.sleep(0.2)
    assert set(a.sink.reasons) == {f"{GOSSIP_BYTES_MAX + 1} bytes"}
    assert not a.sink.messages


async def test_pulls_are_limited_per_peer(world: LibP2PWorld) -> None:
    a, b = await start_linked(world)
    refused = 0
    for _ in range(int(PULLS_AT_ONCE_MAX) + 6):
        try:
            await a.overlay.pull(b.id)
        except PeerLostError:
            refused += 1
    assert 1 <= refused <= 6
    assert b.sink.drops["snapshot"] == refused
    await trio.sleep(0.5)
    assert await a.overlay.pull(b.id)


@pytest.mark.parametrize(
    ("reply", "counted"), [(with_length(b"x" * (HELLO_BYTES_MAX + 1)), 1), (b"\xff" * 9, 1), (b"\x05ab", 0)]
)
async def test_a_bad_hello_loses_the_pull(world: LibP2PWorld, reply: bytes, counted: int) -> None:
    (a,) = await start_linked(world, 1)

    async def lie(stream: Any) -> None:
        await stream.write(reply[:1000])
        await stream.close()

    async with raw_host() as attacker:
        attacker.host.set_stream_handler(SNAPSHOT_PROTOCOL, lie)
        await attacker.connect(a.address)
        await until(lambda: a.linked_to(attacker.id), within_s=SOON_S)
        with trio.fail_after(SOON_S), pytest.raises(PeerLostError):
            await a.overlay.pull(attacker.id)
    assert a.sink.drops["snapshot"] == counted
