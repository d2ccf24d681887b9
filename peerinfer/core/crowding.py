"""What a prefill costs those who come to the same node after it: the part of its price that others pay.

Theory of operation. Whoever comes to a node before it is idle again waits for what it was given: of a prefill
of x seconds behind a wait of w, those who come within w + x/2 on average, and those whom these make late in
turn. Where requests find a share c of the nodes at work, and take s seconds of prefill each, that is

    x (w + x/2) c / (1 - c) / s

seconds of others' time (the M/G/1 queue). So to compute a prefix a second time costs more than the time until
its first token, the more the busier the nodes are; where requests come one after the other it is nothing.
Both c and s are what a node sees at its own decisions: arrivals see time averages, wherever they come in.

What is reckoned with is more and less than that. A weight makes up for what a node does not see of others'
waits (`crowding_weight`), and a bound keeps bursts from being taken for traffic that goes on; in a busy swarm
the bound is what counts. It never makes a request wait longer than it would here (core/policies.py).
"""

from __future__ import annotations

HALF_LIFE = 32.0  # guess
"""Decisions after which what was seen counts half. Higher: surer, and slower to follow."""
PRIOR_DECISIONS = 8.0  # guess
"""So many that found all nodes idle are taken as seen: the first few requests price nothing."""
BUSY_SHARE_MAX = 0.8  # guess
"""Beyond this the queue's formula says more of itself than of a swarm that sheds load."""
PRICE_MAX = 0.5  # measured: at 1.0 a burst of 64 requests stays at two of four nodes
"""What others pay per second of prefill at most. Higher: more hits, and bursts are shared out less evenly."""
_DECAY = 0.5 ** (1.0 / HALF_LIFE)


class Crowding:
    """How busy this node finds the swarm. One writer; all who reckon share it."""

    def __init__(self) -> None:
        self._decisions = PRIOR_DECISIONS
        self._busy = 0.0
        self._prefill_s = 0.0
        self._weight = 0.0

    @property
    def busy_share(self) -> float:
        """Of the nodes that could serve, how many were at work when a request came: c."""
        return self._busy / self._decisions

    @property
    def prefill_s(self) -> float:
        """What a request computes where it is served: s. 0 before any was."""
        return self._prefill_s / self._weight if self._weight else 0.0

    def note(self, *, busy_share: float, prefill_s: float) -> None:
        """A decision was made: so many nodes had prefill before it, and it computes so much where it went."""
        self._decisions = self._decisions * _DECAY + 1.0
        self._busy = self._busy * _DECAY + busy_share
        self._weight = self._weight * _DECAY + 1.0
        self._prefill_s = self._prefill_s * _DECAY + prefill_s

    def price_per_s(self) -> float:
        """Others' time for a second of prefill, per second of what is ahead of it and half of itself."""
        if not self._busy or not self._prefill_s:
            return 0.0
        busy = min(self.busy_share, BUSY_SHARE_MAX)
        return busy / (1.0 - busy) / self.prefill_s


def others_s(prefill_s: float, wait_s: float, price_per_s: float) -> float:
    """What others pay for a prefill behind a wait, in seconds."""
    return prefill_s * min(PRICE_MAX, price_per_s * (wait_s + 0.5 * prefill_s))
