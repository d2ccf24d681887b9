"""Nodes that decide apart against one central router, in virtual time: what not knowing each other costs.

The workloads of vs_router in open loop, on four simulated engines as fast as its. Nodes are the production
code; `central` is a cache_aware router before the same engines: it sees every request at once, remembers
what it sent where, sends a prompt to the longest match if that covers enough of it, else to the engine
with the fewest requests. Deterministic, and no matter how busy the machine is: what is left out is what
computing costs the nodes themselves (vs_router).

    python -m benchmarks.placement [--data DIR] [--requests N] [--seeds N] [--routing NAME=VALUE …]

`--routing` adds a row for nodes with that setting of the config's section `routing`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import trio

from benchmarks.kit.engine import PAGE, Pace
from benchmarks.kit.report import header, percentile, table
from benchmarks.kit.workloads import NODES, WORKLOADS
from peerinfer.config import Config, EngineConfig, RoutingConfig
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import PageKey
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.workloads.workload import Arrival
from peerinfer.sim.world import Conditions, NodeSpec, Outcome, World, WorldSpec

ONE_WAY_S = 0.001
MATCH_SHARE, IMBALANCE, IMBALANCE_TIMES = 0.3, 64, 1.5  # sglang-router's defaults
ROUTER_PAGES = 1 << 16
"""What it remembers of an engine: as good as all; it never hears what an engine forgets."""
CENTRAL, ALONE = "central", "no routing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    workload: str
    system: str
    seed: int
    requests: int
    data: Path | None

    @property
    def routing(self) -> RoutingConfig:
        """Of the nodes."""
        if self.system in (CENTRAL, ALONE):
            return RoutingConfig(policy="local")
        settings = [each for each in self.system.split() if "=" in each]
        return replace(RoutingConfig(), **tomllib.loads("\n".join(settings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of it."""

    ttft_mean_ms: float
    ttft_p99_ms: float
    hit: float
    hottest_share: float
    hottest_work: float
    forwarded: float
    slower: float
    """Refusals per request, by targets whose true wait was longer."""


class Router:
    """A central one; whoever is asked, it decides."""

    def __init__(self) -> None:
        self._hasher = PageHasher(salt=derive_salt(None), page_size=PAGE)
        self._trees = [RadixTree(capacity_pages=ROUTER_PAGES) for _ in range(NODES)]
        self._at_work = [0] * NODES

    def choose(self, tokens: Sequence[int]) -> int:
        """The engine for a prompt."""
        keys: list[PageKey] = list(self._hasher.keys(tokens))
        idlest = min(range(NODES), key=lambda node: (self._at_work[node], len(self._trees[node])))
        most, least = max(self._at_work), min(self._at_work)
        chosen = idlest
        if most - least <= IMBALANCE or most <= IMBALANCE_TIMES * least:
            matches = [tree.match_prefix(keys) for tree in self._trees]
            if max(matches) > MATCH_SHARE * len(keys):
                chosen = matches.index(max(matches))
        self._trees[chosen].insert(keys, now=trio.current_time())
        self._at_work[chosen] += 1
        return chosen

    def done(self, node: int) -> None:
        """A request there is over."""
        self._at_work[node] -= 1


def run(cell: Cell) -> Row:
    """Walk through a workload."""
    arrivals = list(WORKLOADS[cell.workload](cell.requests, cell.seed, cell.data))
    pace = Pace()
    node = NodeSpec(
        cache_pages=pace.capacity_tokens // PAGE,
        prefill_tokens_per_s=pace.prefill_tokens_per_s,
        decode_tokens_per_s=pace.decode_tokens_per_s,
        slots=pace.running_max,
        overhead_s=0.0,
    )
    spec = WorldSpec(
        seed=cell.seed,
        nodes=(node,) * NODES,
        conditions=Conditions(delay_s=ONE_WAY_S),
        config=Config(routing=cell.routing, engine=EngineConfig(page_size=PAGE)),
    )
    router = Router() if cell.system == CENTRAL else None
    return _row(run_virtual(partial(_walk, spec, arrivals, router), seed=cell.seed))


async def _walk(spec: WorldSpec, arrivals: Sequence[Arrival], router: Router | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    async with World(spec) as world:
        await world.settle()
        begin = trio.current_time() + 5.0  # round trips are measured by then

        async def ask(arrival: Arrival) -> None:
            entry = arrival.entry if router is None else router.choose(arrival.tokens)
            outcomes.append(
                await world.request(entry=entry, tokens=arrival.tokens, max_tokens=arrival.max_tokens)
            )
            if router is not None:
                router.done(entry)

        async with trio.open_nursery() as nursery:
            for arrival in arrivals:
                await trio.sleep_until(begin + (arrival.at_s or 0.0))
                nursery.start_soon(ask, arrival)
    return outcomes


def _row(outcomes: Sequence[Outcome]) -> Row:
    ttft_ms = [((each.first_chunk_at or each.ended_at) - each.started_at) * 1e3 for each in outcomes]
    served, work = [0] * NODES, [0] * NODES
    for each in outcomes:
        assert each.served_by is not None, each.error
        served[each.served_by] += 1
        work[each.served_by] += each.prompt_tokens - each.cached_tokens
    return Row(
        ttft_mean_ms=fmean(ttft_ms),
        ttft_p99_ms=percentile(ttft_ms, 0.99),
        hit=sum(each.cached_tokens for each in outcomes) / sum(each.prompt_tokens for each in outcomes),
        hottest_share=max(served) / len(outcomes),
        hottest_work=max(work) / sum(work),
        forwarded=fmean(each.served_by != each.entry for each in outcomes),
        slower=sum(why == "slower" for each in outcomes for _, why in each.attempts) / len(outcomes),
    )


def main() -> None:
    """Print a table per workload: means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a directory with mmlu/ and mooncake/")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workloads", nargs="*", default=["mmlu", "mmlu-skewed", "groups", "chats"])
    parser.add_argument("--routing", action="append", default=[], help="a setting, or several in one string")
    options = parser.parse_args()
    header()
    systems = [CENTRAL, ALONE, "peerinfer", *(f"peerinfer {each}" for each in options.routing)]
    cells = [
        Cell(workload=workload, system=system, seed=seed, requests=options.requests, data=options.data)
        for workload, system, seed in product(options.workloads, systems, range(options.seeds))
    ]
    with ProcessPoolExecutor(2) as pool:
        rows = dict(zip(cells, pool.map(run, cells), strict=True))
    for workload in options.workloads:
        lines = []
        for system in systems:
            of_it = [row for cell, row in rows.items() if (cell.workload, cell.system) == (workload, system)]
            lines.append([system, *(_format(name, of_it) for name in _NAMES)])
        table(f"**{workload}**", ["", *_NAMES], lines)


_NAMES = [each.name for each in fields(Row)]


def _format(name: str, rows: Sequence[Row]) -> str:
    value: Callable[[Row], float] = lambda row: float(getattr(row, name))  # noqa: E731
    return f"{fmean(map(value, rows)):.{1 if name.endswith('_ms') else 3}f}"


if __name__ == "__main__":
    main()
