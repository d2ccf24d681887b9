"""N production nodes in virtual time: what experiments measure and what tests torment.

Only engines and overlays are simulated. A world is opened inside `run_virtual`:

    async def main() -> None:
        async with World(WorldSpec(nodes=(NodeSpec(),) * 4)) as world:
            await world.settle()
            outcome = await world.request(entry=0, tokens=range(600), max_tokens=1)

    run_virtual(main, seed=1)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType

import trio

from peerinfer.core.peer_view import PeerStatus
from peerinfer.core.types import Endpoint, PeerId
from peerinfer.sim.checkers import Checkers
from peerinfer.sim.client import Client, incoming
from peerinfer.sim.network import SimNetwork
from peerinfer.sim.place import Place
from peerinfer.sim.spec import Costs, NodeSpec, Outcome, WorldSpec
from peerinfer.sim.weather import Conditions

__all__ = ["Conditions", "Costs", "NodeSpec", "Outcome", "World", "WorldSpec"]

JOIN_THROUGH = 3
"""Addresses that a node joins through, as somebody who knows a few members would give."""


class World:
    """The nodes by number, the network between them, and time."""

    def __init__(self, spec: WorldSpec, *, checkers: Checkers | None = None) -> None:
        self.spec = spec
        self.checkers = checkers
        self.network = SimNetwork(seed=spec.seed, conditions=spec.conditions)
        self.nodes: list[Place] = []
        self._born = False
        self._numbers = itertools.count()
        self._engine_s: dict[str, float] = {}
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery

    async def __aenter__(self) -> World:
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        for node in self.spec.nodes:
            await self.join(node)
        for a, b, conditions in self.spec.links:
            self.set_conditions(conditions, a, b)
        self._born = True
        if self.spec.linked:
            self.network.link_all()
            for place in self.nodes:
                place.node.context.publish_soon()  # what it said before, nobody heard
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for place in self.nodes:
            place.thaw()
        self.network.end()
        self._nursery.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return trio.current_time()

    # Requests

    async def request(
        self,
        *,
        entry: int,
        tokens: Sequence[int] | None = None,
        body: Mapping[str, object] | None = None,
        max_tokens: int = 1,
        endpoint: Endpoint = "completions",
        policy: str | None = None,
        target: int | None = None,
    ) -> Outcome:
        """A client's request at a node: token ids as they are, or a body of that endpoint."""
        place = self.nodes[entry]
        client = Client(
            incoming=incoming(
                f"r{next(self._numbers)}",
                tokens=tokens,
                body=body,
                max_tokens=max_tokens,
                endpoint=endpoint,
                policy=policy,
                target=None if target is None else self.nodes[target].peer_id,
            ),
            place=place,
            tokens=tokens,
            max_tokens=max_tokens,
            costs=self.spec.costs,
            started_at=trio.current_time(),
        )
        if self.checkers:
            self.checkers.asked(client)
        outcome: Outcome | None = None
        try:
            if place.alive:
                place.nursery.start_soon(client.run)
                await client.done.wait()
            else:
                client.error = "connection refused"
            outcome = self._outcome(client)
        finally:  # also when the client goes away
            client.scope.cancel()
            if self.checkers:
                self.checkers.ended(client, outcome)
        return outcome

    def digest(self) -> str:
        """Of all that has happened: what arrived where and when, and what requests came to."""
        return self.network.postman.digest.hex()

    def _outcome(self, client: Client) -> Outcome:
        served_by = None if client.reply is None else self.index(client.reply.served_by)
        engine_s = self._engine_s.pop(client.incoming.id, 0.0)
        outcome = client.outcome(served_by=served_by, engine_s=engine_s)
        self.network.postman.digest.ended(outcome)
        return outcome

    def _took_s(self, request_id: str, seconds: float) -> None:
        self._engine_s[request_id] = seconds

    def index(self, peer: PeerId) -> int:
        """The number of a node."""
        return int(peer.removeprefix("node-"))

    # Time

    async def settle(self, *, within_s: float = 120.0) -> None:
        """Until every living node takes every other one for alive, and is linked to it."""
        living = [place for place in self.nodes if place.alive and not place.frozen]
        waiting: dict[Place, Sequence[Place]] = dict.fromkeys(living, living)
        with trio.fail_after(within_s):
            while True:
                for place, others in list(waiting.items()):
                    waiting[place] = _unknown(place, others) or _unknown(place, living)
                    if not waiting[place]:
                        del waiting[place]
                if not waiting:
                    return
                await trio.sleep(0.05)

    # What befalls the world

    async def join(self, spec: NodeSpec) -> Place:
        """A new node; it may take a while until the others know it."""
        place = Place(
            len(self.nodes),
            spec,
            network=self.network,
            config=self.spec.config,
            context_tokens=self.spec.context_tokens,
            took_s=self._took_s,
        )
        self.nodes.append(place)
        await self._start(place)
        return place

    async def restart(self, i: int) -> None:
        """Start a node again that crashed or left: the same name, an empty cache, a new incarnation."""
        assert not self.nodes[i].alive, f"node {i} runs already"
        await self._start(self.nodes[i])

    async def _start(self, place: Place) -> None:
        known = [other.overlay.addrs()[0] for other in self.nodes if other.alive]
        place.build([] if self.spec.linked and not self._born else known[:JOIN_THROUGH])
        if self.checkers:
            self.checkers.born(place)
        await self._nursery.start(place.run)

    def crash(self, i: int) -> None:
        """Kill a node; its clients get errors, its peers notice by themselves."""
        if self.checkers:
            self.checkers.died(self.nodes[i])
        self.nodes[i].crash()

    def leave(self, i: int) -> None:
        """Have a node say goodbye and go."""
        if self.checkers:
            self.checkers.died(self.nodes[i])
        self.nodes[i].leave()

    def freeze(self, i: int) -> None:
        """Stop a node where it is, as SIGSTOP does."""
        self.nodes[i].freeze()

    def thaw(self, i: int) -> None:
        """Let a frozen node go on: all that came and was due meanwhile happens at once."""
        self.nodes[i].thaw()

    def partition(self, i: int, j: int, *, one_way: bool = False) -> None:
        """Cut the network between two nodes, or only from `i` to `j`."""
        self.network.partition(self.nodes[i].peer_id, self.nodes[j].peer_id, one_way=one_way)

    def heal(self, i: int, j: int) -> None:
        """Undo a partition."""
        self.network.heal(self.nodes[i].peer_id, self.nodes[j].peer_id)

    def clog(self, i: int, j: int, *, for_s: float) -> None:
        """What two nodes say to each other is late, and then comes all at once."""
        self.network.clog(self.nodes[i].peer_id, self.nodes[j].peer_id, for_s=for_s)

    def set_all_conditions(self, conditions: Conditions) -> None:
        """What all links do from now on."""
        self.network.set_all_conditions(conditions)

    def set_conditions(self, conditions: Conditions, i: int, j: int) -> None:
        """What the link between two nodes does from now on."""
        self.network.set_conditions(self.nodes[i].peer_id, self.nodes[j].peer_id, conditions)


def _unknown(place: Place, others: Sequence[Place]) -> list[Place]:
    """Whom of these a node does not take for alive, or is not linked to."""
    view, links, now = place.node.context.view, place.overlay.connections, trio.current_time()
    return [
        other
        for other in others
        if other is not place
        and (other.peer_id not in links or view.state(other.peer_id, now=now) is not PeerStatus.ALIVE)
    ]
