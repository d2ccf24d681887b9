"""Which node a client asks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

Entry = Literal["round-robin", "random"]


def entries(how: Entry, *, nodes: int, seed: int) -> Iterator[int]:
    """An index of a node per request, for ever.

    The paper says round-robin (§4) and reports a hottest share of 28.7 % without routing (table 3), which
    round-robin cannot give: 25 % plus what randomness adds over a few thousand requests is nearer.
    """
    rng = random.Random(f"entries/{seed}")
    turn = 0
    while True:
        yield rng.randrange(nodes) if how == "random" else turn % nodes
        turn += 1
