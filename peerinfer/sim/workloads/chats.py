"""Chats of several turns: each prompt is the whole conversation so far and a new message.

Chats begin at random times, and a user thinks between turns. The answers within a conversation are the
workload's own, of the length that was asked for: a prompt does not depend on which node answered before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from peerinfer.sim.workloads.draw import draw_tokens
from peerinfer.sim.workloads.workload import Arrival, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatsSpec:
    """`chats` conversations of `turns` messages each, in topics that have a system prompt each."""

    nodes: int = 4
    seed: int = 0
    chats: int = 200
    turns: int = 5
    systems: int = 4
    """System prompts; a chat has one of them."""
    system_tokens: int = 400
    message_tokens: int = 60
    answer_tokens: int = 100
    chats_per_s: float = 0.5
    think_s: float = 10.0
    """Between two messages of a user, on average."""
    sticky: bool = False
    """Whether a user stays with one node, or each message goes to a random one."""

    def build(self) -> Workload:
        """The workload."""

        def arrivals() -> Iterator[Arrival]:
            rng = random.Random(f"chats/{self.seed}")
            begins, at_s = [], 0.0
            for _ in range(self.chats):
                at_s += rng.expovariate(self.chats_per_s)
                begins.append(at_s)
            chats = [self._chat(number, begin) for number, begin in enumerate(begins)]
            yield from merge(*chats, key=lambda arrival: arrival.at_s or 0.0)

        return Workload(
            topics=tuple(f"system {number}" for number in range(self.systems)),
            count=self.chats * self.turns,
            digest="chats",
            arrivals=arrivals,
        )

    def _chat(self, number: int, at_s: float) -> Iterator[Arrival]:
        label = f"chats/{self.seed}/{number}"
        rng = random.Random(label)
        system, home = rng.randrange(self.systems), rng.randrange(self.nodes)
        prompt = draw_tokens(f"system/{self.seed}/{system}", self.system_tokens)
        for turn in range(self.turns):
            prompt += draw_tokens(f"{label}/message/{turn}", self.message_tokens)
            yield Arrival(
                entry=home if self.sticky else rng.randrange(self.nodes),
                topic=system,
                tokens=prompt,
                max_tokens=self.answer_tokens,
                at_s=at_s,
            )
            prompt += draw_tokens(f"{label}/answer/{turn}", self.answer_tokens)
            at_s += rng.expovariate(1 / self.think_s)
