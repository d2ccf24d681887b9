"""One seed's world: what it is made of, what its clients ask, and what befalls it.

Three kinds, by seed. `calm`: links lose, duplicate, reorder and clog, but nobody dies, so no request may
fail. `storm`: anything happens to anybody, at any time; whatever it is, nothing may ever be wrong. `heal`:
a storm that ends, after which everything must converge.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import trio

from peerinfer.config import AntiEntropyConfig, Config, EngineConfig, RequestConfig, RoutingConfig
from peerinfer.sim.checkers import Checkers
from peerinfer.sim.world import Conditions, NodeSpec, Outcome, World, WorldSpec

Kind = Literal["calm", "storm", "heal"]
KINDS: tuple[Kind, ...] = ("calm", "storm", "heal")

DEADLINE_S = 20.0
STORM_S = 12.0
QUIET_S = 14.0
"""Above all: a lost link is found again (a backoff), a round of anti-entropy, and suspicion."""
NODES_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one seed."""

    seed: int
    kind: Kind
    digest: str
    requests: int
    answered: int
    violations: tuple[str, ...]

    @property
    def line(self) -> str:
        """For people."""
        wrong = f"{len(self.violations)} VIOLATIONS" if self.violations else "nothing wrong"
        return (
            f"seed {self.seed} ({self.kind}): {self.answered} of {self.requests} requests answered, "
            f"{wrong}, digest {self.digest}"
        )


