"""Light nodes: to a whole node they are peers like any other, though they are linked with nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from trio.testing import MockClock

from benchmarks.kit.light_nodes import LightNodes, light_config
from benchmarks.kit.whispers import Whispers
from peerinfer.app import Peer, run_peer
from peerinfer.config import Config, EngineConfig, HttpConfig, OverlayConfig
from peerinfer.overlay.direct_gossip import DirectGossip
from peerinfer.overlay.host import MESHSUB_1_1

TOPIC = "topic"
WHOLE = ID(b"whole")
CONFIG = Config(
    engine=EngineConfig(kind="simulated"),
    overlay=OverlayConfig(listen=("/ip4/127.0.0.1/tcp/0",)),
    http=HttpConfig(port=0),
)


async def test_whole_node_takes_light_ones_for_whole(tmp_path: Path) -> None:
    """Method: three of them at one real node. It hears them, asks them, and hears that their trees grow."""
    tell, told = trio.open_memory_channel[str](1)
    light_dir = tmp_path / "light"
    light_dir.mkdir()
    async with run_peer(CONFIG, data_dir=tmp_path / "whole") as whole, trio.open_nursery() as nursery:
        light = LightNodes(light_config(CONFIG, nodes=4, peers=whole.addrs), directory=light_dir)
        nursery.start_soon(light.run, range(1, 4), told)
        await until(lambda: len(known(whole)) == 3)
        await until(lambda: all(peer["state"] == "alive" and peer["rtt_s"] for peer in known(whole)))
        assert all(peer["pages"] == 0 for peer in known(whole)), "idle"
        await tell.send("busy")
        await until(lambda: all(peer["pages"] > 10 for peer in known(whole)))
        assert len(whole.node.context.overlay.links()) == 3
        await tell.aclose()


def known(peer: Peer) -> list[dict[str, Any]]:
    peers = peer.node.peers()["peers"]
    assert isinstance(peers, list)
    return peers


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.05)


class Place:
    """A light router in a host that is none: what it really sends is kept."""

    def __init__(self, name: bytes) -> None:
        self.id, self.sent = ID(name), list[tuple[ID, Any]]()
        self.seen: set[bytes] = set()
        router: Any = DirectGossip(protocols=[MESHSUB_1_1], degree_high=512, spam_protection_enabled=False)
        router.pubsub = SimpleNamespace(
            my_id=self.id,
            peers={WHOLE: None},
            peer_topics={TOPIC: {WHOLE}},
            get_message_id=lambda message: message.seqno,
            _is_msg_seen=lambda message: message.seqno in self.seen,
            _mark_msg_seen=lambda message: self.seen.add(message.seqno),
        )
        router.peer_protocol[WHOLE] = MESHSUB_1_1
        router.mesh[TOPIC] = set()
        router.send_rpc = lambda to, rpc, _priority=False: self.sent.append((to, rpc))
        self.router = router
        self.host: Any = SimpleNamespace(
            host=SimpleNamespace(get_id=lambda: self.id), pubsub=router.pubsub, router=router
        )


async def test_light_ones_pass_on_to_the_whole_nodes_of_their_mesh(autojump_clock: MockClock) -> None:
    """Method: one of three publishes; of the others one has the whole node in its mesh."""
    whispers, places = Whispers(TOPIC), [Place(name) for name in (b"one", b"two", b"three")]
    for place in places:
        whispers.join(place.host)
    places[1].router.mesh[TOPIC].add(WHOLE)
    places[2].router.mesh[TOPIC].add(places[0].id)
    message = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=b"one", seqno=b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(whispers.run)
        await places[0].router.publish(places[0].id, message)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [[to for to, _ in place.sent] for place in places] == [[WHOLE], [WHOLE], []]
    assert all(len(place.router.mcache.window(TOPIC)) == 1 for place in places), "all can tell of it"


async def test_light_ones_ask_each_other_into_their_mesh(autojump_clock: MockClock) -> None:
    whispers, places = Whispers(TOPIC), [Place(name) for name in (b"one", b"two")]
    for place in places:
        whispers.join(place.host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(whispers.run)
        await places[0].router.emit_graft(TOPIC, places[1].id)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert places[1].router.mesh[TOPIC] == {places[0].id}
    assert not places[0].sent
