"""How much prefill work this node has recently given to whom: what decides between equally good targets.

"Recently" is measured in work, not in time: `HALF_LIFE_TOKENS` more tokens anywhere, and what was given
before counts half. So an idle hour changes nobody's turn, and a newcomer gets a few prompts more than its
share, not all of them. All counts age alike, hence ageing never changes their order. That is used: what
is added is weighted up, instead of weighting down everything that is there (forward decay, Cormode et
al. 2009).
"""

from __future__ import annotations

from peerinfer.core.types import PeerId

HALF_LIFE_TOKENS = 8192.0  # guess: some sixteen prompts of 500 tokens
_HALF_LIVES_MAX = 64.0  # of one prompt; what was before counts nothing after that
_WEIGHT_MAX = 2.0**64  # then all counts are scaled down, far from where floats end


class RecentWork:
    """Uncached prompt tokens by node, aged."""

    def __init__(self) -> None:
        self._weighted: dict[PeerId, float] = {}
        self._weight = 1.0

    def add(self, peer: PeerId, tokens: int) -> None:
        """A prompt with this many uncached tokens goes to `peer`."""
        self._weight *= 2.0 ** min(tokens / HALF_LIFE_TOKENS, _HALF_LIVES_MAX)
        self._weighted[peer] = self._weighted.get(peer, 0.0) + tokens * self._weight
        if self._weight > _WEIGHT_MAX:
            self._weighted = {known: work / self._weight for known, work in self._weighted.items()}
            self._weight = 1.0

    def tokens(self, peer: PeerId) -> float:
        """The aged count of a node."""
        return self._weighted.get(peer, 0.0) / self._weight

    def forget(self, peer: PeerId) -> None:
        """The node is gone."""
        self._weighted.pop(peer, None)
