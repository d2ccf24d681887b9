"""How long to wait before the next try: doubled after each failure, never the same for two nodes."""

from __future__ import annotations

from collections.abc import Callable

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
