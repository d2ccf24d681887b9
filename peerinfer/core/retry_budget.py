"""How many retries a node may add to the swarm's work: a share of its recent requests.

When many requests fail, retrying them all multiplies the load that made them fail. So each request earns
a share of a retry, savings are bounded by a burst, and beyond that the own engine serves (design: the
"retry budget" of the Google SRE book, "Handling Overload").
"""

from __future__ import annotations

_ROUNDING = 1e-9  # ten times 0.1 must make one retry


class RetryBudget:
    """A token bucket that requests fill and retries empty; it starts full."""

    def __init__(self, *, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self._saved = burst

    def request(self) -> None:
        """A request came in and earns its share of a retry."""
        self._saved = min(self._burst, self._saved + self._share)

    def try_retry(self) -> bool:
        """Spend one retry; False if there is none left."""
        if self._saved < 1.0 - _ROUNDING:
            return False
        self._saved -= 1.0
        return True