class Storm:
    """A world and everything random about it, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kind: Kind = KINDS[seed % len(KINDS)]
        self.outcomes: list[Outcome] = []
        self.checkers = Checkers()
        self._draw = random.Random(f"{seed}/storm")
        self._prompts = [
            self._tokens(self._draw.choice((5, 40, 90))) for _ in range(self._draw.randint(1, 5))
        ]
        self.world = World(self._spec(), checkers=self.checkers)

    async def run(self) -> Verdict:
        """Live through it."""
        async with self.world:
            async with trio.open_nursery() as nursery:
                for number in range(self._draw.randint(1, 4)):
                    nursery.start_soon(self._client, random.Random(f"{self.seed}/client/{number}"))
                if self.kind != "calm":
                    await self._befall()
                else:
                    await self._clog_now_and_then()
                for place in self.world.nodes:
                    self.world.thaw(place.index)
                if self.kind != "storm":
                    await self._heal()
            if self.kind == "storm":
                self.checkers.check_over()
            else:
                await self.world.settle()
                await trio.sleep(QUIET_S)
                self.checkers.check_quiet([place for place in self.world.nodes if place.alive])
        if self.kind == "calm":
            self._check_all_answered()
        return self.verdict()

    def verdict(self, *ended_by: str) -> Verdict:
        """What came of it; `ended_by` is what ended the world early, if anything did."""
        return Verdict(
            seed=self.seed,
            kind=self.kind,
            digest=self.world.digest(),
            requests=len(self.outcomes),
            answered=sum(outcome.error is None for outcome in self.outcomes),
            violations=(*self.checkers.found, *ended_by),
        )

    def _check_all_answered(self) -> None:
        for outcome in self.outcomes:
            if outcome.error is not None:
                self.checkers.violations(f"nobody died and {outcome.request_id} failed: {outcome}")

    # What the world is made of

    def _spec(self) -> WorldSpec:
        draw = self._draw
        return WorldSpec(
            seed=self.seed,
            nodes=tuple(self._node() for _ in range(draw.randint(2, 4))),
            conditions=self._conditions(),
            config=Config(
                routing=RoutingConfig(
                    policy=draw.choice(("cost", "cost", "longest-prefix", "round-robin", "random"))
                ),
                anti_entropy=AntiEntropyConfig(
                    poll_interval_s=draw.choice((0.1, 0.5, 0.5, 2.0)),
                    complete_every=draw.choice((1, 3, 10)),
                    snapshot_bytes_max=draw.choice((4096, 262144)),
                    estimates_bytes_max=draw.choice((10_000, 268_435_456)),
                    forget_after_s=draw.choice((5.0, 300.0)),
                ),
                request=RequestConfig(deadline_s=DEADLINE_S, queued_per_slot_max=draw.choice((1, 16))),
                engine=EngineConfig(page_size=draw.choice((1, 4, 16))),
            ),
        )

    def _node(self) -> NodeSpec:
        draw = self._draw
        return NodeSpec(
            cache_pages=draw.choice((4, 30, 200)),
            prefill_tokens_per_s=draw.choice((200.0, 1000.0, 5000.0)),
            decode_tokens_per_s=draw.choice((20.0, 200.0)),
            slots=draw.randint(1, 3),
            load_s=0.0 if self.kind == "calm" else draw.choice((0.0, 0.5, 2.0)),
        )

    def _conditions(self) -> Conditions:
        draw = self._draw
        return Conditions(
            delay_s=draw.choice((0.0005, 0.005, 0.1)),
            jitter_s=draw.choice((0.0, 0.002, 0.05)),
            loss=draw.choice((0.0, 0.1, 0.6)),
            duplication=draw.choice((0.0, 0.3)),
            reordering=draw.choice((0.0, 0.3)),
        )

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(300) for _ in range(count)]

    # What its clients do

    async def _client(self, draw: random.Random) -> None:
        for _ in range(draw.randint(1, 6)):
            await trio.sleep(draw.expovariate(1.0))
            tokens = draw.choice(self._prompts) + [draw.randrange(300) for _ in range(draw.randint(1, 20))]
            patience_s = draw.choice((draw.uniform(0.0, 1.0), 1e9, 1e9, 1e9, 1e9))
            with trio.move_on_after(patience_s):
                outcome = await self.world.request(
                    entry=draw.randrange(len(self.world.nodes)),
                    tokens=tokens,
                    max_tokens=draw.choice((1, 1, 5, 30)),
                )
                self.outcomes.append(outcome)

    # What befalls it

    async def _befall(self) -> None:
        """Things happen at random times, each of which may last."""
        until = trio.current_time() + STORM_S
        while trio.current_time() < until:
            await trio.sleep(self._draw.expovariate(1.0))
            faults: tuple[Callable[[], object], ...] = (
                self._crash_or_restart,
                self._crash_or_restart,
                self._freeze_or_thaw,
                self._cut_or_heal,
                self._clog,
                self._change_conditions,
                self._crash_engine,
                self._leave,
            )
            self._draw.choice(faults)()
            dead = [place.index for place in self.world.nodes if place.is_over]
            if dead and self._draw.random() < 0.5:
                await self.world.restart(self._draw.choice(dead))
            elif len(self.world.nodes) < NODES_MAX and self._draw.random() < 0.05:
                await self.world.join(self._node())

    async def _clog_now_and_then(self) -> None:
        for _ in range(4):
            await trio.sleep(self._draw.expovariate(0.5))
            self._clog()

    async def _heal(self) -> None:
        """Everybody is there again, and every link works."""
        self.world.set_all_conditions(Conditions(delay_s=0.005))
        for a in self.world.nodes:
            for b in self.world.nodes[: a.index]:
                self.world.heal(a.index, b.index)
        for place in self.world.nodes:
            await place.over()
            if not place.alive:
                await self.world.restart(place.index)

    def _pair(self) -> tuple[int, int]:
        a, b = self._draw.sample(range(len(self.world.nodes)), 2)
        return a, b

    def _any(self) -> int:
        return self._draw.randrange(len(self.world.nodes))

    def _crash_or_restart(self) -> None:
        i = self._any()
        if self.world.nodes[i].alive:
            self.world.crash(i)

    def _leave(self) -> None:
        place = self.world.nodes[self._any()]
        if place.alive and not place.frozen:
            self.world.leave(place.index)

    def _freeze_or_thaw(self) -> None:
        i = self._any()
        if self.world.nodes[i].frozen:
            self.world.thaw(i)
        else:
            self.world.freeze(i)

    def _cut_or_heal(self) -> None:
        a, b = self._pair()
        if self._draw.random() < 0.5:
            self.world.partition(a, b, one_way=self._draw.random() < 0.3)
        else:
            self.world.heal(a, b)

    def _clog(self) -> None:
        self.world.clog(*self._pair(), for_s=self._draw.uniform(0.1, 4.0))

    def _change_conditions(self) -> None:
        self.world.set_conditions(self._conditions(), *self._pair())

    def _crash_engine(self) -> None:
        place = self.world.nodes[self._any()]
        if place.alive and not place.frozen:
            place.engine.crash(down_s=self._draw.uniform(0.0, 2.0))
