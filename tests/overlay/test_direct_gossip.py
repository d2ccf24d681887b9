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
    MESH_DIRECT_MAX,
    MESH_MAX,
    MISSED_WITHIN_S,
    MISSES,
    DirectGossip,
)
from peerinfer.overlay.swarm import Swarm
from peerinfer.overlay.topic import HEARD_S, Topic
from tests.contract.overlay_worlds import LibP2PWorld, RecordingSink, until
from tests.contract.test_overlay_contract import SOON_S
from tests.overlay.gossip_world import TOPIC, GossipWorld, Link, clique

ME = ID(b"me")


def router_with(peers: int) -> tuple[DirectGossip, list[ID]]:
    """A router that has joined a topic with so many peers, none of them in its mesh."""
    router = DirectGossip(protocols=[PROTOCOL_ID_V11], degree_high=512, prune_back_off=5)
    others = [ID(b"peer%d" % number) for number in range(peers)]
    pubsub: Any = SimpleNamespace(
        my_id=ME,
        peer_topics={TOPIC: set(others)},
        peers=dict.fromkeys(others),
        _peer_is_connected=lambda _peer: False,
    )
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


async def test_what_others_say_is_passed_on_and_kept_for_nobody() -> None:
    """Method: one peer in the mesh, one that has not subscribed. It is kept to be asked for all the same."""
    router, others = router_with(3)
    sent = sent_by(router)
    router.mesh[TOPIC] = {others[0]}
    assert router.pubsub is not None
    router.pubsub.peer_topics[TOPIC].discard(others[2])
    await router.publish(others[1], message(others[1], 1))
    assert [to for to, _ in sent] == [others[0]]
    assert not router._pending_messages
    assert len(router.mcache.window(TOPIC)) == 1


async def test_newcomer_is_told_the_last_that_this_node_said_and_nothing_of_others() -> None:
    """Goal: it gets a message from each link, not all messages from each. Method: two own, one of a peer."""
    router, others = router_with(2)
    sent = sent_by(router)
    await router.send_recent_messages(others[1], TOPIC)
    assert not sent, "nothing was said"
    for each in (message(ME, 254), message(ME, 257), message(others[0], 300)):
        router.mcache.put(each)
    await router.send_recent_messages(others[1], TOPIC)
    assert [(to, list(rpc.publish)) for to, rpc in sent] == [(others[1], [message(ME, 257)])]


def message(author: ID, number: int) -> rpc_pb2.Message:
    return rpc_pb2.Message(
        data=b"x", topicIDs=[TOPIC], from_id=author.to_bytes(), seqno=number.to_bytes(8, "big")
    )


def sent_by(router: DirectGossip) -> list[tuple[ID, Any]]:
    """What a router sends from now on."""
    sent: list[tuple[ID, Any]] = []
    setattr(router, "send_rpc", lambda to, rpc, **_: sent.append((to, rpc)))  # noqa: B010
    return sent


async def test_mesh_has_its_usual_size_while_links_are_missing_and_hardly_any_otherwise() -> None:
    """Goal: copies only where they are needed. Method: without links, with all, and once more without."""
    router, _ = router_with(20)
    router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == DEGREE
    router.lacks_authors = lambda: False
    graft, prune = router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == MESH_DIRECT_MAX
    assert (len(graft), len(prune)) == (0, DEGREE - MESH_DIRECT_MAX)
    assert router.mesh_heartbeat() == ({}, {})
    router.lacks_authors = lambda: True
    router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == DEGREE


async def test_node_that_is_linked_with_all_keeps_a_mesh_of_one_and_asks_for_no_more() -> None:
    router, _ = router_with(20)
    router.lacks_authors = lambda: False
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
    router.lacks_authors = lambda: False
    _, prune = router.mesh_heartbeat()
    assert set(prune) < own
    assert asker in router.mesh[TOPIC]


async def test_a_hub_puts_out_one_asker_at_a_time_and_keeps_who_comes_back(
    autojump_clock: MockClock,
) -> None:
    """Goal: leaves that have nobody else are heard and told, and a first node of many has not all of them
    for ever. Method: two of ten come back, the others have found somebody else."""
    router, others = router_with(10)
    router.lacks_authors = lambda: False
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
    assert len(router.mesh[TOPIC]) <= MESH_DIRECT_MAX + came_back


async def test_who_asks_again_much_later_is_a_new_asker(autojump_clock: MockClock) -> None:
    router, others = router_with(10)
    router.lacks_authors = lambda: False
    for peer in others[: MESH_DIRECT_MAX + 1]:
        await asks(router, peer)
    (first,) = router.mesh_heartbeat()[1]
    await trio.sleep(BACK_WITHIN_S)
    await asks(router, first)
    assert not router._needy


async def test_who_leaves_the_mesh_or_is_gone_is_forgotten(autojump_clock: MockClock) -> None:
    router, others = router_with(10)
    router.lacks_authors = lambda: False
    for peer in others[: MESH_DIRECT_MAX + 1]:
        await asks(router, peer)
    (needy,) = router.mesh_heartbeat()[1]
    await asks(router, needy)
    assert router._needy == {needy}
    await router.handle_prune(rpc_pb2.ControlPrune(topicID=TOPIC), needy)
    gone = next(iter(router.mesh[TOPIC]))
    router.remove_peer(gone)
    assert not router._needy
    assert not {needy, gone} & router._askers


async def test_word_about_another_topic_changes_nothing(autojump_clock: MockClock) -> None:
    router, others = router_with(3)
    await asks(router, others[0])
    await router.handle_prune(rpc_pb2.ControlPrune(topicID="another"), others[0])
    assert router._askers == {others[0]}


