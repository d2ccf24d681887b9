"""How nodes that know one address find all others: Kademlia, asked once more about each new link.

Whoever is linked is asked for the peers closest to us: one round trip, and in a small swarm the answer
is everybody. It is asked again shortly after, since peers that joined together learn of each other in
between; the library's random walk goes on behind that. What is found goes to the dialler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError

from peerinfer.core.types import PeerId
from peerinfer.overlay.addresses import as_strings, is_peer_id
from peerinfer.overlay.contained import contained
from peerinfer.overlay.host import Host
from peerinfer.overlay.links import Links
from peerinfer.overlay.stream_errors import STREAM_ERRORS

log = logging.getLogger("peerinfer.overlay")

ASK_AGAIN_S = (0.0, 0.3, 1.0, 3.0)
"""After a link came up. Each question costs both sides 10 ms of CPU."""
ENOUGH_LINKS = 20
"""As many as one answer names. Whoever has more asks each new link once: the rest is in the snapshots."""
LOOK_AROUND_S = 60.0  # guess
"""Between two looks at whom the random walk and the peers' own questions have turned up."""

Found = Callable[[PeerId, Sequence[str]], None]


class Discovery:
    """Asks peers for peers."""

    def __init__(self, host: Host, *, nursery: trio.Nursery, links: Links, found: Found) -> None:
        self._host, self._nursery, self._links, self._found = host, nursery, links, found

    def link_up(self, peer: PeerId) -> None:
        """A peer to ask."""
        self._nursery.start_soon(self._ask_again, peer)

    async def run(self) -> None:
        """Look around now and then, for ever."""
        while True:
            await trio.sleep(LOOK_AROUND_S)
            with contained("looking around for peers"):
                self._tell(self._host.dht.routing_table.get_peer_ids())

    async def _ask_again(self, peer: PeerId) -> None:
        """Ask a new link a few times, or until that goes wrong."""
        with contained("asking it for peers", peer=peer):
            await self._ask(peer)

    async def _ask(self, peer: PeerId) -> None:
        peer_id = ID.from_base58(peer)
        me = self._host.host.get_id().to_bytes()
        began = trio.current_time()
        for after_s in ASK_AGAIN_S:
            await trio.sleep_until(began + after_s)
            if peer not in self._links or (after_s and len(self._links) > ENOUGH_LINKS):
                return
            try:
                found = await self._host.dht.peer_routing._query_peer_for_closest(peer_id, me)
            except STREAM_ERRORS as error:  # it closes its stream where nothing catches what that raises
                log.debug("peer=%s asking it for peers failed: %r", peer, error)
                return
            self._tell(found)

    def _tell(self, peers: list[Any]) -> None:
        for peer_id in peers:
            peer = PeerId(peer_id.to_base58())
            if peer in self._links or not is_peer_id(peer):
                continue
            try:
                addrs = self._host.host.get_peerstore().addrs(peer_id)
            except PeerStoreError:
                continue
            self._found(peer, as_strings(addrs))
