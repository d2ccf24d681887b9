"""Peers that cannot be dialled, and are linked through a relay: for tests of circuits and of leaving them."""

from __future__ import annotations

from typing import Any

from peerinfer.core.types import PeerId
from peerinfer.overlay.libp2p import LibP2POverlay
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S

NOWHERE = "/ip4/127.0.0.1/tcp/9"
"""Announced by who cannot be dialled: nobody listens there."""


async def behind_nat(world: LibP2PWorld, relay: Peer, **config: Any) -> Peer:
    """A peer that can dial and cannot be dialled."""
    return await world.start(join=[relay.address], announce=(NOWHERE,), **config)


async def linked_through(world: LibP2PWorld, **config: Any) -> tuple[Peer, Peer, Peer]:
    relay = await world.start(relay=True, **config)
    a = await behind_nat(world, relay, **config)
    b = await behind_nat(world, relay, **config)
    await until(lambda: a.linked_to(b.id) and b.linked_to(a.id), within_s=3 * SOON_S)
    return relay, a, b


def connections(peer: Peer, to: PeerId) -> list[Any]:
    assert isinstance(peer.overlay, LibP2POverlay)
    assert peer.overlay._swarm is not None
    return list(peer.overlay._swarm.links._connections(to))
