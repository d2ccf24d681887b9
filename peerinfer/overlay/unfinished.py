"""How many bytes of unfinished frames a node keeps, for one peer and for all of them.

A frame is kept until its last byte is there, and may be as long as the longest body. A peer that begins a
frame on every stream and ends none would have the node keep hundreds of bodies (1 GiB), so beyond a bound the
stream that holds the most is given up: of the peer that is over its own bound, or of the peer that holds the
most where all of them together are too much. Whoever sends whole frames takes part for moments only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerinfer.core.types import PeerId


class Holder(Protocol):
    """A stream whose reader keeps a frame's beginning."""

    @property
    def peer(self) -> PeerId:
        """Who sends it."""

    @property
    def unfinished_bytes(self) -> int:
        """How much of it there is."""

    def lose(self, reason: str) -> None:
        """Forget it, with its stream."""


class Unfinished:
    """The unfinished frames of one node. Whoever `lose`s must `note` that, too."""

    def __init__(
        self, *, per_peer_bytes_max: int, bytes_max: int, refused: Callable[[PeerId, str], None]
    ) -> None:
        self._per_peer_bytes_max, self._bytes_max, self._refused = per_peer_bytes_max, bytes_max, refused
        self._holders: dict[PeerId, dict[Holder, int]] = {}
        self._peers: dict[PeerId, int] = {}
        self._bytes = 0

    def note(self, holder: Holder) -> None:
        """It holds more or less than before; afterwards nobody is over a bound."""
        peer, held = holder.peer, holder.unfinished_bytes
        of_peer = self._holders.setdefault(peer, {})
        change = held - of_peer.pop(holder, 0)
        self._bytes += change
        self._peers[peer] = self._peers.get(peer, 0) + change
        if held:
            of_peer[holder] = held
        elif not of_peer:
            del self._holders[peer], self._peers[peer]
        if change > 0:
            self._bound(peer)

    def _bound(self, peer: PeerId) -> None:
        while self._peers.get(peer, 0) > self._per_peer_bytes_max:
            self._give_up_greediest(peer)
        while self._bytes > self._bytes_max:
            self._give_up_greediest(max(self._peers, key=lambda each: (self._peers[each], each)))

    def _give_up_greediest(self, peer: PeerId) -> None:
        of_peer = self._holders[peer]
        greediest = max(of_peer, key=of_peer.__getitem__)
        self._refused(peer, "too many bytes of unfinished frames")
        greediest.lose("refused: too many bytes of unfinished frames")
        assert greediest not in self._holders.get(peer, {}), "who is given up must say so"
