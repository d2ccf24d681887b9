"""Who gets a message from whom: authors tell all, and the mesh is for those whom they do not reach."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import get_peer_and_seqno_msg_id
from trio.testing import MockClock

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.overlay.dialler import DialError
from peerinfer.overlay.direct_gossip import (
    BACK_WITHIN_S,
    DEGREE,
    LAZY_PEERS,
    MESH_LINKED_MAX,
    DirectGossip,
)
from peerinfer.overlay.swarm import Swarm
from peerinfer.overlay.topic import HEARD_S, Topic
from tests.contract.overlay_worlds import LibP2PWorld, RecordingSink, until
from tests.contract.test_overlay_contract import SOON_S

TOPIC = "topic"
ME = ID(b"me")


def router_with(peers: int) -> tuple[DirectGossip, list[ID]]:
    """A router that has joined a topic with so many peers, none of them in its mesh."""
    router = DirectGossip(protocols=[PROTOCOL_ID_V11], degree_high=512, prune_back_off=5)
    others = [ID(b"peer%d" % number) for number in range(peers)]
    pubsub: Any = SimpleNamespace(my_id=ME, peer_topics={TOPIC: set(others)}, peers=dict.fromkeys(others))
    router.pubsub = pubsub
    router.mesh[TOPIC] = set()
    router.peer_protocol.update(dict.fromkeys(others, PROTOCOL_ID_V11))
    return router, others


async def asks(router: DirectGossip, peer: ID) -> None:
    await router.handle_graft(rpc_pb2.ControlGraft(topicID=TOPIC), peer)


async def test_author_tells_everybody_and_others_tell_their_mesh() -> None:
    router, others = router_with(10)
    router.mesh[TOPIC] = set(others[:2])
    assert set(router._get_peers_to_send([TOPIC], ME, ME)) == set(others)
    assert set(router._get_peers_to_send([TOPIC], others[0], others[5])) == {others[1]}


async def test_mesh_has_its_usual_size_while_links_are_missing_and_hardly_any_otherwise() -> None:
    """Goal: copies only where they are needed. Method: without links, with all, and once more without."""
    router, _ = router_with(20)
    router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == DEGREE
    router.lacks_links = lambda: False
    graft, prune = router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == MESH_LINKED_MAX
    assert (len(graft), len(prune)) == (0, DEGREE - MESH_LINKED_MAX)
    assert router.mesh_heartbeat() == ({}, {})
    router.lacks_links = lambda: True
    router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == DEGREE


async def test_node_that_is_linked_with_all_keeps_a_mesh_of_one_and_asks_for_no_more() -> None:
    router, _ = router_with(20)
    router.lacks_links = lambda: False
    assert len(router.mesh_heartbeat()[0]) == 1
    for _ in range(5):
        assert router.mesh_heartbeat() == ({}, {})
    assert len(router.mesh[TOPIC]) == 1


async def test_those_that_a_node_asked_for_go_before_those_that_asked_it() -> None:
    router, others = router_with(20)
    router.mesh_heartbeat()
    own = set(router.mesh[TOPIC])
    asker = next(peer for peer in others if peer not in own)
    await asks(router, asker)
    router.lacks_links = lambda: False
    _, prune = router.mesh_heartbeat()
    assert set(prune) < own
    assert asker in router.mesh[TOPIC]


async def test_a_hub_puts_out_one_asker_at_a_time_and_keeps_who_comes_back(
    autojump_clock: MockClock,
) -> None:
    """Goal: leaves that have nobody else are heard and told, and a first node of many has not all of them
    for ever. Method: two of ten come back, the others have found somebody else."""
    router, others = router_with(10)
    router.lacks_links = lambda: False
    for peer in others:
        await asks(router, peer)
    leaves, came_back = others[:2], 0
    for _ in range(30):
        before = set(router.mesh[TOPIC])
        _, prune = router.mesh_heartbeat()
        assert len(prune) <= 1
        assert before - router.mesh[TOPIC] == set(prune)
        for peer in prune:
            if peer in leaves:
                await asks(router, peer)
                came_back += 1
        await trio.sleep(1)
    assert came_back <= 2, "who came back stays"
    assert set(leaves) <= router.mesh[TOPIC]
    assert len(router.mesh[TOPIC]) <= MESH_LINKED_MAX + came_back


async def test_who_asks_again_much_later_is_a_new_asker(autojump_clock: MockClock) -> None:
    router, others = router_with(10)
    router.lacks_links = lambda: False
    for peer in others[: MESH_LINKED_MAX + 1]:
        await asks(router, peer)
    (first,) = router.mesh_heartbeat()[1]
    await trio.sleep(BACK_WITHIN_S)
    await asks(router, first)
    assert not router._needy


async def test_who_leaves_the_mesh_or_is_gone_is_forgotten(autojump_clock: MockClock) -> None:
    router, others = router_with(10)
    router.lacks_links = lambda: False
    for peer in others[: MESH_LINKED_MAX + 1]:
        await asks(router, peer)
    (needy,) = router.mesh_heartbeat()[1]
    await asks(router, needy)
    assert router._needy == {needy}
    await router.handle_prune(rpc_pb2.ControlPrune(topicID=TOPIC), needy)
    gone = next(iter(router.mesh[TOPIC]))
    router.remove_peer(gone)
    assert not router._needy
    assert not {needy, gone} & router._askers


async def test_only_what_linked_authors_did_not_write_is_asked_for() -> None:
    """Goal: nodes that are late do not ask for all that is late once more. Method: ids of either kind."""
    router, others = router_with(3)
    asked: list[bytes] = []

    async def asks_for(ids: Sequence[bytes], _to: ID) -> None:
        asked.extend(ids)

    router.emit_iwant = asks_for  # type: ignore[method-assign]
    assert router.pubsub is not None
    router.pubsub.seen_messages = SimpleNamespace(has=lambda _id: False)  # type: ignore[assignment]
    far, linked = (
        get_peer_and_seqno_msg_id(rpc_pb2.Message(from_id=author.to_bytes(), seqno=bytes(8)))
        for author in (ID(b"far"), others[0])
    )
    for has in ([far.hex().encode(), linked, b"0"], [linked]):
        await router.handle_ihave(rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=has), others[1])
    assert asked == [far]


async def test_few_are_told_what_they_could_ask_for_however_large_the_swarm_is() -> None:
    router, _ = router_with(100)
    assert router._get_adaptive_gossip_peers_count(TOPIC, 97) == LAZY_PEERS
    assert router._get_adaptive_gossip_peers_count(TOPIC, 3) == 3


async def test_links_are_lacking_while_authors_are_heard_that_are_not_linked(
    autojump_clock: MockClock,
) -> None:
    """Method: one author that is linked, one that is not; the second falls silent."""
    linked, far = ID(b"linked"), ID(b"far")
    send, receive = trio.open_memory_channel[Any](10)

    async def subscribe(_name: str) -> Any:
        return SimpleNamespace(get=receive.receive)

    pubsub = SimpleNamespace(
        set_topic_validator=lambda *_: None, push_msg=None, subscribe=subscribe, peers={linked: None}
    )
    topic = Topic(
        TOPIC,
        me=PeerId("me"),
        pubsub=pubsub,
        config=OverlayConfig(),
        sink=RecordingSink(),
        wants=lambda _peer: True,
        too_loud=lambda _peer: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(topic.run)
        for author, lacks in ((linked, False), (far, True), (linked, True)):
            send.send_nowait(rpc_pb2.Message(data=b"x", from_id=author.to_bytes()))
            await trio.testing.wait_all_tasks_blocked()
            assert topic.lacks_links() is lacks
        await trio.sleep(HEARD_S - 1)
        send.send_nowait(rpc_pb2.Message(data=b"x", from_id=linked.to_bytes()))
        await trio.sleep(2)
        assert not topic.lacks_links()
        nursery.cancel_scope.cancel()


async def test_leaves_of_a_star_hear_each_other(world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nodes that only a hub reaches are told all the same. Method: six real hosts that can dial none
    but the first; each publishes until everybody has heard everybody."""
    hub = await world.start()
    dial = Swarm._dial

    async def only_the_hub(self: Swarm, peer: PeerId, addr: str) -> None:
        if peer != hub.id:
            raise DialError("a firewall")
        await dial(self, peer, addr)

    monkeypatch.setattr(Swarm, "_dial", only_the_hub)
    leaves = [await world.start(join=[hub.address]) for _ in range(6)]
    everybody = {hub.id, *(leaf.id for leaf in leaves)}
    await until(lambda: len(hub.overlay.links()) == len(leaves), within_s=SOON_S)
    with trio.fail_after(SOON_S):
        while any(
            {peer for peer, _ in each.sink.messages} != everybody - {each.id} for each in (hub, *leaves)
        ):
            for each in (hub, *leaves):
                await each.overlay.publish(b"here")
            await trio.sleep(0.3)
    assert all(set(leaf.overlay.links()) == {hub.id} for leaf in leaves)
