"""How long to wait before the next try: doubled after each failure, never the same for two nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

JITTER = 0.25
"""± this share, so that nodes which lost the same peer do not come back to it at once."""


def backoff_s(failures: int, *, min_s: float, max_s: float, draw: Callable[[], float]) -> float:
    """Seconds to wait after so many failures in a row (0: none yet); `draw` gives numbers in [0, 1)."""
    wait_s = min(max_s, min_s * 2.0 ** min(failures, 32))
    return wait_s * (1 - JITTER + 2 * JITTER * draw())


class TokenBucket:
    """At most `rate_per_s` in the long run, and `burst` at once. The caller says what time it is."""

    def __init__(self, *, rate_per_s: float, burst: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._tokens = burst
        self._at = float("-inf")

    def take(self, *, now: float) -> bool:
        """Whether one more is within the rate; it counts if it is."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate_per_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give(self, tokens: float) -> None:
        """So many more may be taken, within the burst."""
        self._tokens = min(self._burst, self._tokens + tokens)


class Rates(Generic[Key]):
    """One bucket for each of many, of which the ones quiet for the longest time are forgotten."""

    def __init__(self, *, rate_per_s: float, burst: float, kept_max: int = 4096) -> None:
        self._rate_per_s, self._burst, self._kept_max = rate_per_s, burst, kept_max
        self._buckets: dict[Key, TokenBucket] = {}

    def take(self, key: Key, *, now: float) -> bool:
        """Whether one more of this one is within its rate; it counts if it is."""
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            bucket = TokenBucket(rate_per_s=self._rate_per_s, burst=self._burst)
            if len(self._buckets) >= self._kept_max:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = bucket
        return bucket.take(now=now)
