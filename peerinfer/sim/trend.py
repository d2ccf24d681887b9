"""Whether a series goes up, told without the assumptions that memory breaks.

Resident memory moves in steps and remembers its past, so that the errors of a least-squares line are neither
normal nor independent, and its interval is too narrow. Theil and Sen's slope is the median of the slopes
between all pairs; Kendall's statistic tells how sure its sign is, and Sen's interval holds the true slope
with 95 %. Medians of blocks stand in for the samples, long enough for one block to say little about the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Z_95 = 1.96
BLOCKS_MIN = 6
"""With fewer no trend could be told from chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Per second, in whatever unit the series has."""

    slope: float
    low: float
    high: float
    """The slope's interval of 95 %."""

    @property
    def flat(self) -> bool:
        """The slope cannot be told from zero."""
        return self.low <= 0 <= self.high

    def told(self, *, unit: str, scale: float, per_s: float) -> str:
        """Slope, interval and verdict, for people; `scale` of the series' units are one `unit`."""
        slope, low, high = (each * per_s / scale for each in (self.slope, self.low, self.high))
        verdict = "flat" if self.flat else "falling" if self.slope < 0 else "GROWING"
        return f"{slope:+.3g} {unit} (95 %: {low:+.3g} to {high:+.3g}): {verdict}"


def blocks(series: Sequence[tuple[float, float]], *, seconds: float) -> list[tuple[float, float]]:
    """Medians of times and values, of each so many seconds that are complete."""
    found: dict[int, list[tuple[float, float]]] = {}
    begin = series[0][0] if series else 0.0
    for at, value in series:
        found.setdefault(int((at - begin) / seconds), []).append((at, value))
    whole = [found[number] for number in sorted(found)[:-1]]
    return [
        (statistics.median(at for at, _ in block), statistics.median(value for _, value in block))
        for block in whole
    ]


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """The slope of a series and its interval; None for one that is too short to say."""
    if len(points) < BLOCKS_MIN:
        return None
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    spread = Z_95 * math.sqrt(_variance([value for _, value in points]))
    count = len(slopes)
    low = max(0, math.floor((count - spread) / 2) - 1)
    high = min(count - 1, math.ceil((count + spread) / 2))
    return Trend(slope=statistics.median(slopes), low=slopes[low], high=slopes[high])


def _variance(values: Sequence[float]) -> float:
    """Of Kendall's statistic, where some values are equal."""
    n = len(values)
    ties = [values.count(value) for value in set(values)]
    return (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
