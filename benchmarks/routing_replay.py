"""What routing is worth, policy by policy and piece by piece: the core on MMLU, without trio.

The production core decides (view of loads, ranking, ledger, radix trees); caches, time and load are
arithmetic: a request takes its round trip and its uncached tokens at the prefill rate, one request at a time,
and estimates are always fresh. Some twenty times faster than the simulated world (peerinfer/sim), which has
all the rest, and near enough to compare what costs a few per cent.

    python benchmarks/routing_replay.py --data DIR [--requests N] [--seeds N] [--ablate]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from statistics import mean

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.peer_view import PeerView
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import OwnState, Prompt, rank
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Load, NodeState, PageKey, PeerId
from peerinfer.sim.workloads.corpus import Corpus, load_corpus
from peerinfer.sim.workloads.mmlu import MmluSpec

PAGE = 16
RATE = 480.0  # measured: SGLang, SmolLM2-135M, one thread
NODES = 4
CACHES = (2_000, 6_000, 40_000)
DELAYS_S = (0.002, 0.2, 1.0)
RECENT_HALF_LIFE_S = 30.0
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
    "cost, placement without hysteresis": (replace(COST, placement_gain=0.0), True),
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
    by_entry_s: tuple[float, ...]


class FreshView(PeerView):
    """A view whose estimates are its peers' trees as they are now."""

    def __init__(self, *, me: int, trees: list[RadixTree], config: Config, round_trip_s: float) -> None:
        super().__init__(me=_name(me), own=trees[me], page_size=PAGE, config=config)
        for number in range(NODES):
            if number != me:
                self.apply_snapshot(_name(number), _BEAT, now=0.0)
                self.observe_round_trip(_name(number), round_trip_s)
                self._peers[_name(number)].detector.suspect_at = inf
        self._others = [tree for number, tree in enumerate(trees) if number != me]

    def match_estimates(self, keys: object) -> list[int]:
        return [tree.match_prefix(keys) for tree in self._others]  # type: ignore[arg-type]


_BEAT = Snapshot(
    addrs=(),
    incarnation=1,
    seq=0,
    tree_version=0,
    next_within_s=1.0,
    load=Load(prefill_tokens_per_s=RATE, slots=4),
    paused_for_s=0.0,
    state=NodeState.ALIVE,
    reuse_tokens=1,
    keys=None,
    cut=False,
    pages=0,
)


def _name(number: int) -> PeerId:
    return PeerId(f"node-{number}")


class Swarm:
    """Nodes, their caches and what each has computed lately."""

    def __init__(self, cell: Cell) -> None:
        routing, has_ledger = PIECES[cell.piece]
        self.routing = routing
        self.rtt_s = 2.0 * cell.delay_s
        config = Config(routing=routing)
        self.trees = [RadixTree(capacity_pages=cell.cache_pages) for _ in range(NODES)]
        self.views = [
            FreshView(me=number, trees=self.trees, config=config, round_trip_s=self.rtt_s)
            for number in range(NODES)
        ]
        self.rents = [RentLedger(routing) if has_ledger else None for _ in range(NODES)]
        self.recent = [(0.0, 0.0)] * NODES
        self.now = 1.0

    def load(self, node: int) -> Load:
        tokens, at = self.recent[node]
        recent = tokens * 2.0 ** ((at - self.now) / RECENT_HALF_LIFE_S)
        return Load(prefill_tokens_per_s=RATE, recent_prefill_tokens=round(recent), slots=4)

    def serve(self, turn: int, entry: int, keys: tuple[PageKey, ...], tokens: int) -> tuple[int, int, float]:
        """Who served a request, what it had cached, and how long the request took."""
        view, rents = self.views[entry], self.rents[entry]
        for number in range(NODES):
            view.observe_load(_name(number), self.load(number), incarnation=1, seq=0, now=self.now)
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
        if ranking.tenancy is not None and rents is not None:
            residence_s = self.trees[entry].evictions.residence_s
            rents.note(ranking.tenancy, served_here=chosen.is_me, residence_s=residence_s, now=self.now)
        node = int(chosen.peer.removeprefix("node-"))
        cached = min(self.trees[node].match_prefix(keys) * PAGE, (tokens - 1) // PAGE * PAGE)
        took_s = (tokens - cached) / RATE + (self.rtt_s if chosen.away else 0.0)
        self.now += took_s
        self.recent[node] = (self.load(node).recent_prefill_tokens + tokens - cached, self.now)
        self.trees[node].insert(keys, now=self.now)
        return node, cached, took_s


def run(cell: Cell) -> Result:
    """Replay the workload."""
    swarm, served, times = Swarm(cell), [0] * NODES, [list[float]() for _ in range(NODES)]
    cached_tokens = prompt_tokens = 0
    for turn, (entry, keys, tokens) in enumerate(_prompts(cell)):
        node, cached, took_s = swarm.serve(turn, entry, keys, tokens)
        served[node] += 1
        times[entry].append(took_s)
        cached_tokens += cached
        prompt_tokens += tokens
    return Result(
        latency_s=sum(map(sum, times)) / sum(served),
        hit=cached_tokens / prompt_tokens,
        hottest=max(served) / sum(served),
        by_entry_s=tuple(map(mean, times)),
    )


@lru_cache(maxsize=1)
def _corpus(data: Path) -> Corpus:
    return load_corpus(data, say=print)


def _prompts(cell: Cell) -> Iterator[tuple[int, tuple[PageKey, ...], int]]:
    hasher = PageHasher(salt=derive_salt(None), page_size=PAGE)
    spec = MmluSpec(nodes=NODES, seed=cell.seed, requests=cell.requests, skewed=cell.skewed)
    for arrival in spec.build(_corpus(cell.data)).arrivals():
        yield arrival.entry, tuple(hasher.keys(arrival.tokens)), len(arrival.tokens)


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
        for piece in pieces
        for delay_s in (DELAYS_S if piece != "no routing" else DELAYS_S[:1])
        for cache in CACHES
        for seed in range(options.seeds)
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
