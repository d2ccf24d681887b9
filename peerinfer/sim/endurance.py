"""Hours of prompts that never come again, in virtual time: is everything that a node keeps bounded, and flat?

    python -m peerinfer.sim.endurance --hours 2

Three nodes with small caches. At each, one client asks prompts that are all new, and one asks common prefixes
that are replaced now and then, so that pages come and go in every tree and in every estimate of it; a node
crashes and comes back every few minutes. What each node keeps is counted and held against its bound, and
this process's memory is measured: after the warm-up neither its blocks (Python's own count, exact) nor its
resident set may go up. `benchmarks.soak` is the same with real processes, for real minutes.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import trio

from peerinfer.config import AntiEntropyConfig, Config, EngineConfig, RequestConfig, RoutingConfig
from peerinfer.sim.place import Place
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.trend import Trend, blocks, trend
from peerinfer.sim.workloads.churn import ChurnSpec
from peerinfer.sim.world import NodeSpec, World, WorldSpec

NODES = 3
CACHE_PAGES = 256
RINGS = 200
"""What config bounds by a number is bounded by this one here, so that a short run fills it."""
PROMPTS = ChurnSpec(vocabulary=50_000, prompt_tokens=100, prefix_tokens=64, prefixes=60, chance=0.05)
"""More prefixes than a cache holds."""
ASKED_EVERY_S = 1.5
CRASH_EVERY_S = 600.0
WARM_UP = 0.25
SAMPLES = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At one moment of virtual time."""

    at_s: float
    kept: Mapping[str, int]
    """The most that any node keeps, by kind."""
    blocks: int
    """Memory blocks of this process, garbage excluded."""
    rss_bytes: int


BOUNDS: Mapping[str, int] = {
    "own tree's pages": CACHE_PAGES,
    "blocks of the engine's": CACHE_PAGES,
    "evicted pages remembered": CACHE_PAGES,
    "pages of estimates": (NODES - 1) * CACHE_PAGES,
    "pages inserted in estimates": (NODES - 1) * CACHE_PAGES,
    "rents": RINGS,
    "decisions": RINGS,
    "peers": NODES - 1,
    "marks of forgotten peers": NODES - 1,
}
"""By kind, what a node may keep at most."""


def kept(place: Place) -> dict[str, int]:
    """What a node keeps, by kind."""
    node = place.node.context
    view = node.view
    peers = [record.peer for record in view.peers()]
    counts = (
        len(view.own),
        len(node.cache_sync),
        len(view.own.evictions),
        sum(len(view.estimated_pages(peer)) for peer in peers),
        sum(len(view.inserted_pages(peer)) for peer in peers),
        len(node.rents),
        len(node.decisions),
        len(view),
        view.forgotten,
    )
    return dict(zip(BOUNDS, counts, strict=True))


