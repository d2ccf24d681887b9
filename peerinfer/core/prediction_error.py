"""By how much predictions about one node were wrong lately: shown to people, and added to later predictions.

An error is what a first token took beyond what was predicted. Part of it all nodes have in common (the first
token's decoding, what tokenising and HTTP take), so only what a peer's errors exceed our own by is added to
its cost. A link that makes forwarding lose corrects itself that way: its peer looks dearer, and is left
alone. Since nothing is learnt about a peer that is left alone, errors are forgotten, and it is tried again.
"""

from __future__ import annotations

SAMPLES_MIN = 3
"""A first error says little; so many are needed before they count."""
SMOOTHING = 0.1  # guess
"""The weight of a new error. Higher: a change is followed sooner, and one slow answer weighs more."""
HALF_LIFE_S = 60.0  # guess
"""Without new errors, old ones count half after this. Higher: a peer that lost is left alone longer."""


class PredictionError:
    """A moving mean of errors. Its one writer is the view."""

    __slots__ = ("_at", "_mean_s", "_samples")

    def __init__(self) -> None:
        self._samples = 0
        self._mean_s = 0.0
        self._at = 0.0

    def observe(self, error_s: float, *, now: float) -> None:
        """A first token took so much longer than predicted."""
        self._samples += 1
        self._mean_s += max(SMOOTHING, 1.0 / self._samples) * (error_s - self._mean_s)
        self._at = now

    def at(self, now: float) -> float | None:
        """The error to be expected at `now`; None while too little is known."""
        if self._samples < SAMPLES_MIN:
            return None
        return self._mean_s * float(2.0 ** (min(0.0, self._at - now) / HALF_LIFE_S))
