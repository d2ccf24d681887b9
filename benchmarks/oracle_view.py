"""What the replays share: a view of the swarm whose trees are its peers' own, and whose peers never die."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from peerinfer.config import Config
from peerinfer.core.peer_view import PeerView
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Given, Load, NodeState, PageKey, PeerId


def peer_id(number: int) -> PeerId:
    """The name of a node."""
    return PeerId(f"node-{number}")


def number_of(peer: PeerId) -> int:
    """The node of a name."""
    return int(peer.removeprefix("node-"))


class OracleView(PeerView):
    """Fresh trees; loads as they are told.

    Args:
        me: the number of the node whose view this is.
        trees: of all nodes, by number.
        load: of every peer at first.
    """

    def __init__(
        self,
        *,
        me: int,
        trees: Sequence[RadixTree],
        page_size: int,
        config: Config,
        round_trip_s: float,
        load: Load,
    ) -> None:
        super().__init__(me=peer_id(me), own=trees[me], page_size=page_size, config=config)
        self._trees = [tree for number, tree in enumerate(trees) if number != me]
        for number in range(len(trees)):
            if number != me:
                self.apply_snapshot(peer_id(number), _first_message(load), now=0.0)
                self.observe_round_trip(peer_id(number), round_trip_s)
                self.hear(number, load, now=0.0)

    def match_estimates(self, keys: Sequence[PageKey]) -> list[int]:
        """As `PeerView`, by the trees themselves."""
        return [tree.match_prefix(keys) for tree in self._trees]

    def hear(self, number: int, load: Load, *, now: float, yours: Given | None = None) -> None:
        """A node tells its load; `yours`: how much of what was forwarded there it counts."""
        self.observe_load(peer_id(number), load, incarnation=1, seq=0, now=now, yours=yours)
        self._peers[peer_id(number)].detector.suspect_at = inf


def _first_message(load: Load) -> Snapshot:
    return Snapshot(
        addrs=(),
        incarnation=1,
        seq=0,
        tree_version=0,
        next_within_s=1.0,
        load=load,
        paused_for_s=0.0,
        state=NodeState.ALIVE,
        reuse_tokens=1,
        keys=None,
        cut=False,
        pages=0,
    )
