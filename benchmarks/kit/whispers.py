"""Links between gossip routers of one process that cost nothing: no bytes, no signatures, no decoding.

Each router believes that it is linked with all others. So it draws its mesh, and whom it tells what it has,
from the whole swarm, and passes on what the others publish to those of its mesh who are really there.
"""

from __future__ import annotations

import math
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2

from peerinfer.overlay.host import Host


class Whispers:
    """Carries what these routers send each other on one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._hosts: dict[ID, Host] = {}
        self._send, self._sent = trio.open_memory_channel[tuple[ID, ID, Any]](math.inf)

    def join(self, host: Host) -> None:
        """Link a host with all that are here."""
        me, router = host.host.get_id(), host.router
        for peer, other in self._hosts.items():
            _introduce(host, peer, self._topic)
            _introduce(other, me, self._topic)
        self._hosts[me] = host
        # In the swarm that they pretend all authors reach all, by the library's streams or by whispers.
        router.reaches_us, router.lacks_authors = (lambda _author: True), (lambda: False)
        send_really = router.send_rpc

        def send(peer: ID, rpc: Any, priority: bool = False) -> None:
            if peer in self._hosts:
                self._send.send_nowait((me, peer, rpc))
            else:
                send_really(peer, rpc, priority)

        router.send_rpc = send

    async def run(self) -> None:
        """Hand over what is sent, for ever."""
        async for sender, to, rpc in self._sent:
            await self._hand_over(sender, self._hosts[to], rpc)

    async def _hand_over(self, sender: ID, host: Host, rpc: Any) -> None:
        pubsub, router = host.pubsub, host.router
        for message in rpc.publish:
            if pubsub._is_msg_seen(message):
                continue
            pubsub._mark_msg_seen(message)
            if router.mesh.get(self._topic, set()) <= self._hosts.keys():
                router.mcache.put(message)  # nobody to pass it on to but those who have it
            else:
                await router.publish(sender, message)
        control = rpc_pb2.ControlMessage(graft=rpc.control.graft, prune=rpc.control.prune)
        if control.graft or control.prune:
            await router.handle_rpc(rpc_pb2.RPC(control=control), sender)


def _introduce(host: Host, peer: ID, topic: str) -> None:
    """A peer is linked and has subscribed, as the library notes it."""
    host.pubsub.peers[peer] = None
    host.pubsub.peer_topics.setdefault(topic, set()).add(peer)
    host.router.peer_protocol[peer] = PROTOCOL_ID_V11
