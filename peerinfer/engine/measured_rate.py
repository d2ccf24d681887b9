"""A rate measured from what was really done."""

from __future__ import annotations


class MeasuredRate:
    """Tokens per second; the past counts half after every `half_life_tokens` more.

    Sums decay, not quotients, so one tiny sample weighs no more than its tokens.
    """

    def __init__(self, half_life_tokens: float) -> None:
        self._half_life = half_life_tokens
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        decay = 0.5 ** (tokens / self._half_life)
        self._tokens = self._tokens * decay + tokens
        self._seconds = self._seconds * decay + seconds

    @property
    def per_s(self) -> float:
        """The rate; 0 while nothing was measured."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0
