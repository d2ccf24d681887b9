"""Gossipsub for a swarm in which nearly everybody is linked with everybody.

Theory of operation. The library sends what a node publishes to its mesh, whose members pass it on to
theirs, and nobody knows who has a message already: with a mesh that bounds nobody's degree, each node got
each message from every other one, and a swarm of forty spent all its time on copies. Here an author sends to
all who are linked with it (gossipsub's flood publishing), so nearly all get it at first hand and at once. The
mesh is left for those who are not linked with every author: a node that hears authors through others only
keeps a mesh of the usual size, any other one as little as it can, in case that it is wrong. What is missed
all the same is asked for within a second or two (the library's lazy gossip).

A hub that puts peers out of its mesh would leave its leaves without anybody. So it does it once: a peer that
wants to come back has nobody else, and stays.

On the wire it is gossipsub, and mixes with any other implementation of it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import safe_bytes_from_hex

DEGREE = 4
"""Peers in the mesh of a node that lacks links, which pass on to it what it does not get at first hand."""
DEGREE_LINKED = 1
"""The same of a node that is linked with all authors."""
MESH_LINKED_MAX = 2
"""Beyond this such a node puts peers out, though not down to the last: else who is put out asks the next,
who then puts one out for it, for ever."""
BACK_WITHIN_S = 60.0
"""Who wants to come back within this time needs it."""
LAZY_PEERS = 3  # guess; the library takes six, or a quarter of the swarm
"""Peers outside the mesh that are told each second what they could ask for."""
SEQNO_BYTES = 8
"""A message's id is its author, and behind that its sequence number."""


class DirectGossip(GossipSub):
    """The library's router, but for who gets a message from whom."""

    def __init__(self, **options: Any) -> None:
        super().__init__(degree=DEGREE, degree_low=DEGREE - 1, **options)
        self.lacks_links: Callable[[], bool] = lambda: True
        """Whether messages come whose author this node is not linked with."""
        self._askers: set[ID] = set()
        """Peers in the mesh who have asked to be."""
        self._put_out_at: dict[ID, float] = {}
        """Askers that were put out of it, by when."""
        self._needy: set[ID] = set()
        """Those who came back."""

    def _get_peers_to_send(
        self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
    ) -> Iterable[ID]:
        """Whom a message goes to: of this node's own everybody who wants it, of others' the mesh."""
        chosen = super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id)
        assert self.pubsub is not None
        if msg_forwarder != self.pubsub.my_id:
            return chosen
        everybody = set(chosen)
        for topic in topic_ids:
            everybody |= self.pubsub.peer_topics.get(topic, set())
        return everybody - {origin}

    def mesh_heartbeat(self) -> tuple[defaultdict[ID, list[str]], defaultdict[ID, list[str]]]:
        """Whom to ask into the mesh, and whom to put out of it."""
        is_linked = not self.lacks_links()
        self.degree = DEGREE_LINKED if is_linked else DEGREE
        self.degree_low = max(1, self.degree - 1)
        graft, prune = super().mesh_heartbeat()
        if is_linked:
            for topic, mesh in self.mesh.items():
                for peer in self._too_many(mesh):
                    mesh.discard(peer)
                    self._askers.discard(peer)
                    prune[peer].append(topic)
        return graft, prune

    def _too_many(self, mesh: set[ID]) -> list[ID]:
        """Peers that this node asked for and no longer needs; beyond those, one of the askers at a time."""
        excess = len(mesh) - MESH_LINKED_MAX
        asked = list(mesh - self._askers)
        if excess <= 0:
            return []
        if asked:
            return random.sample(asked, min(len(asked), excess))
        askers = list(mesh - self._needy)
        if not askers:
            return []
        peer = random.choice(askers)
        now = trio.current_time()
        self._put_out_at = {each: at for each, at in self._put_out_at.items() if now - at < BACK_WITHIN_S}
        self._put_out_at[peer] = now
        return [peer]

    def _get_adaptive_gossip_peers_count(self, _topic: str, total_peers: int) -> int:
        return min(LAZY_PEERS, total_peers)

    async def handle_ihave(self, ihave_msg: Any, sender_peer_id: ID) -> None:
        """A peer tells what it has: what is of a linked author will come, or the next one in its place.

        Where all are busy, messages come later than what is told of them: each of them would be asked for
        several times, and all be busier still.
        """
        assert self.pubsub is not None
        far = [each for each in ihave_msg.messageIDs if _author(each) not in self.pubsub.peers]
        if far:
            of_far = rpc_pb2.ControlIHave(topicID=ihave_msg.topicID, messageIDs=far)
            await super().handle_ihave(of_far, sender_peer_id)

    def _perform_opportunistic_grafting(self, _topic: str, _peers_to_graft: dict[ID, list[str]]) -> int:
        """Off: it would graft at every beat, since what comes at first hand scores for nobody in the mesh."""
        return 0

    async def _maintain_mesh_quality(self, topic: str) -> None:
        """Off, for the same reason."""

    async def handle_graft(self, graft_msg: Any, sender_peer_id: ID) -> None:
        """A peer wants to be in the mesh."""
        await super().handle_graft(graft_msg, sender_peer_id)
        if any(sender_peer_id in mesh for mesh in self.mesh.values()):
            self._askers.add(sender_peer_id)
            if trio.current_time() - self._put_out_at.pop(sender_peer_id, -BACK_WITHIN_S) < BACK_WITHIN_S:
                self._needy.add(sender_peer_id)

    async def handle_prune(self, prune_msg: Any, sender_peer_id: ID) -> None:
        """A peer wants to be in it no more."""
        await super().handle_prune(prune_msg, sender_peer_id)
        self._forget(sender_peer_id)

    def remove_peer(self, peer_id: ID) -> None:
        """A peer is gone."""
        super().remove_peer(peer_id)
        self._forget(peer_id)

    def _forget(self, peer: ID) -> None:
        self._askers.discard(peer)
        self._needy.discard(peer)


def _author(message_id: str | bytes) -> ID | None:
    """Who wrote the message with this id; None if that is none."""
    number = safe_bytes_from_hex(message_id)
    return None if number is None else ID(number[:-SEQNO_BYTES])
