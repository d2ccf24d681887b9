"""A large swarm in virtual time, on one core: a thousand production nodes and a hundred thousand requests.

    python -m benchmarks.sim_scale [--nodes 1000] [--requests 100000] [--seconds 60] [--json FILE]

The nodes are linked from the start, as in a swarm that has lived for long; their caches are small and empty.
Clients come as a Poisson process to nodes drawn at random. Each asks one of a group's prompts: a group has a
prefix, groups have Zipf's popularity, and caches are far too small to hold all of them. The rest is as in
production (gossip at the rate that the config bounds, estimates of all peers at every node), but for probes.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.kit.report import header, table, write_json
from peerinfer.config import Config, RequestConfig, RoutingConfig
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.workloads.shared_prefix import SharedPrefixSpec
from peerinfer.sim.workloads.workload import Arrival
from peerinfer.sim.world import Conditions, NodeSpec, Outcome, World, WorldSpec

CACHE_PAGES = 256
PREFIX_TOKENS = 128
ENDING_TOKENS = 32
NODES_PER_GROUP = 4
PROBES_PER_S_MAX = 1.0
"""A node asks so many peers a second for their round trip. All links are alike and stay so; at the default of
ten, asking would be a good part of what happens in the world."""
TOLD_EACH = 20
"""Lines of progress."""


@dataclass(slots=True)
class Totals:
    """What all requests came to."""

    requests: int = 0
    failed: int = 0
    forwarded: int = 0
    prompt_tokens: int = 0
    expected_tokens: int = 0
    cached_tokens: int = 0
    latency_s: float = 0.0
    served: Counter[int | None] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """One is over."""
        self.requests += 1
        self.failed += outcome.error is not None
        self.forwarded += outcome.route == "forwarded"
        self.prompt_tokens += outcome.prompt_tokens
        self.expected_tokens += outcome.expected_cached_tokens
        self.cached_tokens += outcome.cached_tokens
        self.latency_s += outcome.latency_s
        self.served[outcome.served_by] += 1


class Scale:
    """One run, and what it took."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.totals = Totals()
        self.phases: dict[str, dict[str, float]] = {}
        self._began = time.perf_counter()

    def spec(self) -> WorldSpec:
        """The world."""
        node = NodeSpec(
            cache_pages=CACHE_PAGES,
            prefill_tokens_per_s=4000.0,
            decode_tokens_per_s=100.0,
            slots=4,
            overhead_s=0.005,
        )
        return WorldSpec(
            seed=self.options.seed,
            nodes=(node,) * self.options.nodes,
            linked=True,
            conditions=Conditions(delay_s=0.002),
            config=Config(
                routing=RoutingConfig(policy=self.options.policy),
                request=RequestConfig(probes_per_s_max=PROBES_PER_S_MAX),
            ),
        )

    def arrivals(self) -> Iterator[Arrival]:
        """The clients."""
        nodes, requests = self.options.nodes, self.options.requests
        workload = SharedPrefixSpec(
            nodes=nodes,
            seed=self.options.seed,
            requests=requests,
            groups=max(8, nodes // NODES_PER_GROUP),
            prefix_tokens=PREFIX_TOKENS,
            ending_tokens=ENDING_TOKENS,
            zipf=0.8,
            requests_per_s=requests / self.options.seconds,
            entry="random",
        )
        return workload.build().arrivals()

    async def run(self) -> dict[str, object]:
        """Live through it."""
        async with AsyncExitStack() as stack:
            with self._phase("start"):
                world = await stack.enter_async_context(World(self.spec()))
            with self._phase("settle"):
                await world.settle()
            with self._phase("requests"):
                await self._ask_all(world)
            return {
                "virtual_s": round(trio.current_time(), 1),
                "messages": world.network.postman.arrivals,
                "digest": world.digest(),
            }

    async def _ask_all(self, world: World) -> None:
        begin = trio.current_time()
        each = max(1, self.options.requests // TOLD_EACH)
        async with trio.open_nursery() as nursery:

            async def ask(arrival: Arrival) -> None:
                self.totals.add(
                    await world.request(
                        entry=arrival.entry, tokens=arrival.tokens, max_tokens=arrival.max_tokens
                    )
                )
                if self.totals.requests % each == 0:
                    self._say(f"{self.totals.requests} of {self.options.requests} requests")

            for arrival in self.arrivals():
                await trio.sleep_until(begin + arrival.at_s if arrival.at_s is not None else begin)
                nursery.start_soon(ask, arrival)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.phases[name] = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
        self._say(f"{name}: {self.phases[name]['cpu_s']:.1f} s of CPU")

    def _say(self, what: str) -> None:
        print(f"  {time.perf_counter() - self._began:6.1f} s, {_peak_mb():.0f} MB: {what}", flush=True)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run, and print what it took and what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual, in which all requests come")
    parser.add_argument("--policy", default="cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    scale = Scale(options)
    began, cpu = time.perf_counter(), time.process_time()
    world = run_virtual(scale.run, seed=options.seed)
    totals = scale.totals
    results: dict[str, object] = {
        "nodes": options.nodes,
        "requests": totals.requests,
        "failed": totals.failed,
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        **{f"cpu_s, {name}": round(phase["cpu_s"], 1) for name, phase in scale.phases.items()},
        "peak_mb": round(_peak_mb()),
        **world,
        "hit rate": round(totals.cached_tokens / totals.prompt_tokens, 4),
        "expected hit rate": round(totals.expected_tokens / totals.prompt_tokens, 4),
        "forwarded": round(totals.forwarded / totals.requests, 4),
        "hottest share": round(max(totals.served.values()) / totals.requests, 5),
        "nodes that served": len(totals.served),
        "mean latency_s": round(totals.latency_s / totals.requests, 4),
    }
    table("A large swarm", ["what", "measured"], [[name, str(value)] for name, value in results.items()])
    write_json(options.json, facts, results)


if __name__ == "__main__":
    main()