class Endurance:
    """One world and the samples taken of it."""

    def __init__(self, *, seed: int, hours: float) -> None:
        self.samples: list[Sample] = []
        self.answered = self.failed = 0
        self._prefixes = PROMPTS.draw_prefixes(random.Random(f"{seed}/prefixes"))
        self._seed, self._until_s = seed, 3600 * hours
        self._world = World(
            WorldSpec(
                seed=seed,
                nodes=(NodeSpec(cache_pages=CACHE_PAGES, prefill_tokens_per_s=5000.0),) * NODES,
                config=Config(
                    routing=RoutingConfig(rent_ledger_max=RINGS),
                    anti_entropy=AntiEntropyConfig(poll_interval_s=1.0),
                    request=RequestConfig(decisions_kept=RINGS),
                    engine=EngineConfig(page_size=16),
                ),
            )
        )

    async def run(self) -> None:
        """Live through it."""
        async with self._world as world:
            await world.settle()
            async with trio.open_nursery() as nursery:
                for entry in range(NODES):
                    nursery.start_soon(self._ask, entry, self._unique(entry))
                    nursery.start_soon(self._ask, entry, self._churning(entry))
                nursery.start_soon(self._crash_now_and_then)
                for number in range(1, SAMPLES + 1):
                    await trio.sleep_until(self._until_s * number / SAMPLES)
                    self.samples.append(self._sample())
                nursery.cancel_scope.cancel()

    def trends(self) -> dict[str, Trend | None]:
        """Of this process's memory after the warm-up, per virtual second."""
        warm = [each for each in self.samples if each.at_s >= WARM_UP * self._until_s]
        seconds = 3 * self._until_s / SAMPLES
        return {
            "blocks": trend(blocks([(each.at_s, each.blocks) for each in warm], seconds=seconds)),
            "rss": trend(blocks([(each.at_s, each.rss_bytes) for each in warm], seconds=seconds)),
        }

    def unbounded(self) -> list[str]:
        """What was above its bound at any time."""
        most = {kind: max(each.kept[kind] for each in self.samples) for kind in BOUNDS}
        return [f"{kind}: {most[kind]} of {bound}" for kind, bound in BOUNDS.items() if most[kind] > bound]

    async def _ask(self, entry: int, prompts: Iterator[list[int]]) -> None:
        draw = random.Random(f"{self._seed}/pause/{entry}")
        for tokens in prompts:
            await trio.sleep(draw.expovariate(1 / ASKED_EVERY_S))
            outcome = await self._world.request(entry=entry, tokens=tokens, max_tokens=2)
            self.answered += outcome.error is None
            self.failed += outcome.error is not None

    def _unique(self, entry: int) -> Iterator[list[int]]:
        return PROMPTS.unique(random.Random(f"{self._seed}/unique/{entry}"))

    def _churning(self, entry: int) -> Iterator[list[int]]:
        return PROMPTS.churning(random.Random(f"{self._seed}/churn/{entry}"), self._prefixes)

    async def _crash_now_and_then(self) -> None:
        draw = random.Random(f"{self._seed}/crashes")
        while True:
            await trio.sleep(draw.expovariate(1 / CRASH_EVERY_S))
            place = draw.choice(self._world.nodes)
            self._world.crash(place.index)
            await place.over()
            await trio.sleep(5.0)
            await self._world.restart(place.index)

    def _sample(self) -> Sample:
        gc.collect()
        alive = [kept(place) for place in self._world.nodes if place.alive]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Sample(
            at_s=self._world.now,
            kept={kind: max(each[kind] for each in alive) for kind in BOUNDS},
            blocks=sys.getallocatedblocks(),
            rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        )


def endure(*, seed: int, hours: float) -> Endurance:
    """Run it."""
    endurance = Endurance(seed=seed, hours=hours)
    run_virtual(endurance.run, seed=seed)
    return endurance


def lines(endurance: Endurance) -> Iterator[str]:
    """For people."""
    yield f"{endurance.answered} requests answered, {endurance.failed} failed where a node crashed"
    for kind, bound in BOUNDS.items():
        values = [each.kept[kind] for each in endurance.samples]
        half, last = values[len(values) // 2], values[-1]
        yield f"  {kind}: {half} at half time, {last} at the end, at most {max(values)} of {bound}"
    found = endurance.trends()
    rss = [each.rss_bytes / 1e6 for each in endurance.samples]
    yield f"  memory: {rss[-1]:.1f} MB at the end, at most {max(rss):.1f}"
    for name, unit, scale in (("blocks", "blocks per hour", 1.0), ("rss", "MB per hour", 1e6)):
        slope = found[name]
        told = "too short to say" if slope is None else slope.told(unit=unit, scale=scale, per_s=3600)
        yield f"  {name}: {told}"


@click.command()
@click.option("--hours", type=float, default=2.0, show_default=True, help="Of virtual time.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(hours: float, seed: int) -> None:
    """Run it and judge; status 1 if anything was beyond its bound, or memory grew."""
    endurance = endure(seed=seed, hours=hours)
    for line in lines(endurance):
        click.echo(line)
    growing = [name for name, found in endurance.trends().items() if found and found.low > 0]
    for wrong in (*endurance.unbounded(), *growing):
        click.echo(f"WRONG: {wrong}")
    sys.exit(bool(endurance.unbounded() or growing))


if __name__ == "__main__":
    main()
