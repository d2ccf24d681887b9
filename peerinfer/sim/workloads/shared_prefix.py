"""Groups of prompts that share a prefix, their popularity Zipf's: system prompts of many sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from peerinfer.sim.workloads.draw import Zipf, draw_tokens
from peerinfer.sim.workloads.entries import Entry, entries
from peerinfer.sim.workloads.workload import Arrival, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixSpec:
    """`requests` prompts out of `groups`; each is its group's prefix and one of `prompts` endings."""

    nodes: int = 4
    seed: int = 0
    requests: int = 1000
    groups: int = 16
    prompts: int = 100
    """Endings per group; what is asked twice is cached whole."""
    prefix_tokens: int = 512
    ending_tokens: int = 64
    output_tokens: int = 1
    zipf: float = 1.0
    """0: all groups are equally popular. Higher: fewer groups get more of the requests."""
    requests_per_s: float | None = None
    """Arrivals of a Poisson process; None: one at a time."""
    entry: Entry = "round-robin"

    def build(self) -> Workload:
        """The workload."""
        prefixes = [
            draw_tokens(f"group/{self.seed}/{group}", self.prefix_tokens) for group in range(self.groups)
        ]

        def arrivals() -> Iterator[Arrival]:
            rng = random.Random(f"shared-prefix/{self.seed}")
            popularity = Zipf(self.groups, exponent=self.zipf)
            turns = entries(self.entry, nodes=self.nodes, seed=self.seed)
            at_s = 0.0
            for _, entry in zip(range(self.requests), turns, strict=False):
                group, prompt = popularity.draw(rng), rng.randrange(self.prompts)
                ending = draw_tokens(f"prompt/{self.seed}/{group}/{prompt}", self.ending_tokens)
                if self.requests_per_s is not None:
                    at_s += rng.expovariate(self.requests_per_s)
                yield Arrival(
                    entry=entry,
                    topic=group,
                    tokens=prefixes[group] + ending,
                    max_tokens=self.output_tokens,
                    at_s=None if self.requests_per_s is None else at_s,
                )

        return Workload(
            topics=tuple(f"group {group}" for group in range(self.groups)),
            count=self.requests,
            digest="shared-prefix",
            arrivals=arrivals,
        )
