"""Gossipsub for a swarm in which nearly everybody is linked with everybody.

Theory of operation. The library sends what a node publishes to its mesh, whose members pass it on to theirs,
and nobody knows who has a message already: with a mesh that bounds nobody's degree, each node got each
message from every other one, and a swarm of forty spent all its time on copies. Here an author sends to all
who are linked with it (gossipsub's flood publishing), so nearly all get it at first hand and at once. The
mesh is left for those whom an author does not reach: a node that gets messages at second hand only keeps a
mesh of the usual size, any other one as little as it can, in case that it is wrong.

Nobody knows either who is the only bridge to whom. So whoever misses messages (peers tell what they have, the
library's lazy gossip) asks into the mesh the one who had them, and whoever was put out of a mesh and comes
back stays there: hubs keep their leaves, and bridges their far ends.

On the wire it is gossipsub, and mixes with any other implementation of it.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import safe_bytes_from_hex

DEGREE = 4
"""Peers in the mesh of a node that gets messages at second hand only."""
DEGREE_DIRECT = 1
"""The same of a node that all authors reach."""
MESH_MAX = 2 * DEGREE
MESH_DIRECT_MAX = 2
"""Beyond these a node puts peers out. Not down to the last: else who is put out asks the next, who then puts
one out for it, for ever."""
BACK_WITHIN_S = 60.0
"""Who comes back within this time needs it."""
MISSES, MISSED_WITHIN_S = 2, 10.0
"""So many messages that came neither from their author nor through the mesh: one may just have been late."""
LAZY_PEERS = 3  # guess; the library takes six, or a quarter of the swarm
"""Peers outside the mesh that are told each second what they could ask for."""
SEQNO_BYTES = 8
"""A message's id is its author, and behind that its sequence number."""


