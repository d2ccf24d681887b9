"""Nodes that make others believe in a large swarm: whole ones, but for their HTTP face and their links.

    python -m benchmarks.kit.light_nodes --config FILE --count 60 --nodes 64 --peers ADDR…

Each is linked with the given peers only, and with its like by whispers (whispers.py), which cost nothing. To
the given peers it is what any node is: its own connection, messages, pings, questions and answers. It prints
its number of nodes when all run. On the line `busy` all trees begin to change as if their nodes were asked
for new prompts, on `idle` they stop.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from benchmarks.kit.gossip_load import ASKED_PER_S, question
from benchmarks.kit.whispers import Whispers
from peerinfer.cli.config_file import apply_tables
from peerinfer.config import Config
from peerinfer.core.fingerprint import fingerprint, topic
from peerinfer.core.frame_codec import FRAME_OVERHEAD_BYTES_MAX
from peerinfer.engine.choose import build_engine
from peerinfer.engine.page_cache import cut
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.node import Node
from peerinfer.node.ports import OverlaySink
from peerinfer.overlay.libp2p import LibP2POverlay


class LightOverlay(LibP2POverlay):
    """An overlay that also whispers."""

    def __init__(self, whispers: Whispers, **options: Any) -> None:
        super().__init__(**options)
        self._whispers = whispers

    @asynccontextmanager
    async def run(self, sink: OverlaySink) -> AsyncIterator[None]:
        """See `LibP2POverlay.run`."""
        async with super().run(sink):
            self._whispers.join(self._started().host)
            yield


class LightNodes:
    """Those of one process."""

    def __init__(self, config: Config, *, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._whispers: Whispers | None = None
        self._busy = trio.Event()

    async def run(self, numbers: range, commands: AsyncIterable[str]) -> None:
        """Start them, say so on stdout, then do as told until nothing more comes."""
        async with trio.open_nursery() as nursery:
            for number in numbers:
                await nursery.start(self._run_node, number, nursery)
            print(len(numbers), flush=True)
            async for line in commands:
                if line == "busy":
                    self._busy.set()
                elif line == "idle":
                    self._busy = trio.Event()
            nursery.cancel_scope.cancel()

    async def _run_node(
        self,
        number: int,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        data_dir = self._directory / str(number)
        data_dir.mkdir()
        engine, tokenizer = await build_engine(self._config.engine, data_dir=data_dir)
        assert isinstance(engine, SimulatedEngine)
        name = topic(fingerprint(engine.info.fingerprint_fields))
        if self._whispers is None:
            self._whispers = Whispers(name)
            nursery.start_soon(self._whispers.run)
        overlay = LightOverlay(
            self._whispers,
            data_dir=data_dir,
            config=self._config.overlay,
            topic=name,
            frame_bytes_max=self._config.http.body_bytes_max + FRAME_OVERHEAD_BYTES_MAX,
        )
        node = Node(
            overlay=overlay,
            engine=engine,
            tokenizer=tokenizer,
            config=self._config,
            next_incarnation=lambda above: above + 1,
        )
        async with node.run():
            task_status.started()
            await self._keep_busy(number, engine)

    async def _keep_busy(self, number: int, engine: SimulatedEngine) -> None:
        """Keep in the cache what an engine keeps that is asked, without the asking."""
        turn = 0
        await trio.sleep(random.uniform(0.0, 1 / ASKED_PER_S))
        while True:
            await self._busy.wait()
            body = question(number, turn)
            tokens = await engine.tokenizer.encode("chat", body)
            pages = cut(tokens, engine.info.page_size)
            with engine.cache.open(tokens) as lease:
                lease.extend(pages, [None] * len(pages))
            turn += 1
            await trio.sleep(1 / ASKED_PER_S)


async def _lines() -> AsyncIterator[str]:
    text = ""
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
        async for data in stream:
            *lines, text = (text + data.decode()).split("\n")
            for line in lines:
                yield line


def light_config(config: Config, *, nodes: int, peers: Sequence[str]) -> Config:
    """A light node's settings: it knows of `peers` only, and publishes as often as one of `nodes` does."""
    gossip = config.anti_entropy
    return replace(
        config,
        anti_entropy=replace(
            gossip, poll_interval_s=max(gossip.poll_interval_s, nodes / gossip.messages_per_s_max)
        ),
        overlay=replace(
            config.overlay,
            listen=("/ip4/127.0.0.1/tcp/0",),
            join=tuple(peers),
            allow_peers=tuple(addr.rsplit("/p2p/", 1)[1] for addr in peers),
        ),
    )


def main() -> None:
    """Run them until stdin ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True, help="of this process")
    parser.add_argument("--nodes", type=int, required=True, help="of the swarm that they pretend")
    parser.add_argument("--peers", nargs="+", required=True)
    options = parser.parse_args()
    tables = tomllib.loads(options.config.read_text(encoding="utf-8"))
    config = apply_tables(tables, where=str(options.config))
    config = light_config(config, nodes=options.nodes, peers=options.peers)
    with tempfile.TemporaryDirectory() as directory:
        numbers = range(options.nodes - options.count, options.nodes)
        trio.run(LightNodes(config, directory=Path(directory)).run, numbers, _lines())


if __name__ == "__main__":
    main()
