"""What the requests of a node's clients came to, added up since it started: for `/metrics`.

Counted once each, when a request ends, at the node where it came in; what a node serves for peers is counted
where those came in.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter

from peerinfer.node.decisions import Decision

BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, math.inf)


class Histogram:
    """How many times were at most each of the bounds, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * len(BOUNDS_S)
        """Per bound, those above the bound before it."""
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    def buckets(self) -> list[tuple[float, int]]:
        """Bounds with all that were at most as long, as Prometheus counts them."""
        total = 0
        found = []
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


class Totals:
    """All of it."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.expected_cached_tokens = 0
        self.cached_tokens = 0
        self.ttft = Histogram()
        self.duration = Histogram()
        self.saved_by_forwarding_s = 0.0
        """What clients of this node did not wait because another node answered, against serving here."""
        self.lost_by_forwarding_s = 0.0
        """What they waited longer, where serving here would have been faster."""
        self.attempts: Counter[str] = Counter()
        """Targets that were tried, by what came of it."""

    def forwarding_saved(self, seconds: float) -> None:
        """A forwarded request's first token came so much earlier than it would have here; less is later."""
        if seconds >= 0.0:
            self.saved_by_forwarding_s += seconds
        else:
            self.lost_by_forwarding_s -= seconds

    def add(self, decision: Decision) -> None:
        """A request of a client's has ended."""
        for attempt in decision.attempts:
            self.attempts[attempt.outcome] += 1
        if decision.first_chunk_at is not None:
            self.ttft.observe(decision.first_chunk_at - decision.started_at)
        if decision.ended_at is not None and decision.error is None:
            self.duration.observe(decision.ended_at - decision.started_at)
        if decision.cached_tokens is not None and decision.prompt_tokens is not None:
            self.prompt_tokens += decision.prompt_tokens
            self.expected_cached_tokens += decision.expected_cached_tokens
            self.cached_tokens += decision.cached_tokens
