"""How much one peer may have this node do, before any of it is parsed, verified or answered.

The library negotiates every stream, decodes every message and answers every lookup that a peer sends, each
for milliseconds of CPU. A peer that behaves stays far below these rates; what is beyond them is counted and
dropped with its stream, and a peer that floods the topic, or a connection below its streams (frame_meter.py),
is disconnected for a while.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.overlay.backoff import Rates

BURST_S = 4.0  # guess: what bunched up while a node was busy, or was lost and is sent again
STREAMS_AT_ONCE_MAX = 300.0  # as many as yamux lets a peer have open, and some


class Flood:
    """The limits of one node for each of its peers."""

    def __init__(self, config: OverlayConfig, *, refused: Callable[[str, PeerId, str], None]) -> None:
        self._refused = refused
        self.too_loud: Callable[[PeerId], None] = lambda _peer: None
        """Is told who is to be disconnected for a while."""
        self.frames_per_s_max = config.frames_without_data_per_connection_per_s_max
        self.streams_per_s_max = config.streams_opened_per_peer_per_s_max
        """What frame_meter.py holds a connection to."""
        self._streams = Rates[PeerId](
            rate_per_s=config.streams_opened_per_peer_per_s_max, burst=STREAMS_AT_ONCE_MAX
        )
        self._gossip = _rates(config.gossip_passed_on_per_peer_per_s_max)
        self._lookups = _rates(config.lookups_per_peer_per_s_max)
        self._requests = _rates(config.requests_per_peer_per_s_max)

    def lets_open(self, peer: PeerId) -> bool:
        """A new stream, whatever it is for."""
        return self._take(self._streams, peer, "handshake", "too many new streams")

    def lets_pass_on(self, peer: PeerId) -> bool:
        """A message of gossip: of the peer's own, passed on, or about the mesh."""
        if self._take(self._gossip, peer, "gossip", "passes on too many messages"):
            return True
        self.too_loud(peer)
        return False

    def floods(self, peer: PeerId, reason: str) -> None:
        """A connection of this peer's ends for what came over it."""
        self._refused("handshake", peer, reason)
        self.too_loud(peer)

    def lets_look_up(self, peer: PeerId) -> bool:
        """A message of Kademlia's."""
        return self._take(self._lookups, peer, "discovery", "too many lookups")

    def lets_request(self, peer: PeerId) -> bool:
        """A request, or a question for the wait; whoever asks counts what is refused."""
        return self._requests.take(peer, now=trio.current_time())

    def _take(self, rates: Rates[PeerId], peer: PeerId, kind: str, reason: str) -> bool:
        if rates.take(peer, now=trio.current_time()):
            return True
        self._refused(kind, peer, reason)
        return False


def _rates(per_s: float) -> Rates[PeerId]:
    return Rates(rate_per_s=per_s, burst=per_s * BURST_S)
