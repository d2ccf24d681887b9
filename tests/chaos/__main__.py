"""Real nodes under random faults, with clients that know every answer: `make chaos MINUTES=10`.

Four nodes with an engine process each, 64 clients. Every few seconds, and several at a time, a node is
killed (SIGKILL), frozen (SIGSTOP) or asked to leave (SIGTERM), an engine is killed under its node, or a proxy
between two nodes breaks their connections or holds back what they say, both ways or one; all of it heals
after a while, and at any time one node is whole. A client enters at a node that lives; if that very node is
killed under it, its request does not count. Every other answer must be whole, each token once and in order,
whatever happened to whoever served it. In the end everybody must have found everybody again. Exits with
status 1 if anything was wrong, and keeps the logs.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import trio

from tests.chaos.clients import Clients
from tests.chaos.faults import befall
from tests.chaos.nodes import Nodes
from tests.chaos.oracle import Oracle, oracle_of
from tests.chaos.tally import Tally

ENGINES = ("attached", "simulated", "embedded")
HEALED_S = 60.0
"""Above the longest backoff between two dials."""


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--nodes", "size", type=click.IntRange(2), default=4, show_default=True)
@click.option("--clients", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="attached is a server of its own, which can die under its node; the others are parts of their node.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the nodes' logs in this directory.")
@click.option("--seed", type=int, default=None, help="Of the faults and the requests; printed.")
def main(minutes: float, size: int, count: int, engine: str, keep: Path | None, seed: int | None) -> None:
    """Run real nodes under random faults; status 1 if an answer was lost or wrong."""
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}: {size} nodes ({engine}), {count} clients, {minutes:g} minutes")
    directory = keep or Path(tempfile.mkdtemp(prefix="peerinfer-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    tally = trio.run(_run, directory, minutes, size, count, engine, seed)
    for line in tally.lines():
        click.echo(line)
    if keep or tally.bad:
        click.echo(f"logs: {directory}/*/stderr.log")
    else:
        shutil.rmtree(directory)
    sys.exit(bool(tally.bad))


async def _run(directory: Path, minutes: float, size: int, count: int, engine: str, seed: int) -> Tally:
    nodes = Nodes(directory, size=size, engine=engine)
    tally = Tally()
    try:
        async with trio.open_nursery() as proxies:
            await nodes.start_proxies(proxies)
            await trio.to_thread.run_sync(nodes.start_all)
            oracle = await oracle_of(engine, nodes.living()[0].http, random.Random(f"{seed}/prompts"))
            await _torment(nodes, oracle, tally, minutes, count, seed)
            tally.bad += [(line,) for line in await nodes.unhealed(within_s=HEALED_S)]
            proxies.cancel_scope.cancel()
    finally:
        nodes.kill_all()
    return tally


async def _torment(nodes: Nodes, oracle: Oracle, tally: Tally, minutes: float, count: int, seed: int) -> None:
    async with trio.open_nursery() as nursery:
        clients = Clients(nodes, oracle, tally)
        for number in range(count):
            nursery.start_soon(clients.run, random.Random(f"{seed}/client/{number}"))
        with trio.move_on_after(60 * minutes):
            await befall(nodes, random.Random(f"{seed}/faults"), tally)
        await nodes.settle()
        clients.closing = True


if __name__ == "__main__":
    main()
