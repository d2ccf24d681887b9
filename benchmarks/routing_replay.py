"""What routing is worth, policy by policy and piece by piece: the core on MMLU, without trio.

The production core decides (view of loads, ranking, ledger, radix trees); caches, time and load are
arithmetic: a request takes its round trip and its uncached tokens at the prefill rate, one request at a time,
and estimates are always fresh. Some twenty times faster than the simulated world (peerinfer/sim), which has
all the rest, and near enough to compare what costs a few per cent.

    python -m benchmarks.routing_replay --data DIR [--requests N] [--seeds N] [--ablate]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean

from benchmarks.oracle_view import OracleView, number_of
from peerinfer.config import Config, RoutingConfig
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import OwnState, Prompt, rank
from peerinfer.core.types import Load, PageKey
from peerinfer.engine.recent_count import RecentCount
from peerinfer.sim.workloads.corpus import Corpus, load_corpus
from peerinfer.sim.workloads.mmlu import MmluSpec

PAGE = 16
RATE = 480.0  # measured: SGLang, SmolLM2-135M, one thread
NODES = 4
CACHES = (2_000, 6_000, 40_000)
DELAYS_S = (0.002, 0.2, 1.0)
RECENT_HALF_LIFE_S = 30.0
IDLE = Load(prefill_tokens_per_s=RATE, slots=4)
COST = RoutingConfig()
PIECES = {
    "no routing": (replace(COST, policy="local"), True),
    "longest match (the paper's rule)": (replace(COST, policy="longest-prefix"), True),
    "cost": (COST, True),
    "cost, never buying": (COST, False),
    "cost, the classical rule": (replace(COST, rent_learns=False, rent_prior_uses=0.0), True),
    "cost, not learning": (replace(COST, rent_learns=False), True),
    "cost, evictions not priced": (replace(COST, rent_prices_evictions=False), True),
    "cost, no placement": (replace(COST, cold_round_trip_share_max=0.0), True),
    "cost, placement without agreement": (replace(COST, placement_agreement=0.0), True),
    "cost, placement without either": (replace(COST, placement_agreement=0.0, placement_gain=0.0), True),
}
"""Configurations, and whether they keep a ledger of rents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    piece: str
    skewed: bool
    delay_s: float
    cache_pages: int
    seed: int
    requests: int | None
    data: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it."""

    latency_s: float
    hit: float
    hottest: float


class Swarm:
    """Nodes, their caches and what each has computed lately."""

    def __init__(self, cell: Cell) -> None:
        routing, has_ledger = PIECES[cell.piece]
        self.routing = routing
        self.rtt_s = 2.0 * cell.delay_s
        config = Config(routing=routing)
        self.trees = [RadixTree(capacity_pages=cell.cache_pages) for _ in range(NODES)]
        self.views = [
            OracleView(
                me=number,
                trees=self.trees,
                page_size=PAGE,
                config=config,
                round_trip_s=self.rtt_s,
                load=IDLE,
            )
            for number in range(NODES)
        ]
        self.rents = [RentLedger(routing) if has_ledger else None for _ in range(NODES)]
        self.recent = [RecentCount(RECENT_HALF_LIFE_S) for _ in range(NODES)]
        self.now = 1.0

    def load(self, node: int) -> Load:
        return replace(IDLE, recent_prefill_tokens=round(self.recent[node].at(self.now)))

    def serve(self, turn: int, entry: int, keys: tuple[PageKey, ...], tokens: int) -> tuple[int, int, float]:
        """Who served a request, what it had cached, and how long the request took."""
        view, rents = self.views[entry], self.rents[entry]
        for number in range(NODES):
            if number != entry:
                view.hear(number, self.load(number), now=self.now)
        ranking = rank(
            view,
            Prompt(keys=keys, tokens=tokens),
            OwnState(load=self.load(entry), ready=True, reuse_tokens=1),
            policy=self.routing.policy,
            config=self.routing,
            now=self.now,
            turn=turn,
            draw=0.5,
            rents=rents,
        )
        chosen = ranking.targets[0]
        view.crowding.note(busy_share=ranking.busy_share, prefill_s=chosen.prefill_s)
        if ranking.tenancy is not None and rents is not None:
            residence_s = self.trees[entry].evictions.residence_s
            rents.note(ranking.tenancy, served_here=chosen.is_me, residence_s=residence_s, now=self.now)
        node = number_of(chosen.peer)
        cached = min(self.trees[node].match_prefix(keys) * PAGE, (tokens - 1) // PAGE * PAGE)
        took_s = (tokens - cached) / RATE + (self.rtt_s if chosen.away else 0.0)
        self.now += took_s
        self.recent[node].add(tokens - cached, now=self.now)
        self.trees[node].insert(keys, now=self.now)
        return node, cached, took_s


def run(cell: Cell) -> Result:
    """Replay the workload."""
    swarm, served = Swarm(cell), [0] * NODES
    spec = MmluSpec(nodes=NODES, seed=cell.seed, requests=cell.requests, skewed=cell.skewed)
    cached_tokens, prompt_tokens, latency_s = 0, 0, 0.0
    for turn, (entry, keys, tokens) in enumerate(_prompts(cell.data, spec)):
        node, cached, took_s = swarm.serve(turn, entry, keys, tokens)
        served[node] += 1
        latency_s += took_s
        cached_tokens += cached
        prompt_tokens += tokens
    return Result(
        latency_s=latency_s / sum(served),
        hit=cached_tokens / prompt_tokens,
        hottest=max(served) / sum(served),
    )


@lru_cache(maxsize=1)
def _corpus(data: Path) -> Corpus:
    return load_corpus(data, say=print)


@lru_cache(maxsize=1)
def _prompts(data: Path, spec: MmluSpec) -> list[tuple[int, tuple[PageKey, ...], int]]:
    """The entry, pages and tokens of each request; kept for the cells that share them."""
    hasher = PageHasher(salt=derive_salt(None), page_size=PAGE)
    return [
        (arrival.entry, tuple(hasher.keys(arrival.tokens)), len(arrival.tokens))
        for arrival in spec.build(_corpus(data)).arrivals()
    ]


def main() -> None:
    """Print a row per configuration: the mean latency over caches and seeds against no routing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ablate", action="store_true", help="all pieces, not only the whole")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pieces = list(PIECES) if options.ablate else list(PIECES)[:3]
    cells = [
        Cell(
            piece=piece,
            skewed=skewed,
            delay_s=delay_s,
            cache_pages=cache,
            seed=seed,
            requests=options.requests,
            data=options.data,
        )
        for skewed in (False, True)
        for seed in range(options.seeds)
        for piece in pieces
        for delay_s in (DELAYS_S if piece != "no routing" else DELAYS_S[:1])
        for cache in CACHES
    ]
    with ProcessPoolExecutor(2) as pool:
        results = dict(zip(cells, pool.map(run, cells), strict=True))
    rows = list(_rows(results))
    print(
        "| workload | one way | policy | mean | worst cell | hit | hottest |\n|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def _rows(results: dict[Cell, Result]) -> Iterator[dict[str, str]]:
    groups: dict[tuple[bool, float, str], list[tuple[float, Result]]] = {}
    for cell, result in results.items():
        if cell.piece != "no routing":
            base = results[replace(cell, piece="no routing", delay_s=DELAYS_S[0])]
            group = groups.setdefault((cell.skewed, cell.delay_s, cell.piece), [])
            group.append((result.latency_s / base.latency_s, result))
    for (skewed, delay_s, piece), group in sorted(groups.items(), key=lambda item: item[0][:2]):
        yield {
            "workload": "skewed" if skewed else "uniform",
            "delay": f"{delay_s * 1000:g} ms",
            "policy": piece,
            "mean": f"{mean(ratio for ratio, _ in group):.3f}",
            "worst": f"{max(ratio for ratio, _ in group):.3f}",
            "hit": f"{mean(result.hit for _, result in group):.3f}",
            "hottest": f"{mean(result.hottest for _, result in group):.0%}",
        }


if __name__ == "__main__":
    main()
