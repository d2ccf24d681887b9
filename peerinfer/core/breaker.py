"""A circuit breaker per peer: who fails at requests is left alone for a while, then tried with one.

Closed: requests go there. Each failure opens it, each one in a row for twice as long. When that time is over
it is half open: one request may try, and until that is settled or late the others stay away. A request
that is served closes it, and so does a new connection. What the peer says of itself does not: it may gossip
well and fail at every request.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

OPEN_S_MAX = 60.0  # guess
"""The longest time for which a peer that fails again and again is left alone."""
_DOUBLINGS_MAX = 16


class BreakerState(StrEnum):
    """Whether requests go to a peer, as far as their failures are concerned."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """See the module."""

    __slots__ = ("failures", "open_until")

    def __init__(self) -> None:
        self.failures = 0
        """Of requests in a row."""
        self.open_until = -inf

    def failed(self, *, open_s: float, now: float) -> None:
        """A request failed: open for so long, for twice as long after each further one."""
        open_s *= 2 ** min(self.failures, _DOUBLINGS_MAX)
        self.open_until = max(self.open_until, now + min(open_s, OPEN_S_MAX))
        self.failures += 1

    def tried(self, *, within_s: float, now: float) -> bool:
        """A request is on its way; True if it is the one of a half-open breaker, which keeps others away."""
        if self.state(now=now) is not BreakerState.HALF_OPEN:
            return False
        self.open_until = now + within_s
        return True

    def succeeded(self) -> bool:
        """A request was served, or the peer is connected anew; True if that closes it."""
        was_closed = not self.failures
        self.failures, self.open_until = 0, -inf
        return not was_closed

    def restarted(self) -> None:
        """The peer has begun a new life: it may be tried at once, but what it did is not forgotten."""
        self.open_until = -inf

    def state(self, *, now: float) -> BreakerState:
        """Closed, open, or half open."""
        return breaker_state(self.failures, self.open_until, now=now)


def breaker_state(failures: int, open_until: float, *, now: float) -> BreakerState:
    """Of a breaker with so many failures in a row."""
    if not failures:
        return BreakerState.CLOSED
    return BreakerState.OPEN if now < open_until else BreakerState.HALF_OPEN
