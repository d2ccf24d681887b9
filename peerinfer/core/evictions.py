"""What leaves a cache: how long pages lie unused before they go, and how many of them are missed later.

Both are measured and never configured. The first tells how long a prefix would stay here if it were
computed now. The second is the price of making room for it: where every other page that goes is asked for
again, a page that comes costs half a page's prefill beyond its own. Pages that went are remembered by key,
no more of them than the cache has room for: what comes back later than that was not worth keeping.
"""

from __future__ import annotations

from math import inf

from peerinfer.core.types import PageKey

HALF_LIFE_CACHES = 4  # guess
"""The counts halve whenever so many times the cache's size has gone. Higher: steadier, slower to follow."""
SMOOTHING = 0.02  # guess: some fifty evictions
"""The weight of a new sample of the time unused."""


class Evictions:
    """The measured behaviour of one cache at its lower end; its one writer is the radix tree."""

    __slots__ = ("_gone", "_gone_pages", "_missed_pages", "_pages_max", "residence_s")

    def __init__(self, *, pages_max: int) -> None:
        self._pages_max = pages_max
        self._gone: dict[PageKey, None] = {}  # in the order in which they went
        self._gone_pages = 0.0
        self._missed_pages = 0.0
        self.residence_s = inf
        """How long an unused page stays; infinite until the first has gone."""

    def __len__(self) -> int:
        """Pages that went and are remembered."""
        return len(self._gone)

    @property
    def missed_share(self) -> float:
        """How many of the pages that go are computed again later, as a share."""
        return self._missed_pages / self._gone_pages if self._gone_pages else 0.0

    def left(self, key: PageKey, *, unused_s: float) -> None:
        """A page went that had not been used for so long."""
        if self.residence_s == inf:
            self.residence_s = unused_s
        else:
            self.residence_s += SMOOTHING * (unused_s - self.residence_s)
        self._gone.pop(key, None)
        self._gone[key] = None
        if len(self._gone) > self._pages_max:
            del self._gone[next(iter(self._gone))]
        self._gone_pages += 1.0
        if self._gone_pages > HALF_LIFE_CACHES * self._pages_max:
            self._gone_pages /= 2.0
            self._missed_pages /= 2.0

    def came(self, key: PageKey) -> None:
        """A page was computed and kept."""
        if key in self._gone:
            del self._gone[key]
            self._missed_pages += 1.0
