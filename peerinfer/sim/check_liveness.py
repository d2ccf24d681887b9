"""Checks the failure detector: a suspect was silent for as long as it allows, or its link was lost.

Its own book of who was heard of when takes every message that is news, and every reply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from peerinfer.core.peer import PeerStatus
from peerinfer.core.peer_view import Applied
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Load, PeerId

if TYPE_CHECKING:
    from peerinfer.sim.place import Place

GONE = (PeerStatus.SUSPECT, PeerStatus.LEFT)
SLACK_S = 1e-6
"""Sums of floats."""


@dataclass(slots=True)
class _Heard:
    """What one node last heard of another."""

    incarnation: int
    seq: int
    at: float
    promised_s: float
    link_lost: bool = False


class LivenessChecker:
    """See the module."""

    def __init__(self, violation: Callable[[str], None]) -> None:
        self._violation = violation
        self._heard: dict[tuple[PeerId, PeerId], _Heard] = {}

    def watch(self, place: Place) -> None:
        """Put ourselves between the parts of a new node."""
        view: Any = place.node.context.view
        me = place.peer_id
        for pair in [pair for pair in self._heard if pair[0] == me]:
            del self._heard[pair]
        apply_snapshot, observe_load, link_down = view.apply_snapshot, view.observe_load, view.link_down

        def watched_apply(peer: PeerId, snapshot: Snapshot, *, now: float) -> Applied:
            applied: Applied = apply_snapshot(peer, snapshot, now=now)
            known = self._heard.get((me, peer))
            if known is None or (snapshot.incarnation, snapshot.seq) > (known.incarnation, known.seq):
                self._heard[me, peer] = _Heard(
                    snapshot.incarnation, snapshot.seq, now, snapshot.next_within_s
                )
            self._check(place)
            return applied

        def watched_load(
            peer: PeerId, load: Load, *, incarnation: int, seq: int, now: float, **others: Any
        ) -> None:
            observe_load(peer, load, incarnation=incarnation, seq=seq, now=now, **others)
            known = self._heard.get((me, peer))
            if known is not None and (incarnation, seq) >= (known.incarnation, known.seq):
                if incarnation > known.incarnation:  # of which no message has come yet
                    known.incarnation, known.seq = incarnation, -1
                known.at, known.link_lost = now, False
            self._check(place)

        def watched_link_down(peer: PeerId, *, now: float) -> None:
            link_down(peer, now=now)
            if (me, peer) in self._heard:
                self._heard[me, peer].link_lost = True

        view.apply_snapshot, view.observe_load, view.link_down = (
            watched_apply,
            watched_load,
            watched_link_down,
        )

    def _check(self, place: Place) -> None:
        """No peer of this node is suspected while it is heard."""
        now, config = trio.current_time(), place.node.context.config.anti_entropy
        for peer in place.node.context.view.candidates():
            heard = self._heard.get((place.peer_id, peer.peer))
            if heard is None or heard.link_lost or peer.status(now=now) not in GONE:
                continue
            patience_s = min(config.suspect_after * heard.promised_s, config.forget_after_s)
            if now - heard.at < patience_s - SLACK_S:
                self._violation(
                    f"{place.peer_id} suspects {peer.peer}, which it heard {now - heard.at:.3f} s ago "
                    f"and which promised to be heard within {heard.promised_s:.3f} s"
                )

    def check_quiet(self, living: list[Place]) -> None:
        """Everybody takes the living for alive, and nobody else."""
        names = {place.peer_id for place in living}
        now = trio.current_time()
        for place in living:
            view = place.node.context.view
            for other in sorted(names - {place.peer_id}):
                if (status := view.state(other, now=now)) is not PeerStatus.ALIVE:
                    self._violation(f"{place.peer_id} takes {other} for {status}, all healed and quiet")
            for peer in view.candidates():
                if peer.peer not in names and peer.status(now=now) is PeerStatus.ALIVE:
                    self._violation(f"{place.peer_id} takes {peer.peer} for alive, which is gone")
