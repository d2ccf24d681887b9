"""What links cost, with connections that are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from libp2p import generate_new_ed25519_identity, generate_peer_id_from
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from multiaddr import Multiaddr

from peerinfer.core.types import PeerId
from peerinfer.overlay.links import Links


class Network:
    """The library's books, and whom somebody has looked up in them."""

    def __init__(self) -> None:
        self.connections: dict[ID, list[Any]] = {}
        self.looks: list[ID | None] = []

    def get_connections(self, peer: ID | None = None) -> list[Any]:
        self.looks.append(peer)
        if peer is None:
            return [each for several in self.connections.values() for each in several]
        return list(self.connections.get(peer, ()))

    def add(self, number: int) -> Any:
        peer_id = generate_peer_id_from(generate_new_ed25519_identity())
        muxed = SimpleNamespace(peer_id=peer_id, event_shutting_down=trio.Event())
        addrs = [Multiaddr(f"/ip4/10.0.0.{number}/tcp/1")]
        connection = SimpleNamespace(
            is_closed=False,
            muxed_conn=muxed,
            direction=Direction.OUTBOUND,
            get_transport_addresses=lambda: addrs,
        )
        self.connections[peer_id] = [connection]
        return connection


async def test_a_link_that_is_lost_is_looked_up_alone() -> None:
    """Goal: a swarm that goes away at once does not stop a node, which looked at all peers for each of them:
    2.2 s for 500 links. Method: the looks into the library's books."""
    network = Network()
    peerstore = SimpleNamespace(addrs=lambda _peer: [])
    host: Any = SimpleNamespace(network=network, host=SimpleNamespace(get_peerstore=lambda: peerstore))
    async with trio.open_nursery() as nursery:
        links = Links(
            host,
            nursery=nursery,
            welcome=lambda _peer: True,
            carries_calls=lambda _connection: False,
            ping_interval_s=60.0,
            ping_timeout_s=60.0,
        )
        links._watch = _never  # type: ignore[method-assign]
        lost, *others = [network.add(number) for number in range(5)]
        for each in (lost, *others):
            await links.connected(network, each)
        network.looks.clear()
        lost.is_closed = True
        await links.disconnected(network, lost)
    assert len(links) == len(others)
    assert set(network.looks) == {lost.muxed_conn.peer_id}


async def _never(_peer: PeerId, _connection: Any) -> None:
    """Nobody watches a connection that is none."""
