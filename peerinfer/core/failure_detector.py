"""Silence is the failure detector (paper §3.3): one peer's clocks.

Every message of a peer promises the next one within some time. After a multiple of that without any, the
peer is suspected: it is not forwarded to, and nothing else happens. It is trusted again as soon as it is
heard of, and forgotten after a silence of minutes. A wrong suspicion costs a cache hit, never an answer,
so there is no second opinion and no agreement among peers.
"""

from __future__ import annotations

from peerinfer.config import AntiEntropyConfig


class FailureDetector:
    """When one peer is to be suspected, and when forgotten. All times are the caller's clock, in seconds."""

    __slots__ = ("_config", "_link_lost", "forget_at", "heard_at", "next_within_s", "suspect_at")

    def __init__(self, config: AntiEntropyConfig, *, now: float) -> None:
        self._config = config
        self.suspect_at = now
        """From this time on, if the silence lasts, the peer is suspected; never after it is forgotten."""
        self.forget_at = now
        """From this time on, if the silence lasts, the peer is forgotten."""
        self.next_within_s = config.idle_interval_s
        """What the peer last promised; before that, what an idle node would."""
        self.heard(now=now)

    def heard(self, *, now: float, next_within_s: float | None = None) -> None:
        """The peer gave a sign of life, and perhaps a new promise."""
        if next_within_s is not None:
            self.next_within_s = next_within_s
        self.heard_at = now
        self._link_lost = False
        self._count_from(now)

    def link_lost(self, *, now: float) -> None:
        """The connection broke: a hint at once. Suspected until the next sign of life."""
        self._link_lost = True
        self.suspect_at = min(self.suspect_at, now)

    def restart(self, *, now: float) -> None:
        """We were frozen ourselves: the silence up to now was ours, not the peer's. A lost link was not."""
        suspect_at = self.suspect_at
        self._count_from(now)
        if self._link_lost:
            self.suspect_at = suspect_at

    def _count_from(self, start: float) -> None:
        patience_s = self._config.suspect_after * self.next_within_s
        self.forget_at = start + self._config.forget_after_s
        self.suspect_at = min(start + patience_s, self.forget_at)
