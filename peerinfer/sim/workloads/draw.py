"""Token sequences without a text: the same label gives the same tokens in every process."""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array
from bisect import bisect
from collections.abc import Sequence

FIRST_TOKEN = 1024
"""Below are a vocabulary's control tokens, which real engines treat in ways of their own."""
_KINDS = 32768


def draw_tokens(label: str, count: int) -> tuple[int, ...]:
    """So many tokens, which no other label gives."""
    drawn = array("H", hashlib.shake_128(label.encode()).digest(2 * count))
    return tuple([FIRST_TOKEN + number % _KINDS for number in drawn])


class Zipf:
    """Ranks from 0, drawn with a probability that falls as 1 / (rank + 1) ** exponent."""

    def __init__(self, count: int, *, exponent: float) -> None:
        weights = [(rank + 1) ** -exponent for rank in range(count)]
        self._bounds: Sequence[float] = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        """A rank."""
        return bisect(self._bounds, rng.random() * self._bounds[-1])
