"""The nodes and their engines, each a process that can be killed, frozen and started again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import trio

from benchmarks.kit.processes import Process, Processes, free_port
from benchmarks.kit.vocabulary import make_model
from benchmarks.kit.worker import MODEL
from tests.chaos.proxy import Cuts, Proxy, process_of
from tests.e2e.processes import PeerProcess

READY_S = 120.0
PREFILL_TOKENS_PER_S = "5000"
DECODE_TOKENS_PER_S = "15"
"""Slow, so that there is always much under way, and cheap on a machine of two cores."""
SIMULATED = "simulated_prefill_tokens_per_s = 5000\nsimulated_decode_tokens_per_s = 30\nslots = 16\n"


class EngineProcess:
    """The server that a node is attached to, as SGLang would be."""

    def __init__(self, starter: Processes, model: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.alive = False
        self._starter, self._model = starter, model
        self._process: Process | None = None

    def start(self) -> None:
        """Start it (again), with an empty cache."""
        options = ("--prefill", PREFILL_TOKENS_PER_S, "--decode", DECODE_TOKENS_PER_S)
        self._process = self._starter.worker(self._model, *options, port=self.port)
        self.alive = True

    def kill(self) -> None:
        """End it at once."""
        self.alive = False
        if self._process is not None:
            self._starter.stop(self._process, how=signal.SIGKILL)
            self._process = None


class Node:
    """One place in the swarm; its process may be another one from life to life."""

    def __init__(
        self, name: str, directory: Path, args: tuple[str, ...], *, engine: EngineProcess | None
    ) -> None:
        self.name = name
        self.life = 0
        self.ending = False
        """It is about to be killed, or is leaving: clients enter elsewhere."""
        self.frozen = False
        self.engine = engine
        """None where it is a part of the node."""
        self.announced_port = 0
        self.port = free_port()
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

    @property
    def pid(self) -> int | None:
        """Of that process, if there has been one."""
        return None if self._process is None else self._process.process.pid

    @property
    def whole(self) -> bool:
        """Nothing has befallen it or its engine."""
        return not self.ending and not self.frozen and (self.engine is None or self.engine.alive)

    @property
    def log(self) -> Path:
        """Of all its lives."""
        return self._directory / "stderr.log"

    def start(self, join: str | None) -> None:
        """Start it (again), with the same identity; returns when it can answer."""
        args = (*self._args, "--announce", f"/ip4/127.0.0.1/tcp/{self.announced_port}")
        if self.engine is not None:
            args += ("--engine-url", self.engine.url)
        listen = f"/ip4/127.0.0.1/tcp/{self.port}"
        self._process = PeerProcess(self._directory, join=join, args=args, listen=listen)
        end = time.monotonic() + READY_S
        while httpx.get(f"{self.http}/readyz", timeout=READY_S, trust_env=False).status_code != 200:
            assert time.monotonic() < end, f"{self.name} is not ready after {READY_S:.0f} s"
            time.sleep(0.05)  # polls a real process: there is nothing to wait on
        self.ending = False

    def kill(self) -> None:
        """End it at once."""
        self.ending = True
        self.life += 1
        if self._process is not None:
            self._process.kill()


class Nodes:
    """All of them, and what lies between them."""

    def __init__(self, directory: Path, *, size: int, engine: str) -> None:
        self.cuts = Cuts()
        self._starter = Processes(directory / "engines")
        self._starter.directory.mkdir(parents=True, exist_ok=True)
        if engine == "attached":
            model = make_model(directory / MODEL)
            args: tuple[str, ...] = ("--model", str(model))
            engines = [EngineProcess(self._starter, model) for _ in range(size)]
        else:
            config = directory / "chaos.toml"
            config.write_text(f'[engine]\nkind = "{engine}"\n{SIMULATED if engine == "simulated" else ""}')
            args, engines = ("--config", str(config)), []
        self.all = [
            Node(
                f"node{number}",
                directory / str(number),
                args,
                engine=engines[number] if engines else None,
            )
            for number in range(size)
        ]

    async def start_proxies(self, nursery: trio.Nursery) -> None:
        """Before everything else, and for ever."""
        for node in self.all:
            proxy = Proxy(node.name, node.port, cuts=self.cuts, who=self._who)
            node.announced_port = await nursery.start(proxy.serve)

    def start_all(self) -> None:
        """One swarm."""
        for node in self.all:
            if node.engine is not None:
                node.engine.start()
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
            if node.engine is not None:
                node.engine.kill()

    async def restart(self, node: Node) -> None:
        """Start a node again, through one that lives."""
        others = [other for other in self.living() if other is not node]
        join = others[0].process.addr if others else None
        await trio.to_thread.run_sync(node.start, join)

    async def settle(self) -> None:
        """Until every node and every engine is there again."""
        for node in self.all:
            if node.engine is not None and not node.engine.alive:
                await trio.to_thread.run_sync(node.engine.start)
            if node.ending:
                node.kill()
                await self.restart(node)

    async def unhealed(self, *, within_s: float) -> list[str]:
        """What is still wrong after a while without faults: peers that are not known, and traces of bugs."""
        wrong: list[str] = []
        with trio.move_on_after(within_s):
            while wrong := await trio.to_thread.run_sync(self._lonely):
                await trio.sleep(0.5)
        traces = [node for node in self.all if "Traceback" in node.log.read_text(errors="replace")]
        return wrong + [f"{node.name} has a traceback in its log" for node in traces]

    def _lonely(self) -> list[str]:
        known = {node: node.process.alive_peers() for node in self.all}
        ids = {node.process.peer_id for node in self.all}
        return [
            f"{node.name} takes {len(alive & ids)} of its {len(ids) - 1} peers for alive"
            for node, alive in known.items()
            if alive != ids - {node.process.peer_id}
        ]

    def _who(self, port: int) -> str | None:
        return process_of(port, {node.name: node.pid for node in self.all if node.pid is not None})
