"""Who is connected: one link per peer, however many connections hold it up.

Two nodes that dial each other at once keep two connections; the link is down when the last is gone. One that
goes through a relay is closed after there is a direct one, when the answers that run over it have ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import trio
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.rcmgr import Direction

from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link
from peerinfer.overlay.addresses import as_strings, dialable
from peerinfer.overlay.contained import contained
from peerinfer.overlay.host import Host, abort, is_open, is_relayed
from peerinfer.overlay.liveness import Liveness

GONE_S = 1.0
"""The library takes 0.2 s to take a closed connection off its books."""
RELAYED_STILL_S = 5.0  # guess
"""Between two looks whether answers still run over a relay, once there is a direct connection."""


Change = Link | Literal["up", "direct", "relayed"]
"""What became of a link; the link itself when it is lost."""


class Links:
    """The library's notifee, and the watch over each connection."""

    def __init__(
        self,
        host: Host,
        *,
        nursery: trio.Nursery,
        welcome: Callable[[PeerId], bool],
        carries_calls: Callable[[Any], bool],
        ping_interval_s: float,
        ping_timeout_s: float,
    ) -> None:
        self._host = host
        self._nursery = nursery
        self._welcome, self._carries_calls = welcome, carries_calls
        self._ping_interval_s, self._ping_timeout_s = ping_interval_s, ping_timeout_s
        self._links: dict[PeerId, Link] = {}
        self._relayed: set[PeerId] = set()
        """Those among them that only a relay holds up."""
        self._tell, self._changes = trio.open_memory_channel[tuple[PeerId, Change]](math.inf)

    def __contains__(self, peer: object) -> bool:
        return peer in self._links

    def __len__(self) -> int:
        return len(self._links)

    def links(self) -> Mapping[PeerId, Link]:
        """The peers that are connected now, with what is known of their addresses by now."""
        return {peer: self._link(peer) for peer in self._links}

    def is_relayed(self, peer: PeerId) -> bool:
        """Whether all that is said between this node and a peer goes through a third one."""
        connections = filter(is_open, self._host.network.get_connections(ID.from_base58(peer)))
        relayed = [is_relayed(each) for each in connections]
        return bool(relayed) and all(relayed)

    async def run(
        self,
        *,
        up: Callable[[PeerId], None],
        direct: Callable[[PeerId], None],
        relayed: Callable[[PeerId], None],
        down: Callable[[PeerId, Link], None],
    ) -> None:
        """Tell of changes in their order, for ever; `direct`, `relayed`: what a link that is up has become.

        In a task of its own: the library would swallow what goes wrong in the functions that are told.
        """
        async for peer, change in self._changes:
            with contained("telling of its link", peer=peer):
                if isinstance(change, Link):
                    down(peer, change)
                elif change == "direct":
                    direct(peer)
                elif change == "relayed":
                    relayed(peer)
                else:
                    up(peer)

    async def connected(self, _network: Any, connection: Any) -> None:
        """The library has one more connection."""
        peer = PeerId(connection.muxed_conn.peer_id.to_base58())
        if not self._welcome(peer):
            self._nursery.start_soon(abort, connection)
            return
        self._nursery.start_soon(self._watch, peer, connection)
        if peer not in self._links:
            self._links[peer] = Link(addrs=self._addrs(peer))
            self._tell.send_nowait((peer, "up"))
            if is_relayed(connection):
                self._relayed.add(peer)
            return
        self._settle(peer)
        if not self.is_relayed(peer):
            for each in filter(is_relayed, self._connections(peer)):
                self._nursery.start_soon(self._retire, peer, each)

    async def disconnected(self, _network: Any, connection: Any) -> None:
        """The library has one connection less."""
        self._settle(PeerId(connection.muxed_conn.peer_id.to_base58()))

    async def opened_stream(self, *_: Any) -> None:
        """Of no interest."""

    closed_stream = listen = listen_close = opened_stream

    async def drop(self, peer: PeerId) -> None:
        """Close all connections to a peer."""
        async with trio.open_nursery() as nursery:
            for connection in self._connections(peer):
                nursery.start_soon(abort, connection)

    async def _retire(self, peer: PeerId, connection: Any) -> None:
        """Close a detour that nobody needs any more, unless the direct connection is gone meanwhile."""
        while True:
            await trio.sleep(RELAYED_STILL_S)
            if not self._carries_calls(connection):
                break
        if not self.is_relayed(peer):
            await abort(connection)

    async def _watch(self, peer: PeerId, connection: Any) -> None:
        """Abort the connection when its peer falls silent, and see that it leaves the books."""
        liveness = Liveness(connection, interval_s=self._ping_interval_s, timeout_s=self._ping_timeout_s)
        failed = True
        with contained("the watch over its connection", peer=peer):
            failed = await liveness.wait_silent()
        if failed:
            await abort(connection)
        await trio.sleep(GONE_S)
        with contained("forgetting its connection", peer=peer):
            if connection in self._connections(peer):  # whoever closed it was cancelled on the way
                self._host.network.remove_conn(connection)
        self._settle(peer)

    def _settle(self, peer: PeerId) -> None:
        """Report what a link has become: down if no connection holds it up any more."""
        if peer not in self._links:
            return
        if not any(is_open(each) for each in self._connections(peer)):
            link = self._link(peer)
            del self._links[peer]
            self._relayed.discard(peer)
            self._tell.send_nowait((peer, link))
        elif self.is_relayed(peer) != (peer in self._relayed):
            self._relayed ^= {peer}
            self._tell.send_nowait((peer, "relayed" if peer in self._relayed else "direct"))

    def _link(self, peer: PeerId) -> Link:
        if not self._links[peer].addrs:
            self._links[peer] = Link(addrs=self._addrs(peer))
        return replace(self._links[peer], relayed=peer in self._relayed)

    def _connections(self, peer: PeerId) -> list[Any]:
        return list(self._host.network.get_connections(ID.from_base58(peer)))

    def _addrs(self, peer: PeerId) -> tuple[str, ...]:
        """Where the peer was reached, then what it announced."""
        connections = self._connections(peer)
        addrs = [
            addr
            for each in connections
            if each.direction == Direction.OUTBOUND
            for addr in each.get_transport_addresses()
        ]
        for each in connections[:1]:
            with suppress(PeerStoreError):
                addrs += self._host.host.get_peerstore().addrs(each.muxed_conn.peer_id)
        return dialable(as_strings(addrs), loopback=True)