class DirectGossip(GossipSub):
    """The library's router, but for who gets a message from whom."""

    def __init__(self, **options: Any) -> None:
        super().__init__(degree=DEGREE, degree_low=DEGREE - 1, **options)
        self.reaches_us: Callable[[ID], bool] = lambda _author: False
        """Whether what an author publishes comes here at first hand."""
        self.lacks_authors: Callable[[], bool] = lambda: True
        """Whether there are authors of whom that is not true."""
        self._askers: set[ID] = set()
        """Peers in the mesh who have asked to be."""
        self._put_out_at: dict[ID, float] = {}
        """Askers that were put out of it, by when."""
        self._needy: set[ID] = set()
        """Those who came back."""
        self._missed_at: deque[float] = deque(maxlen=MISSES)

    async def publish(self, msg_forwarder: ID, pubsub_msg: Any) -> None:
        """Send a message of this node's, or pass on another's.

        The library looks through all peers, at either, for those who have not subscribed yet, and keeps the
        message for them: half of what it took here in a swarm of 64 (measured). Who comes anew hears from all
        others themselves.
        """
        assert self.pubsub is not None
        if msg_forwarder == self.pubsub.my_id:
            await super().publish(msg_forwarder, pubsub_msg)
            return
        self.mcache.put(pubsub_msg)
        rpc = rpc_pb2.RPC(publish=[pubsub_msg])
        for peer in self._get_peers_to_send(pubsub_msg.topicIDs, msg_forwarder, ID(pubsub_msg.from_id)):
            self.send_rpc(peer, rpc)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Tell a peer that has just subscribed what this node said last.

        The library repeats all that it has heard in the last seconds. All that a newcomer is linked with do
        so: in a large swarm it got all messages from all nodes.
        """
        assert self.pubsub is not None
        me = self.pubsub.my_id.to_bytes()
        own = [mid for mid in self.mcache.window(topic) if mid.startswith(me)]
        if own and (message := self.mcache.get(max(own))) is not None:
            self.send_rpc(peer_id, rpc_pb2.RPC(publish=[message]))

    def _get_peers_to_send(
        self,
        topic_ids: Iterable[str],
        msg_forwarder: ID,
        origin: ID,
        msg_id: bytes | None = None,  # noqa: ARG002 - the library names it
    ) -> Iterable[ID]:
        """Whom a message goes to: of this node's own everybody who wants it, of others' the mesh."""
        assert self.pubsub is not None
        whom = self.pubsub.peer_topics if msg_forwarder == self.pubsub.my_id else self.mesh
        return {peer for topic in topic_ids for peer in whom.get(topic, ())} - {msg_forwarder, origin}

    def mesh_heartbeat(self) -> tuple[defaultdict[ID, list[str]], defaultdict[ID, list[str]]]:
        """Whom to ask into the mesh, and whom to put out of it."""
        lacks = self.lacks_authors()
        self.degree = DEGREE if lacks else DEGREE_DIRECT
        self.degree_low = max(1, self.degree - 1)
        self._bury()
        graft, prune = super().mesh_heartbeat()
        for topic, mesh in self.mesh.items():
            for peer in self._too_many(mesh, MESH_MAX if lacks else MESH_DIRECT_MAX):
                mesh.discard(peer)
                self._askers.discard(peer)
                prune[peer].append(topic)
        return graft, prune

    def _bury(self) -> None:
        """The library forgets to take those out of the mesh who left before it could talk to them."""
        assert self.pubsub is not None
        for mesh in self.mesh.values():
            for peer in [each for each in mesh if each not in self.pubsub.peers]:
                if not self.pubsub._peer_is_connected(peer):
                    mesh.discard(peer)
                    self._forget(peer)

    def _too_many(self, mesh: set[ID], most: int) -> list[ID]:
        """Peers that this node asked for and no longer needs; beyond those, one of the askers at a time."""
        excess = len(mesh) - most
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
        """A peer tells what it has. What comes from its author will come, or the next one in its place.

        Where all are busy, messages come later than what is told of them: each of them would be asked for
        several times, and all be busier still.
        """
        topic = ihave_msg.topicID
        if topic not in self.mesh or not self._check_ihave_rate_limit(sender_peer_id, topic):
            return
        assert self.pubsub is not None
        numbers = filter(None, map(safe_bytes_from_hex, ihave_msg.messageIDs))
        missed = [
            number
            for number in numbers
            if not self.reaches_us(ID(number[:-SEQNO_BYTES])) and not self.pubsub.seen_messages.has(number)
        ]
        if missed:
            await self.emit_iwant(missed, sender_peer_id)
            await self._reach_for(topic, sender_peer_id)

    async def _reach_for(self, topic: str, peer: ID) -> None:
        """This peer has what the mesh did not bring: ask it in, if that was not just late."""
        now = trio.current_time()
        self._missed_at.append(now)
        if len(self._missed_at) < MISSES or now - self._missed_at[0] > MISSED_WITHIN_S:
            return
        if peer not in self.mesh[topic] and not self._check_back_off(peer, topic):
            self._missed_at.clear()
            self.mesh[topic].add(peer)
            await self.emit_graft(topic, peer)

    def _perform_opportunistic_grafting(self, _topic: str, _peers_to_graft: dict[ID, list[str]]) -> int:
        """Off: it would graft at every beat, since what comes at first hand scores for nobody in the mesh."""
        return 0

    async def _maintain_mesh_quality(self, topic: str) -> None:
        """Off, for the same reason."""

    def _check_graft_flood_protection(self, _peer_id: ID, _topic: str) -> bool:
        """Off: two who have put each other out would refuse each other in turn. flood.py limits messages."""
        return True

    async def handle_graft(self, graft_msg: Any, sender_peer_id: ID) -> None:
        """A peer wants to be in the mesh."""
        await super().handle_graft(graft_msg, sender_peer_id)
        if self._is_in_mesh(sender_peer_id):
            self._askers.add(sender_peer_id)
            if trio.current_time() - self._put_out_at.pop(sender_peer_id, -BACK_WITHIN_S) < BACK_WITHIN_S:
                self._needy.add(sender_peer_id)

    async def handle_prune(self, prune_msg: Any, sender_peer_id: ID) -> None:
        """A peer wants to be in it no more."""
        await super().handle_prune(prune_msg, sender_peer_id)
        if not self._is_in_mesh(sender_peer_id):
            self._forget(sender_peer_id)

    def remove_peer(self, peer_id: ID) -> None:
        """A peer is gone."""
        super().remove_peer(peer_id)
        self._forget(peer_id)

    def _is_in_mesh(self, peer: ID) -> bool:
        return any(peer in mesh for mesh in self.mesh.values())

    def _forget(self, peer: ID) -> None:
        self._askers.discard(peer)
        self._needy.discard(peer)
