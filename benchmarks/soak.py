"""Whether a node's memory is flat under prompts that never come again, and under prefixes that do.

    python -m benchmarks.soak [--minutes 40] [--json FILE]

Two nodes over engines that answer at once, eight connections to each. Half of them ask prompts that are all
new, the others a set of prefixes twice as large as the caches, with a new ending each time, of which a few
are replaced all the time: pages come and go in both trees, and in what each node knows of the other. Resident
memory is read every 5 s. The first 60 % are warm-up: caches and rings fill. Of the rest Theil and Sen's slope
is told with its interval of 95 %, over medians of 20 s (peerinfer/sim/trend.py): flat is what cannot be told
from zero. `peerinfer.sim.endurance` is the same in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit.client import Client, chat
from benchmarks.kit.processes import Process, processes, swarm
from benchmarks.kit.report import header, table, write_json
from benchmarks.kit.vocabulary import TOKENS, make_model, spell
from peerinfer.sim.trend import Trend, blocks, trend
from peerinfer.sim.workloads.churn import ChurnSpec

SAMPLE_S = 5.0
BLOCK_S = 20.0
WARM_UP = 0.6
"""Of the whole: 24 of 40 minutes. After ten, caches and the allocator's arenas are still filling by some 100
kB a minute."""
LANES = 8
"""Of each node, half of them for each kind of prompt."""
CAPACITY = 8192
"""Tokens that an engine remembers: 20 of these prompts."""
PROMPTS = ChurnSpec(vocabulary=TOKENS, prompt_tokens=400, prefix_tokens=350, prefixes=40, chance=0.02)
PACE_S = 0.15
"""Between the requests of a lane: what a small machine does besides counts, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At one moment."""

    at_s: float
    requests: int
    rss_bytes: list[int]


class Soak:
    """Asks, and looks."""

    def __init__(self, nodes: Sequence[Process]) -> None:
        self._nodes = nodes
        self.samples: list[Sample] = []
        self.requests = self.errors = 0

    async def run(self, seconds: float) -> None:
        """For so long."""
        clients = [Client(node.url) for node in self._nodes]
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look(seconds))
            draw = random.Random("soak/churn")
            shared = PROMPTS.churning(draw, PROMPTS.draw_prefixes(draw))
            for place, client in enumerate(clients):
                for lane in range(LANES):
                    fresh = PROMPTS.unique(random.Random(f"soak/{place}/{lane}"))
                    tasks.create_task(self._ask(client, shared if lane % 2 else fresh, end))
        for client in clients:
            client.close()

    async def _ask(self, client: Client, prompts: Iterator[list[int]], end: float) -> None:
        while time.monotonic() < end:
            self.errors += bool((await client.ask(_body(next(prompts)))).error)
            self.requests += 1
            await asyncio.sleep(PACE_S)

    async def _look(self, seconds: float) -> None:
        begun = time.monotonic()
        while (at := time.monotonic() - begun) < seconds:
            rss = [node.rss_bytes for node in self._nodes]
            self.samples.append(Sample(at_s=round(at, 1), requests=self.requests, rss_bytes=rss))
            if len(self.samples) % 12 == 1:
                shown = ", ".join(f"{each / 1e6:.1f}" for each in rss)
                print(f"{at:5.0f} s, {self.requests} requests: {shown} MB", flush=True)
            await asyncio.sleep(SAMPLE_S)


def trend_of(samples: Sequence[Sample], place: int, *, seconds: float) -> Trend | None:
    """A node's slope in bytes per second after the warm-up."""
    warm = [each for each in samples if each.at_s >= WARM_UP * seconds]
    return trend(blocks([(each.at_s, each.rss_bytes[place]) for each in warm], seconds=BLOCK_S))


def row(name: str, samples: Sequence[Sample], place: int, *, seconds: float) -> list[str]:
    """What a node's memory did."""
    rss = [each.rss_bytes[place] / 1e6 for each in samples]
    warm = [value for each, value in zip(samples, rss, strict=True) if each.at_s >= WARM_UP * seconds]
    found = trend_of(samples, place, seconds=seconds)
    shown = [f"{each:.1f}" for each in (rss[0], (warm or rss)[0], rss[-1], max(rss))]
    told = "too short to say" if found is None else found.told(unit="kB/min", scale=1e3, per_s=60)
    return [name, *shown, told]


def _body(tokens: Sequence[int]) -> bytes:
    return chat(spell(tokens), max_tokens=1, stream=False)


def main() -> None:
    """Ask, look, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        model = make_model(Path(directory) / "model")
        workers = [starter.worker(model, "--instant", "--capacity", str(CAPACITY)) for _ in range(2)]
        nodes = swarm(starter, workers)
        soak = Soak(nodes)
        asyncio.run(soak.run(seconds))
    rows = [row(f"node {place}", soak.samples, place, seconds=seconds) for place in range(2)]
    columns = ["", "start MB", "warm MB", "end MB", "peak MB", "slope"]
    table(f"{soak.requests} requests, {soak.errors} errors", columns, rows)
    write_json(options.json, facts, [asdict(each) for each in soak.samples])


if __name__ == "__main__":
    main()
