"""How much was done lately: a count that halves with time."""

from __future__ import annotations

import math


class RecentCount:
    """What was added, halved for every `half_life_s` since."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._count = 0.0
        self._at = 0.0

    def add(self, count: int, *, now: float) -> None:
        """So much was done at `now`, on a clock that does not go backwards."""
        self._count = self.at(now) + count
        self._at = now

    def at(self, now: float) -> float:
        """The count as it stands at `now`."""
        return self._count * math.exp2((self._at - now) / self._half_life_s)
