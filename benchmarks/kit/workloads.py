"""The workloads of `peerinfer.sim` as chats in open loop: when each is due, at which node, and its body.

Open loop means that requests come when they come, whether or not those before were answered; latency counts
from when a request was due, so that a system that falls behind cannot hide it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.kit.client import chat
from benchmarks.kit.vocabulary import spell
from peerinfer.sim.workloads.chats import ChatsSpec
from peerinfer.sim.workloads.corpus import load_corpus
from peerinfer.sim.workloads.look_alike import look_alike
from peerinfer.sim.workloads.mmlu import MmluSpec
from peerinfer.sim.workloads.mooncake import MooncakeSpec
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec
from peerinfer.sim.workloads.workload import Arrival

NODES = 4
MMLU_PER_S = 40.0
"""With engines of 5,000 tokens/s: a fifth of them is busy where four of five tokens are cached."""
MOONCAKE_EVERY = 16
"""One token in so many of the trace's: engines here remember 25,000 tokens, not a million."""
MOONCAKE_SPEED = 4.0
MOONCAKE_OUTPUT = 0.02
"""Of the trace's answers, so that what is measured is prefill."""
GROUPS_PER_S = 40.0


@dataclass(frozen=True, slots=True)
class Due:
    """One request."""

    at_s: float
    entry: int
    body: bytes


Arrivals = Callable[[int, int, Path | None], Iterator[Arrival]]
"""Draws so many requests by a seed, from a data directory."""


def mmlu(*, skewed: bool) -> Arrivals:
    """MMLU 5-shot, one token to answer (paper §4); a corpus of its shape where its texts are not here."""

    def build(count: int, seed: int, data: Path | None) -> Iterator[Arrival]:
        corpus = load_corpus(data, say=print) if data is not None else look_alike()
        workload = MmluSpec(nodes=NODES, seed=seed, requests=count, skewed=skewed).build(corpus)
        return _poisson(workload.arrivals(), rate=MMLU_PER_S, seed=seed)

    return build


def mooncake(count: int, seed: int, data: Path | None) -> Iterator[Arrival]:
    """Mooncake's conversation trace, scaled down to these engines in time and tokens."""
    if data is None:
        raise ValueError("Mooncake's trace is needed: --data DIRECTORY")
    spec = MooncakeSpec(
        nodes=NODES, seed=seed, requests=count, speed=MOONCAKE_SPEED, output_tokens_max=1 << 20
    )
    arrivals = [
        replace(
            arrival,
            tokens=arrival.tokens[::MOONCAKE_EVERY],
            max_tokens=max(1, round(arrival.max_tokens * MOONCAKE_OUTPUT)),
        )
        for arrival in spec.build(data).arrivals()
    ]
    return _spread_ticks(arrivals)


def groups(count: int, seed: int, _data: Path | None) -> Iterator[Arrival]:
    """40 prefixes of 512 tokens, Zipf's popularity, endings of their own."""
    spec = SharedPrefixSpec(
        nodes=NODES, seed=seed, requests=count, groups=40, prompts=1000, requests_per_s=GROUPS_PER_S
    )
    return spec.build().arrivals()


def chats(count: int, seed: int, _data: Path | None) -> Iterator[Arrival]:
    """Conversations of five turns, each turn at a random node."""
    spec = ChatsSpec(
        nodes=NODES, seed=seed, chats=max(1, count // 5), answer_tokens=20, chats_per_s=6.0, think_s=2.0
    )
    return spec.build().arrivals()


WORKLOADS: dict[str, Arrivals] = {
    "mmlu": mmlu(skewed=False),
    "mmlu-skewed": mmlu(skewed=True),
    "mooncake": mooncake,
    "groups": groups,
    "chats": chats,
}


def bodies(arrivals: Iterator[Arrival]) -> list[Due]:
    """The same as what clients send."""
    return [
        Due(
            at_s=arrival.at_s or 0.0,
            entry=arrival.entry,
            body=chat(spell(arrival.tokens), max_tokens=arrival.max_tokens, stream=True),
        )
        for arrival in arrivals
    ]


def _poisson(arrivals: Iterator[Arrival], *, rate: float, seed: int) -> Iterator[Arrival]:
    rng = random.Random(f"poisson/{seed}")
    at_s = 0.0
    for arrival in arrivals:
        at_s += rng.expovariate(rate)
        yield replace(arrival, at_s=at_s)


def _spread_ticks(arrivals: list[Arrival]) -> Iterator[Arrival]:
    """The trace has ticks of three seconds: spread what came within one evenly over it."""
    begins = sorted({arrival.at_s or 0.0 for arrival in arrivals})
    ends = dict(zip(begins, [*begins[1:], begins[-1] + 3 / MOONCAKE_SPEED], strict=True))
    first = begins[0]
    for begin, end in ends.items():
        within = [arrival for arrival in arrivals if (arrival.at_s or 0.0) == begin]
        for place, arrival in enumerate(within):
            at_s = begin - first + (end - begin) * place / len(within)
            yield replace(arrival, at_s=at_s)
