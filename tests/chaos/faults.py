"""The nodes, and what befalls them."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import httpx
import trio

from tests.chaos.tally import Tally
from tests.e2e.processes import PeerProcess

KINDS = ("killed", "killed", "frozen", "frozen", "left")
EVERY_S = (2.0, 6.0)
AWAY_S = (0.5, 4.0)
READY_S = 120.0
LEAVING_S = 15.0


class Node:
    """One place in the swarm; its process may be another one from life to life."""

    def __init__(self, name: str, directory: Path, args: tuple[str, ...]) -> None:
        self.name = name
        self.life = 0
        self.ending = False
        """It is about to be killed, or is leaving: clients enter elsewhere."""
        self.frozen = False
        self._directory, self._args = directory, args
        self._process: PeerProcess | None = None

    @property
    def http(self) -> str:
        """Where clients reach it."""
        return self.process.http

    @property
    def process(self) -> PeerProcess:
        """The process that runs it now."""
        assert self._process is not None
        return self._process

    def start(self, join: str | None) -> None:
        """Start it (again), with the same identity; returns when it can answer."""
        self._process = PeerProcess(self._directory, join=join, args=self._args)
        while httpx.get(f"{self.http}/readyz", timeout=READY_S, trust_env=False).status_code != 200:
            pass
        self.ending = False

    def kill(self) -> None:
        """End it at once."""
        self.ending = True
        self.life += 1
        if self._process is not None:
            self._process.kill()


class Nodes:
    """All of them."""

    def __init__(self, directory: Path, *, size: int, engine: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "chaos.toml"
        speeds = "simulated_prefill_tokens_per_s = 5000\nsimulated_decode_tokens_per_s = 30\nslots = 16\n"
        config.write_text(f'[engine]\nkind = "{engine}"\n{speeds if engine == "simulated" else ""}')
        self.all = [
            Node(f"node{number}", directory / str(number), ("--config", str(config)))
            for number in range(size)
        ]

    def start_all(self) -> None:
        """One swarm."""
        self.all[0].start(None)
        for node in self.all[1:]:
            node.start(self.all[0].process.addr)

    def living(self) -> list[Node]:
        """Where clients may enter."""
        return [node for node in self.all if not node.ending]

    def kill_all(self) -> None:
        """The end."""
        for node in self.all:
            node.kill()

    async def restart(self, node: Node) -> None:
        """Start a node again, through one that lives."""
        others = [other for other in self.living() if other is not node]
        join = others[0].process.addr if others else None
        await trio.to_thread.run_sync(node.start, join)

    async def settle(self) -> None:
        """Until every node is there again."""
        for node in self.all:
            if node.ending:
                node.kill()
                await self.restart(node)


async def befall(nodes: Nodes, draw: random.Random, tally: Tally) -> None:
    """One fault after the other, for ever; half of the nodes are untouched at any time."""
    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(draw.uniform(*EVERY_S))
            untouched = [node for node in nodes.living() if not node.frozen]
            if len(untouched) <= len(nodes.all) / 2:
                continue
            kind = draw.choice(KINDS)
            tally.faults[kind] += 1
            nursery.start_soon(_befall, nodes, draw.choice(untouched), kind, draw.uniform(*AWAY_S))


async def _befall(nodes: Nodes, node: Node, kind: str, away_s: float) -> None:
    if kind == "frozen":
        node.frozen = True
        node.process.signal(signal.SIGSTOP)
        try:
            await trio.sleep(away_s)
        finally:
            node.process.signal(signal.SIGCONT)
            node.frozen = False
        return
    node.ending = True
    if kind == "left":
        node.process.signal(signal.SIGTERM)
        with trio.move_on_after(LEAVING_S):
            await trio.to_thread.run_sync(node.process.process.wait, abandon_on_cancel=True)
    node.kill()
    await trio.sleep(away_s)
    await nodes.restart(node)
