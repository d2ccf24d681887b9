"""Prompts without end for soaks: some that never come again, some whose prefixes come and go one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSpec:
    """How long prompts are, and how fast their prefixes go."""

    vocabulary: int
    prompt_tokens: int
    prefix_tokens: int
    prefixes: int
    chance: float
    """That a prefix is replaced by a new one before a prompt."""

    def unique(self, rng: random.Random) -> Iterator[list[int]]:
        """Prompts that have nothing in common."""
        while True:
            yield self._tokens(rng, self.prompt_tokens)

    def draw_prefixes(self, rng: random.Random) -> list[list[int]]:
        """As many as there are at a time."""
        return [self._tokens(rng, self.prefix_tokens) for _ in range(self.prefixes)]

    def churning(self, rng: random.Random, prefixes: list[list[int]]) -> Iterator[list[int]]:
        """Prompts of these prefixes, which are replaced one by one; all who share the list see that."""
        while True:
            if rng.random() < self.chance:
                prefixes[rng.randrange(self.prefixes)] = self._tokens(rng, self.prefix_tokens)
            yield rng.choice(prefixes) + self._tokens(rng, self.prompt_tokens - self.prefix_tokens)

    def _tokens(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(self.vocabulary), k=count)
