"""What the links of a simulated network do at this moment: delay, jitter, loss, cuts, clogs.

What a link does is drawn from a generator per direction, so that one link's draws do not depend on what
happens elsewhere. Streams are reliable, like TCP: they lose and reorder nothing, they are late or break.
Gossip may be lost, come twice or late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from peerinfer.core.types import PeerId

JITTER_STEPS = 32
"""Jitter is drawn from so many values, so that what goes to a thousand nodes arrives at few moments."""

Way = tuple[PeerId, PeerId]
"""From a sender to a receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What one link does to messages, in either direction."""

    delay_s: float = 0.001
    """One way."""
    jitter_s: float = 0.0
    """Up to this much is added, evenly drawn."""
    loss: float = 0.0
    """The share of gossip that does not arrive over this link; it may yet come over third nodes."""
    duplication: float = 0.0
    """The share of gossip that arrives twice."""
    reordering: float = 0.0
    """The share of gossip that is late, so that later messages overtake it."""
    late_s: float = 1.0
    """The most by which what is late is late, and the second of two comes after the first."""


class Weather:
    """The present conditions of every link.

    Args:
        seed: of everything that is drawn.
        default: of links that `set` does not name.
    """

    def __init__(self, *, seed: int, default: Conditions) -> None:
        self._seed = seed
        self._default = default
        self._conditions: dict[Way, Conditions] = {}
        self._cut_at: dict[Way, float] = {}
        self._clogged_until: dict[Way, float] = {}
        self._draws: dict[Way, random.Random] = {}

    def set(self, a: PeerId, b: PeerId, conditions: Conditions) -> None:
        """The link between two nodes is like this from now on."""
        self._conditions[a, b] = self._conditions[b, a] = conditions

    def set_all(self, conditions: Conditions) -> None:
        """All links are like this from now on, and not clogged."""
        self._default = conditions
        self._conditions.clear()
        self._clogged_until.clear()

    def cut(self, sender: PeerId, receiver: PeerId, *, now: float) -> None:
        """Nothing passes in this direction from now on."""
        self._cut_at[sender, receiver] = now

    def mend(self, a: PeerId, b: PeerId) -> None:
        """No cut in either direction any more."""
        self._cut_at.pop((a, b), None)
        self._cut_at.pop((b, a), None)

    def cut_at(self, sender: PeerId, receiver: PeerId) -> float | None:
        """Since when this direction is cut; None if it is not."""
        return self._cut_at.get((sender, receiver)) if self._cut_at else None

    def clog(self, a: PeerId, b: PeerId, *, until: float) -> None:
        """What is sent on this link arrives after that time, all at once."""
        self._clogged_until[a, b] = self._clogged_until[b, a] = until

    def loses(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether this piece of gossip does not arrive."""
        loss = self._of(sender, receiver).loss
        return loss > 0 and self._draw(sender, receiver) < loss

    def arrival(self, sender: PeerId, receiver: PeerId, *, now: float) -> float:
        """When what is sent now arrives."""
        conditions = self._of(sender, receiver)
        at = now + conditions.delay_s
        if conditions.jitter_s:
            steps = int(JITTER_STEPS * self._draw(sender, receiver))
            at += conditions.jitter_s * steps / JITTER_STEPS
        if self._clogged_until:
            at = max(at, self._clogged_until.get((sender, receiver), 0.0))
        return at

    def gossip_arrivals(self, sender: PeerId, receiver: PeerId, *, now: float) -> list[float]:
        """When a piece of gossip that is not lost arrives: once, late, or twice."""
        conditions = self._of(sender, receiver)
        at = self.arrival(sender, receiver, now=now)
        if conditions.reordering and self._draw(sender, receiver) < conditions.reordering:
            at += conditions.late_s * self._draw(sender, receiver)
        if conditions.duplication and self._draw(sender, receiver) < conditions.duplication:
            return [at, at + conditions.late_s * self._draw(sender, receiver)]
        return [at]

    def _of(self, sender: PeerId, receiver: PeerId) -> Conditions:
        return self._conditions.get((sender, receiver), self._default)

    def _draw(self, sender: PeerId, receiver: PeerId) -> float:
        way = (sender, receiver)
        if way not in self._draws:
            self._draws[way] = random.Random(f"{self._seed}/{sender}/{receiver}")
        return self._draws[way].random()
