"""Why was this request served there? A bounded ring of decisions and of what came of them.

A decision is kept as the router made it and turned into JSON only when somebody asks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from peerinfer.core.router import Candidate, Ranking
from peerinfer.core.types import Endpoint, PeerId


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One target that was tried."""

    peer: PeerId
    outcome: str
    """`served`, or why not: `lost`, `timeout`, `overloaded`, `draining`, `failed` …"""


@dataclass(slots=True, kw_only=True)
class Decision:
    """One request as this node saw it."""

    request_id: str
    role: str
    """`entry` where the client came in, `serving` where a peer forwarded it to."""
    endpoint: Endpoint
    entry: PeerId
    policy: str = ""
    prompt_tokens: int | None = None
    ranking: Ranking | None = None
    chosen: PeerId | None = None
    expected_cached_tokens: int = 0
    asked: tuple[PeerId, ...] = ()
    """Peers that were asked what they have of the prompt and how long it would wait; the ranking knows."""
    attempts: list[Attempt] = field(default_factory=list)
    predicted_s: float | None = None
    """Until the first token, by the target that served it; None before there is one."""
    alone_s: float | None = None
    """What serving it here was predicted to take at that moment."""
    actual_s: float | None = None
    """What its target really took."""
    cached_tokens: int | None = None
    started_at: float = 0.0
    first_chunk_at: float | None = None
    ended_at: float | None = None
    error: str | None = None

    @property
    def regret_s(self) -> float | None:
        """How much sooner the best of the other candidates would have been, by what was known of it."""
        if self.actual_s is None or self.ranking is None:
            return None
        others = [each.first_token_s for each in self.ranking.targets if each.peer != self.chosen]
        return max(0.0, self.actual_s - min(others)) if others else 0.0

    def as_json(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/requests/{id}`."""
        ranking = self.ranking
        return {
            "request_id": self.request_id,
            "role": self.role,
            "endpoint": self.endpoint,
            "entry": self.entry,
            "policy": self.policy,
            "prompt_tokens": self.prompt_tokens,
            "candidates": [_candidate_json(c) for c in ranking.targets] if ranking else [],
            "skipped": [{"peer_id": p, "reason": why} for p, why in ranking.skipped] if ranking else [],
            "asked": list(self.asked),
            "chosen": self.chosen,
            "reason": ranking.reason if ranking else "forwarded by a peer",
            "expected_cached_tokens": self.expected_cached_tokens,
            "cached_tokens": self.cached_tokens,
            "predicted_s": self.predicted_s,
            "actual_s": self.actual_s,
            "regret_s": self.regret_s,
            "ttft_s": _since(self.started_at, self.first_chunk_at),
            "duration_s": _since(self.started_at, self.ended_at),
            "attempts": [{"peer_id": a.peer, "outcome": a.outcome} for a in self.attempts],
            "error": self.error,
        }


def _candidate_json(candidate: Candidate) -> dict[str, object]:
    return {
        "peer_id": candidate.peer,
        "self": candidate.is_me,
        "matched_pages": candidate.matched_pages,
        "expected_cached_tokens": candidate.expected_cached_tokens,
        "snapshot_age_s": candidate.snapshot_age_s,
        "rtt_s": candidate.rtt_s,
        "wait_s": candidate.wait_s,
        "others_s": candidate.others_s,
        "cost_s": candidate.cost_s,
    }


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start


class Decisions:
    """The last `kept_max` decisions by request id."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._ring: OrderedDict[str, Decision] = OrderedDict()

    def add(self, decision: Decision) -> Decision:
        """Keep a decision; the oldest goes."""
        self._ring[decision.request_id] = decision
        if len(self._ring) > self._kept_max:
            self._ring.popitem(last=False)
        return decision

    def get(self, request_id: str) -> Decision | None:
        """The decision about a request, while it is kept."""
        return self._ring.get(request_id)

    def __len__(self) -> int:
        return len(self._ring)
