"""Real nodes under random faults, with clients that know every answer: `make chaos MINUTES=10`.

Four processes, 64 clients; every few seconds a node is killed (SIGKILL), frozen (SIGSTOP), or asked to leave
(SIGTERM), and comes back. A client enters at a node that lives; if that very node is killed under it, its
request does not count. Every other answer must be whole, each token once and in order, whatever happened to
whoever served it. Exits with status 1 if one is not.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import click
import trio

from tests.chaos.clients import Clients
from tests.chaos.faults import Nodes, befall
from tests.chaos.oracle import Oracle, oracle_of
from tests.chaos.tally import Tally


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--nodes", "size", type=click.IntRange(2), default=4, show_default=True)
@click.option("--clients", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--engine", type=click.Choice(["simulated", "embedded"]), default="simulated", show_default=True
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the nodes' logs in this directory.")
@click.option("--seed", type=int, default=None, help="Of the faults and the requests; printed.")
def main(minutes: float, size: int, count: int, engine: str, keep: Path | None, seed: int | None) -> None:
    """Run real nodes under random faults; status 1 if an answer was lost or wrong."""
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}: {size} nodes ({engine}), {count} clients, {minutes:g} minutes")
    with tempfile.TemporaryDirectory() as directory:
        tally = trio.run(_run, keep or Path(directory), minutes, size, count, engine, seed)
    for line in tally.lines():
        click.echo(line)
    sys.exit(bool(tally.bad))


async def _run(directory: Path, minutes: float, size: int, count: int, engine: str, seed: int) -> Tally:
    nodes = Nodes(directory, size=size, engine=engine)
    tally = Tally()
    try:
        await trio.to_thread.run_sync(nodes.start_all)
        oracle: Oracle = await oracle_of(engine, nodes.living()[0].http, random.Random(f"{seed}/prompts"))
        async with trio.open_nursery() as nursery:
            clients = Clients(nodes, oracle, tally)
            for number in range(count):
                nursery.start_soon(clients.run, random.Random(f"{seed}/client/{number}"))
            with trio.move_on_after(60 * minutes):
                await befall(nodes, random.Random(f"{seed}/faults"), tally)
            await nodes.settle()
            clients.closing = True
    finally:
        nodes.kill_all()
    return tally


if __name__ == "__main__":
    main()
