"""A swarm in virtual time: production nodes on simulated engines and the in-memory overlay."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from peerinfer.config import Config
from peerinfer.core.fingerprint import fingerprint, topic
from peerinfer.core.types import Chunk, End, PeerId
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.node import Node
from peerinfer.node.reply import Incoming, Reply
from peerinfer.sim.network import Conditions, SimNetwork
from peerinfer.sim.overlay import SimOverlay

_numbers = itertools.count()


@dataclass(slots=True, kw_only=True)
class Member:
    """One node and what it is made of."""

    node: Node
    engine: SimulatedEngine
    overlay: SimOverlay
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def peer_id(self) -> PeerId:
        return self.node.peer_id

    def peers(self) -> dict[str, dict[str, object]]:
        return {str(peer["peer_id"]): peer for peer in self.node.peers()["peers"]}  # type: ignore[attr-defined]

    def state_of(self, other: Member) -> object:
        return self.peers().get(other.peer_id, {}).get("state")

    def count(self, kind: str) -> int:
        return self.node.status()["requests"][kind]  # type: ignore[index, no-any-return]


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer, read to its end."""

    reply: Reply
    text: str
    end: End


def completion(prompt: str, *, max_tokens: int = 4, **extra: object) -> Incoming:
    """A client's request; `policy` and `target` override routing."""
    policy, target = extra.pop("policy", None), extra.pop("target", None)
    body = {"model": "simulated", "prompt": prompt, "max_tokens": max_tokens, **extra}
    return Incoming(
        id=f"req-{next(_numbers)}",
        endpoint="completions",
        raw=json.dumps(body).encode(),
        body=body,
        policy=policy,  # type: ignore[arg-type]
        target=target,  # type: ignore[arg-type]
    )


async def ask(member: Member, incoming: Incoming) -> Answer:
    """Send a request and read the whole answer."""
    text, end = "", None
    async with member.node.handle(incoming) as reply:
        async for item in reply.chunks:
            if isinstance(item, Chunk):
                assert end is None
                text += item.text
            else:
                end = item
    assert end is not None
    return Answer(reply=reply, text=text, end=end)


class World:
    """Nodes by number; more may be started, any may be crashed."""

    def __init__(self, nursery: trio.Nursery, network: SimNetwork, config: Config) -> None:
        self.network = network
        self.members: list[Member] = []
        self._nursery = nursery
        self._config = config
        self._lives: dict[PeerId, int] = {}

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    async def start(self, number: int | None = None, **engine: object) -> Member:
        """Start a new node, or the node of that number again after a crash."""
        place = len(self.members) if number is None else number
        peer_id = PeerId(f"node-{place}")
        others = [member for member in self.members if member.peer_id != peer_id]
        simulated = SimulatedEngine(wall_clock=trio.current_time, **engine)  # type: ignore[arg-type]
        overlay = self.network.overlay(
            peer_id,
            join=others[0].overlay.addrs() if others else (),
            topic=topic(fingerprint(simulated.info.fingerprint_fields)),
        )
        node = Node(
            overlay=overlay,
            engine=simulated,
            tokenizer=simulated.tokenizer,
            config=self._config,
            next_incarnation=self._next_incarnation(peer_id),
            seed=place,
        )
        member = Member(node=node, engine=simulated, overlay=overlay)
        if number is None:
            self.members.append(member)
        else:
            self.members[number] = member
        await self._nursery.start(self._run, member)
        return member

    def crash(self, member: Member) -> None:
        """Gone without a word."""
        self.network.crash(member.peer_id)
        member.scope.cancel()

    async def all_know_all(self, within_s: float = 10.0) -> None:
        """Until every node takes every other one for alive, with its present tree."""
        with trio.fail_after(within_s):
            while not all(self._knows(a, b) for a in self.members for b in self.members if a is not b):
                await trio.sleep(0.05)

    @staticmethod
    def _knows(a: Member, b: Member) -> bool:
        pages = b.node.status()["cache"]["pages"]  # type: ignore[index]
        known = a.peers().get(b.peer_id, {})
        return (
            known.get("state") == "alive" and known.get("pages") == pages and known.get("rtt_s") is not None
        )

    def _next_incarnation(self, peer_id: PeerId) -> object:
        def next_incarnation(above: int) -> int:
            self._lives[peer_id] = max(self._lives.get(peer_id, 0), above) + 1
            return self._lives[peer_id]

        return next_incarnation

    @staticmethod
    async def _run(member: Member, *, task_status: trio.TaskStatus[None]) -> None:
        with member.scope:
            async with member.node.run():
                task_status.started()
                await trio.sleep_forever()


@asynccontextmanager
async def world(
    size: int, *, config: Config | None = None, delay_s: float = 0.001, **engine: object
) -> AsyncIterator[World]:
    """`size` nodes that know each other; all are closed at the end."""
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        swarm = World(nursery, SimNetwork(conditions=Conditions(delay_s=delay_s)), config or Config())
        for _ in range(size):
            await swarm.start(**engine)
        await swarm.all_know_all()
        yield swarm
        nursery.cancel_scope.cancel()


def text(seed: int, characters: int = 480) -> str:
    """A prompt that shares no page with one of another seed."""
    return f"{seed:07d} " + "abcdefgh" * (characters // 8 - 1)
