"""A network of routers without hosts: given links, the test's own time, delivery at once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from libp2p.peer.id import ID
from libp2p.pubsub import gossipsub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import get_peer_and_seqno_msg_id

from peerinfer.overlay import direct_gossip
from peerinfer.overlay.direct_gossip import DirectGossip
from peerinfer.overlay.topic import Authors

TOPIC = "topic"
EVERY_S = 2.0
"""Between two messages of a node."""
Link = tuple[int, int]


def clique(nodes: Iterable[int]) -> list[Link]:
    """All linked with all."""
    return list(combinations(nodes, 2))


class Clock:
    """The time that the library and the router read."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    @contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """While this is entered."""
        with patch.context() as patched:
            patched.setattr(gossipsub, "time", SimpleNamespace(time=lambda: self.now))
            patched.setattr(direct_gossip, "trio", SimpleNamespace(current_time=lambda: self.now))
            yield


class Place:
    """One node's router, and what it has received."""

    def __init__(self, number: int, world: GossipWorld) -> None:
        self.id = ID(b"node%04d" % number)
        self.seen: set[bytes] = set()
        self.copies = 0
        self._world = world
        self._authors = Authors()
        self._published = 0
        self.router = DirectGossip(
            protocols=[gossipsub.PROTOCOL_ID_V11],
            degree_high=512,
            prune_back_off=5,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
        )
        pubsub: Any = SimpleNamespace(
            my_id=self.id,
            peers={},
            peer_topics={TOPIC: set()},
            seen_messages=SimpleNamespace(has=self.seen.__contains__),
            get_message_id=get_peer_and_seqno_msg_id,
            _peer_is_connected=lambda _peer: True,
        )
        router: Any = self.router
        router.pubsub = pubsub
        router.mesh[TOPIC] = set()
        router.send_rpc = lambda to, rpc, priority=False: world.sent.append((self.id, to, rpc))
        clock, authors = world.clock, self._authors
        router.reaches_us = lambda author: authors.reach_us(author.to_bytes(), now=clock.now)
        router.lacks_authors = lambda: authors.lacking(now=clock.now)

    async def link(self, peer: ID) -> None:
        """A peer is connected, and has subscribed."""
        assert self.router.pubsub is not None
        self.router.pubsub.peers[peer] = None  # type: ignore[assignment]
        self.router.pubsub.peer_topics[TOPIC].add(peer)
        self.router.peer_protocol[peer] = gossipsub.PROTOCOL_ID_V11
        await self.router.on_peer_subscribed(peer, TOPIC)

    async def publish(self) -> bytes:
        """A message of its own; its id."""
        self._published += 1
        number = self._published.to_bytes(8, "big")
        message = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], from_id=self.id.to_bytes(), seqno=number)
        self.seen.add(get_peer_and_seqno_msg_id(message))
        await self.router.publish(self.id, message)
        return get_peer_and_seqno_msg_id(message)

    async def receive(self, sender: ID, rpc: Any) -> None:
        """What a peer sent."""
        now = self._world.clock.now
        for message in rpc.publish:
            self.copies += 1
            if sender.to_bytes() == message.from_id:
                self._authors.reached(message.from_id, now=now)
            if get_peer_and_seqno_msg_id(message) not in self.seen:
                self.seen.add(get_peer_and_seqno_msg_id(message))
                self._authors.heard(message.from_id, now=now)
                await self.router.publish(sender, message)
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, sender)

    async def beat(self) -> None:
        """The router's heartbeat."""
        graft, prune = self.router.mesh_heartbeat()
        await self.router._emit_control_msgs(graft, prune, self.router.gossip_heartbeat())
        self.router.mcache.shift()


class GossipWorld:
    """So many nodes with these links, which come up in a random order."""

    def __init__(self, nodes: int, links: Iterable[Link], *, seed: int) -> None:
        self.clock = Clock()
        self.sent: deque[tuple[ID, ID, Any]] = deque()
        self.places = [Place(number, self) for number in range(nodes)]
        self._by_id = {place.id: place for place in self.places}
        self._links, self._rng = list(links), random.Random(seed)
        self._published: list[tuple[float, int, bytes]] = []

    async def run(self, seconds: float) -> None:
        """Every node publishes, and its heart beats, once in a while."""
        self._rng.shuffle(self._links)
        for one, other in self._links:
            for mine, theirs in ((one, other), (other, one)):
                await self.places[mine].link(self.places[theirs].id)
            await self._deliver()
        begin, events = self.clock.now, list[tuple[float, int, bool]]()
        for number in range(len(self.places)):
            for every_s, is_beat in ((1.0, True), (EVERY_S, False)):
                at_s = begin + self._rng.uniform(0, every_s)
                while at_s < begin + seconds:
                    events.append((at_s, number, is_beat))
                    at_s += every_s
        for at_s, number, is_beat in sorted(events):
            self.clock.now = at_s
            if is_beat:
                await self.places[number].beat()
            else:
                self._published.append((at_s - begin, number, await self.places[number].publish()))
            await self._deliver()

    def share_received(
        self, authors: Iterable[int], by: Iterable[int], *, after_s: float, until_s: float
    ) -> float:
        """Of what these published in that time, as much as those have, each."""
        wanted, by = set(authors), list(by)
        ids = [
            (each, author)
            for at_s, author, each in self._published
            if author in wanted and after_s <= at_s < until_s
        ]
        have = sum(
            each in self.places[number].seen for each, author in ids for number in by if number != author
        )
        return have / sum(number != author for _, author in ids for number in by)

    @property
    def copies(self) -> float:
        """Of a message, that a node got."""
        return sum(place.copies for place in self.places) / len(self._published) / (len(self.places) - 1)

    async def _deliver(self) -> None:
        while self.sent:
            sender, to, rpc = self.sent.popleft()
            await self._by_id[to].receive(sender, rpc)
