"""One node of a simulated world, through all its lives: production code on a simulated engine and overlay."""

from __future__ import annotations

from collections.abc import Callable

import trio

from peerinfer.config import Config
from peerinfer.core.fingerprint import fingerprint, topic
from peerinfer.core.types import InferRequest, PeerId
from peerinfer.engine.job import Job
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.node import Node
from peerinfer.sim import runtime
from peerinfer.sim.network import SimNetwork
from peerinfer.sim.overlay import SimOverlay
from peerinfer.sim.spec import NodeSpec

TOKEN_LIMIT = 1 << 32
"""Prompts have the tokens of any tokeniser."""


class TimedEngine(SimulatedEngine):
    """A simulated engine that tells `took_s` how long it had each request, however that ended."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        config: Config,
        context_tokens: int,
        took_s: Callable[[str, float], None],
    ) -> None:
        super().__init__(
            page_size=config.engine.page_size,
            capacity_pages=spec.cache_pages,
            slots=spec.slots,
            context_tokens=context_tokens,
            prefill_tokens_per_s=spec.prefill_tokens_per_s,
            prefill_s_per_pair=spec.prefill_s_per_pair,
            decode_tokens_per_s=spec.decode_tokens_per_s,
            overhead_s=spec.overhead_s,
            load_s=spec.load_s,
            vocabulary=TOKEN_LIMIT,
            wall_clock=trio.current_time,
        )
        self._took_s = took_s
        self._admitted: dict[Job, tuple[str, float]] = {}

    async def _admit(self, request: InferRequest) -> Job | Exception:
        admitted = await super()._admit(request)
        if isinstance(admitted, Job):
            self._admitted[admitted] = (request.id, trio.current_time())
        return admitted

    async def _work(self, job: Job) -> None:
        try:
            await super()._work(job)
        finally:
            request_id, began = self._admitted.pop(job)
            self._took_s(request_id, trio.current_time() - began)


class Place:
    """A node's place in the world; what it is made of is new with every life.

    Args:
        spec: of its engine.
        took_s: see `TimedEngine`.
    """

    def __init__(
        self,
        index: int,
        spec: NodeSpec,
        *,
        network: SimNetwork,
        config: Config,
        context_tokens: int,
        took_s: Callable[[str, float], None],
    ) -> None:
        self.index = index
        self.spec = spec
        self.peer_id = PeerId(f"node-{index:04d}")
        self.alive = False
        self.frozen = False
        self._network, self._config, self._context_tokens = network, config, context_tokens
        self._took_s = took_s
        self._incarnation = 0
        self._lives = 0
        self.node: Node
        self.engine: TimedEngine
        self.overlay: SimOverlay
        self.nursery: trio.Nursery
        """For what clients do here: it ends with the node."""
        self._scope: trio.CancelScope
        self._leaving: trio.Event
        self._over = trio.Event()
        self._root: trio.lowlevel.Task

    def build(self, join: list[str]) -> None:
        """A new life, which `run` starts."""
        self._lives += 1
        self.engine = TimedEngine(
            self.spec, config=self._config, context_tokens=self._context_tokens, took_s=self._took_s
        )
        self.overlay = self._network.overlay(
            self.peer_id,
            join=join,
            topic=topic(fingerprint(self.engine.info.fingerprint_fields)),
            config=self._config.overlay,
        )
        self.node = Node(
            overlay=self.overlay,
            engine=self.engine,
            tokenizer=self.engine.tokenizer,
            config=self._config,
            next_incarnation=self._next_incarnation,
            seed=hash_seed(self._network.seed, self.index, self._lives),
            decode=self._network.reading.decode,
            differ=self._network.reading.difference,
        )
        self._scope, self._leaving, self._over = trio.CancelScope(), trio.Event(), trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Live until `crash` or `leave`."""
        self._root = trio.lowlevel.current_task()
        try:
            with self._scope:
                async with self.node.run(), trio.open_nursery() as self.nursery:
                    self.alive = True
                    task_status.started()
                    await self._leaving.wait()
                    self.alive = False
                    self.nursery.cancel_scope.cancel()
        finally:
            self.alive = False
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether this life has ended, goodbyes included."""
        return self._over.is_set()

    async def over(self) -> None:
        """Until this life has ended, if it is about to; at once if it is not."""
        if not self.alive or self._leaving.is_set():
            await self._over.wait()

    def crash(self) -> None:
        """Gone without a word, like kill -9."""
        self.alive = False
        self._network.crash(self.peer_id)
        self._scope.cancel()
        self.thaw()

    def leave(self) -> None:
        """Say goodbye and go."""
        self._leaving.set()

    def freeze(self) -> None:
        """Nothing happens here any more, like SIGSTOP."""
        if self.alive and not self.frozen:
            self.frozen = True
            self._network.freeze(self.peer_id)
            runtime.freeze(self._root)

    def thaw(self) -> None:
        """Go on, late."""
        if self.frozen:
            self.frozen = False
            runtime.thaw(self._root)
            self._network.thaw(self.peer_id)

    def _next_incarnation(self, above: int) -> int:
        """As node/incarnation.py has it, without file and clock."""
        self._incarnation = max(self._incarnation, above) + 1
        return self._incarnation


def hash_seed(*parts: int) -> int:
    """One seed out of several numbers, the same in every process."""
    seed = 0
    for part in parts:
        seed = (seed * 1_000_003 + part + 1) & 0xFFFF_FFFF_FFFF
    return seed
