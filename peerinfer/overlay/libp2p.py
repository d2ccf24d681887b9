"""The overlay on libp2p: who is there, one topic, and calls to single peers (paper §3.1, §3.4).

This file is the face; node.ports.Overlay says what it promises. The wiring is in swarm.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from libp2p.peer.id import ID

from peerinfer.config import OverlayConfig
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, Link, OverlaySink, Standing
from peerinfer.overlay.addresses import (
    check_free,
    parse_announced_address,
    parse_listen_address,
    parse_peer_address,
    parse_peer_id,
)
from peerinfer.overlay.identity import load_or_create_identity
from peerinfer.overlay.single_error import single_error
from peerinfer.overlay.swarm import Swarm, SwarmSettings


class LibP2POverlay:
    """An `Overlay` of real hosts.

    Args:
        data_dir: where the identity and the known peers are kept; made if it does not exist.
        swarm_key: of a closed swarm; None: whoever comes is let in.
        topic: the swarm's gossip topic; None for a peer that only helps others to find each other.
        frame_bytes_max: the longest frame of a call.

    Raises:
        IdentityError: the identity in `data_dir` cannot be used.
        ValueError: an address or a peer id in the config is none; the message is for whoever typed it.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        config: OverlayConfig,
        topic: str | None,
        frame_bytes_max: int,
        swarm_key: SwarmKey | None = None,
    ) -> None:
        key_pair = load_or_create_identity(data_dir)
        self._peer_id = PeerId(ID.from_pubkey(key_pair.public_key).to_base58())
        self._settings = SwarmSettings(
            me=self._peer_id,
            key_pair=key_pair,
            data_dir=data_dir,
            config=config,
            listen=tuple(parse_listen_address(addr) for addr in config.listen),
            announce=tuple(parse_announced_address(addr) for addr in config.announce),
            join=tuple(parse_peer_address(addr) for addr in config.join),
            topic=topic,
            frame_bytes_max=frame_bytes_max,
            swarm_key=swarm_key,
            allow=frozenset(map(parse_peer_id, config.allow_peers)),
            deny=frozenset(map(parse_peer_id, config.deny_peers)),
        )
        self._swarm: Swarm | None = None

    @property
    def peer_id(self) -> PeerId:
        """This node."""
        return self._peer_id

    @asynccontextmanager
    async def run(self, sink: OverlaySink) -> AsyncIterator[None]:
        """Listen, join, stay connected; see `Overlay.run`.

        Raises:
            AddressInUseError: somebody listens on one of the addresses already.
        """
        assert self._swarm is None, "it runs already"
        for addr in self._settings.listen:
            check_free(addr)
        with single_error():
            async with Swarm.run(self._settings, sink) as self._swarm:
                try:
                    yield
                finally:
                    self._swarm = None

    def addrs(self) -> tuple[str, ...]:
        """Multiaddrs, with `/p2p/…`, under which others can dial this node; none while it does not run."""
        return self._swarm.addrs() if self._swarm else ()

    def links(self) -> Mapping[PeerId, Link]:
        """The peers that are connected now."""
        return self._swarm.links.links() if self._swarm else {}

    def standing(self) -> Standing:
        """How this node stands in the network."""
        return self._swarm.standing() if self._swarm else Standing(unreached={}, relays=())

    async def publish(self, payload: bytes) -> None:
        """Send to everybody on the swarm's topic, at most once, in no order."""
        topic = self._started().topic
        assert topic is not None, "this overlay was made without a topic"
        await topic.publish(payload)

    def open_call(self, peer: PeerId) -> AbstractAsyncContextManager[Call]:
        """A call over a kept-open stream; see `Overlay.open_call`."""
        return self._started().streams.open_call(peer)

    async def pull(self, peer: PeerId) -> bytes:
        """The peer's `hello`. Raises `PeerLostError`, also when it is no peerinfer node."""
        return await self._started().pull.pull(peer)

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        """Addresses a peer announced (without `/p2p/…`): filtered, and dialled at a limited rate."""
        self._started().learn(peer, addrs)

    def _started(self) -> Swarm:
        assert self._swarm is not None, "the overlay is not running"
        return self._swarm