async def test_those_who_left_before_they_could_be_talked_to_do_not_stay_in_the_mesh() -> None:
    """Goal: no ghost takes a place. Method: one that there is no stream to: connected still, then gone."""
    router, _ = router_with(3)
    ghost = ID(b"ghost")
    await asks(router, ghost)
    pubsub: Any = router.pubsub
    pubsub._peer_is_connected = lambda _peer: True
    router.mesh_heartbeat()
    assert ghost in router.mesh[TOPIC]
    pubsub._peer_is_connected = lambda _peer: False
    router.mesh_heartbeat()
    assert ghost not in router.mesh[TOPIC] | router._askers


async def test_a_mesh_is_bounded_where_authors_are_lacking_too(autojump_clock: MockClock) -> None:
    router, others = router_with(40)
    for peer in others:
        await asks(router, peer)
    for _ in range(40):
        assert len(router.mesh_heartbeat()[1]) <= 1
    assert len(router.mesh[TOPIC]) == MESH_MAX


async def test_who_has_what_was_missed_is_asked_into_the_mesh(autojump_clock: MockClock) -> None:
    """Goal: bridges are found. Method: messages that came neither way, once, long after, and soon again."""
    router, others = router_with(10)
    asked: list[ID] = []

    async def graft(_topic: str, peer: ID) -> None:
        asked.append(peer)

    router.emit_graft = graft  # type: ignore[method-assign]
    router.emit_iwant = nothing  # type: ignore[method-assign]
    pubsub: Any = router.pubsub
    pubsub.seen_messages = SimpleNamespace(has=lambda _id: False)

    async def hears_of(number: int) -> None:
        message = ID(b"far").to_bytes() + number.to_bytes(8, "big")
        await router.handle_ihave(rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[message]), others[7])

    await hears_of(1)
    await trio.sleep(MISSED_WITHIN_S + 1)
    await hears_of(2)
    assert not asked
    for number in range(MISSES):
        await hears_of(number + 3)
    assert asked == [others[7]]
    assert others[7] in router.mesh[TOPIC]


async def nothing(_ids: Sequence[bytes], _to: ID) -> None:
    """In place of asking for messages."""


async def in_a_world(nodes: int, links: list[Link], patch: pytest.MonkeyPatch, *, seed: int) -> GossipWorld:
    world = GossipWorld(nodes, links, seed=seed)
    with world.clock.installed(patch):
        await world.run(80.0)
    return world


@pytest.mark.parametrize("seed", range(2))
async def test_full_mesh_costs_few_copies(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Goal: what a message costs does not grow with the swarm. Method: 16 routers, all linked."""
    world = await in_a_world(16, clique(range(16)), monkeypatch, seed=seed)
    assert world.share_received(range(16), range(16), after_s=0, until_s=80) == 1.0
    assert world.copies < 3.0


@pytest.mark.parametrize("seed", range(2))
async def test_one_that_few_can_reach_does_not_flood_the_others(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Method: 16 routers, all linked, and one more that is linked with the first only."""
    world = await in_a_world(17, [*clique(range(16)), (0, 16)], monkeypatch, seed=seed)
    assert world.share_received(range(17), range(17), after_s=30, until_s=75) == 1.0
    assert world.copies < 6.0


@pytest.mark.parametrize("seed", range(2))
async def test_two_sites_hear_each_other_through_their_only_bridge(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Goal: no pruning cuts a swarm in two. Method: a small and a large site; linked by a hub that both can
    reach, and by one link between two of their nodes."""
    small, large = range(1, 6), range(6, 20)
    hub = [(0, node) for node in (*small, *large)]
    for links in ([*clique(small), *clique(large), *hub], [*clique(small), *clique(large), (1, 6)]):
        world = await in_a_world(20, links, monkeypatch, seed=seed)
        for authors, by in ((small, large), (large, small)):
            assert world.share_received(authors, by, after_s=40, until_s=75) > 0.99


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
    router.reaches_us = lambda author: author == others[0]
    for has in ([far.hex().encode(), linked, b"0"], [linked]):
        await router.handle_ihave(rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=has), others[1])
    assert asked == [far]


async def test_few_are_told_what_they_could_ask_for_however_large_the_swarm_is() -> None:
    router, _ = router_with(100)
    assert router._get_adaptive_gossip_peers_count(TOPIC, 97) == LAZY_PEERS
    assert router._get_adaptive_gossip_peers_count(TOPIC, 3) == 3


async def test_authors_are_lacking_while_they_are_heard_at_second_hand_only(
    autojump_clock: MockClock,
) -> None:
    """Method: one author whose messages come from itself, too, one whose do not; the second falls silent."""
    near, far = ID(b"near"), ID(b"far")
    send, receive = trio.open_memory_channel[Any](10)

    async def subscribe(_name: str) -> Any:
        return SimpleNamespace(get=receive.receive)

    async def push(_forwarder: ID, message: Any) -> None:
        send.send_nowait(message)

    pubsub = SimpleNamespace(
        set_topic_validator=lambda *_: None,
        push_msg=push,
        subscribe=subscribe,
        _is_msg_seen=lambda _message: True,
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

    async def comes(author: ID, *, through: ID) -> None:
        await pubsub.push_msg(through, rpc_pb2.Message(data=b"x", from_id=author.to_bytes()))
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(topic.run)
        await comes(near, through=far)
        assert topic.lacks_authors()
        await comes(near, through=near)
        assert not topic.lacks_authors()
        await comes(far, through=near)
        assert topic.lacks_authors()
        assert (topic.reaches_us(near), topic.reaches_us(far)) == (True, False)
        await trio.sleep(HEARD_S - 1)
        await comes(near, through=near)
        await trio.sleep(2)
        assert not topic.lacks_authors()
        await trio.sleep(HEARD_S)
        assert not topic.reaches_us(near)
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
