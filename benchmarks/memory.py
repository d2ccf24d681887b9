"""A node's memory over many prompts that it never sees again.

    python -m benchmarks.memory [--prompts 50000] [--json FILE]

Two nodes over engines that answer at once, one client of eight connections; every prompt of 3 kB is new. The
resident memory of both nodes is told ten times. It may grow while caches and rings fill, and not afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit.client import Client, chat
from benchmarks.kit.processes import processes, swarm
from benchmarks.kit.report import header, table, write_json
from benchmarks.kit.vocabulary import TOKENS, make_model, spell

PROMPT_TOKENS = 600
"""3 kB: a word of four letters and a space each."""
AT_ONCE = 8
STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """After so many prompts."""

    prompts: int
    rss_mb: list[float]
    errors: int


def prompts(seed: int, count: int) -> Iterator[bytes]:
    """Chats that have nothing in common."""
    rng = random.Random(f"memory/{seed}")
    for _ in range(count):
        yield chat(spell(rng.choices(range(TOKENS), k=PROMPT_TOKENS)), max_tokens=1, stream=False)


async def ask_all(url: str, requests: Iterator[bytes]) -> int:
    """Ask; how many failed."""
    client = Client(url)
    failed = 0

    async def lane() -> None:
        nonlocal failed
        for request in requests:
            failed += bool((await client.ask(request)).error)

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
    client.close()
    return failed


def main() -> None:
    """Ask and look."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=50_000)
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    options = parser.parse_args()
    facts = header()
    steps: list[Step] = []
    with tempfile.TemporaryDirectory() as directory, processes(Path(directory)) as starter:
        model = make_model(Path(directory) / "model")
        nodes = swarm(starter, [starter.worker(model, "--instant") for _ in range(2)])
        for number in range(STEPS + 1):
            share = options.prompts // STEPS if number else 0
            errors = asyncio.run(ask_all(nodes[0].url, prompts(number, share)))
            rss = [round(node.rss_bytes / 1e6, 1) for node in nodes]
            steps.append(Step(prompts=number * (options.prompts // STEPS), rss_mb=rss, errors=errors))
            print(f"{steps[-1].prompts} prompts: {rss} MB, {errors} errors", flush=True)
    rows = [[str(s.prompts), *(f"{each:.1f}" for each in s.rss_mb), str(s.errors)] for s in steps]
    table("Resident memory in MB", ["prompts", "node asked", "its peer", "errors"], rows)
    write_json(options.json, facts, [asdict(step) for step in steps])


if __name__ == "__main__":
    main()
