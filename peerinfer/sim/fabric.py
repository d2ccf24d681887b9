"""What a simulated network does to what is sent over it: delay, jitter, loss, partition, crash.

What a link does to messages is drawn from a generator per direction, so that one link's draws do not
depend on what happens elsewhere, and every node has one mailbox that acts in the order of arrival.
Under an autojump clock hours pass in seconds, and one seed gives one history.

A connection has two ends, each of which learns in its own time that it is up or broken. What is sent
over it arrives in order or not at all; gossip may be lost, and finds its way through third nodes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from peerinfer.core.types import PeerId

Act = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What one link does to messages, in either direction."""

    delay_s: float = 0.001
    """One way."""
    jitter_s: float = 0.0
    """Up to this much is added, evenly drawn."""
    loss: float = 0.0
    """The share of gossip that does not arrive. Streams are reliable: they lose nothing, or break."""


class Mailbox:
    """What happens at one node, in the order of time."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Act]] = []
        self._numbers = itertools.count()
        self._wake = trio.Event()
        self._closed = False

    def post(self, at: float, act: Act) -> None:
        """Call `act` at that time of trio's clock."""
        if not self._closed:
            heapq.heappush(self._due, (at, next(self._numbers), act))
            self._wake.set()

    def close(self) -> None:
        """Nothing of what is under way happens any more, and nothing that is posted."""
        self._closed = True
        self._due.clear()

    async def run(self) -> None:
        """Act, for ever."""
        while True:
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await self._wake.wait()
            self._wake = trio.Event()


class Member(Protocol):
    """A node as the network sees it."""

    mailbox: Mailbox

    @property
    def peer_id(self) -> PeerId:
        """Its name."""

    @property
    def topic(self) -> str | None:
        """What it gossips on; None if it does not."""

    def leave(self, connection: Connection, reason: str) -> None:
        """The connection is gone, as far as this end can tell."""

    def gossip_arrived(self, author: PeerId, payload: bytes) -> None:
        """A message on the topic."""


@dataclass(eq=False, slots=True)
class Connection:
    """One connection between two nodes."""

    ends: tuple[PeerId, PeerId]
    up: set[PeerId] = field(default_factory=set)
    """The ends that have it."""
    broken: bool = False
    held: list[Act] = field(default_factory=list)
    """Messages that were sent while the network was cut."""

    def other(self, peer: PeerId) -> PeerId:
        """The end that is not `peer`."""
        return self.ends[1] if self.ends[0] == peer else self.ends[0]


class Fabric:
    """All nodes of one simulated world and the links between them.

    Args:
        seed: of everything that is drawn.
        conditions: of links that `set_conditions` does not name.
        silence_s: after so long a cut link counts as lost, as the real overlay's liveness has it.
    """

    def __init__(
        self, *, seed: int = 0, conditions: Conditions | None = None, silence_s: float = 5.0
    ) -> None:
        self.seed = seed
        self._silence_s = silence_s
        self._members: dict[PeerId, Member] = {}
        self._default = conditions or Conditions()
        self._conditions: dict[tuple[PeerId, PeerId], Conditions] = {}
        self._cut_at: dict[tuple[PeerId, PeerId], float] = {}
        self._connections: dict[tuple[PeerId, PeerId], Connection] = {}
        self._draws: dict[tuple[PeerId, PeerId], random.Random] = {}
        self._last_arrival: dict[tuple[PeerId, PeerId], float] = {}

    # What a test does to the world.

    def set_conditions(self, a: PeerId, b: PeerId, conditions: Conditions) -> None:
        """What the link between two nodes does from now on."""
        self._conditions[_pair(a, b)] = conditions

    def partition(self, a: PeerId, b: PeerId) -> None:
        """Cut the network between two nodes: nothing passes, and after `silence_s` the link is lost."""
        now = self._cut_at[_pair(a, b)] = trio.current_time()
        connection = self._connections.get(_pair(a, b))
        for peer in _pair(a, b):
            if connection is not None and peer in self._members:
                notice = partial(self._notice, self._members[peer], connection, now)
                self._members[peer].mailbox.post(now + self._silence_s, notice)

    def heal(self, a: PeerId, b: PeerId) -> None:
        """Undo a partition. What was sent meanwhile over a link that is not lost yet arrives late."""
        self._cut_at.pop(_pair(a, b), None)
        connection = self._connections.get(_pair(a, b))
        if connection is not None:
            held, connection.held = connection.held, []
            for act in held:
                act()

    def crash(self, peer: PeerId) -> None:
        """Kill a node: it says and hears nothing any more, and those linked to it notice a delay later."""
        if peer in self._members:
            self.detach(self._members[peer])

    # What nodes do to each other.

    def attach(self, member: Member) -> None:
        """A node is there now."""
        assert member.peer_id not in self._members, f"{member.peer_id} runs already"
        self._members[member.peer_id] = member

    def detach(self, member: Member) -> None:
        """A node is gone."""
        if self._members.get(member.peer_id) is member:
            del self._members[member.peer_id]
            member.mailbox.close()
            for pair in sorted(pair for pair in self._connections if member.peer_id in pair):
                self.break_off(self._connections[pair], told_by=member.peer_id, reason="the peer is gone")

    def is_attached(self, member: Member) -> bool:
        """Whether a node is there, and has not crashed."""
        return self._members.get(member.peer_id) is member

    def member(self, peer: PeerId) -> Member | None:
        """A node that can be reached by name; None if there is none at the moment."""
        return self._members.get(peer)

    def connection(self, a: PeerId, b: PeerId) -> Connection:
        """The connection between two nodes that dial each other; one, even if both do at once."""
        return self._connections.setdefault(_pair(a, b), Connection(_pair(a, b)))

    def break_off(self, connection: Connection, *, told_by: PeerId, reason: str) -> None:
        """One end closes a connection; the other learns of it a delay later, unless the network is cut."""
        connection.broken = True
        if self._connections.get(connection.ends) is connection:
            del self._connections[connection.ends]
        other = self._members.get(connection.other(told_by))
        if other is not None:
            lost_s = self._silence_s if self._is_cut(*connection.ends) else self._delay_s(*connection.ends)
            other.mailbox.post(trio.current_time() + lost_s, partial(other.leave, connection, reason))

    def send(self, sender: PeerId, receiver: PeerId, act: Act, *, over: Connection | None = None) -> None:
        """Have `act` called at the receiver a delay later, in order.

        Over a connection it waits for a cut network to heal, and is void once either end has left it;
        without one it is lost.
        """
        if over is None:
            if not self._is_cut(sender, receiver):
                self._post(sender, receiver, act)
            return

        def arrive() -> None:
            if receiver in over.up:
                act()

        if over.broken:
            return
        if self._is_cut(sender, receiver):
            over.held.append(lambda: self._post(sender, receiver, arrive))
        else:
            self._post(sender, receiver, arrive)

    def flood(self, author: PeerId, payload: bytes) -> None:
        """Bring a message to everybody on its author's topic, over third nodes where there is no link."""
        topic = self._members[author].topic
        arrival = {author: trio.current_time()}
        missing = {peer for peer, member in self._members.items() if member.topic == topic} - {author}
        frontier = [author]
        while frontier and missing:
            reached: list[PeerId] = []
            for sender in frontier:
                for receiver in self._neighbours(sender, missing):
                    if self._is_lost(sender, receiver):
                        continue
                    arrival[receiver] = arrival[sender] + self._delay_s(sender, receiver)
                    missing.discard(receiver)
                    reached.append(receiver)
                    member = self._members[receiver]
                    member.mailbox.post(arrival[receiver], partial(member.gossip_arrived, author, payload))
            frontier = reached

    def _neighbours(self, peer: PeerId, among: set[PeerId]) -> Sequence[PeerId]:
        def linked(other: PeerId) -> bool:
            connection = self._connections.get(_pair(peer, other))
            return connection is not None and {peer, other} <= connection.up

        return [each for each in sorted(among) if linked(each) and not self._is_cut(peer, each)]

    def _post(self, sender: PeerId, receiver: PeerId, act: Act) -> None:
        member = self._members.get(receiver)
        if member is not None:
            way = (sender, receiver)
            at = trio.current_time() + self._delay_s(sender, receiver)
            at = self._last_arrival[way] = max(at, self._last_arrival.get(way, 0.0))
            member.mailbox.post(at, act)

    def _is_cut(self, a: PeerId, b: PeerId) -> bool:
        return _pair(a, b) in self._cut_at

    def _is_lost(self, sender: PeerId, receiver: PeerId) -> bool:
        loss = self._conditions_of(sender, receiver).loss
        return loss > 0 and self._draw(sender, receiver) < loss

    def _delay_s(self, sender: PeerId, receiver: PeerId) -> float:
        conditions = self._conditions_of(sender, receiver)
        jitter_s = conditions.jitter_s * self._draw(sender, receiver) if conditions.jitter_s else 0.0
        return conditions.delay_s + jitter_s

    def _conditions_of(self, a: PeerId, b: PeerId) -> Conditions:
        return self._conditions.get(_pair(a, b), self._default)

    def _draw(self, sender: PeerId, receiver: PeerId) -> float:
        way = (sender, receiver)
        if way not in self._draws:
            self._draws[way] = random.Random(f"{self.seed}/{sender}/{receiver}")
        return self._draws[way].random()

    def _notice(self, member: Member, connection: Connection, cut_at: float) -> None:
        if self._cut_at.get(connection.ends) == cut_at and self.is_attached(member):
            connection.broken = True
            if self._connections.get(connection.ends) is connection:
                del self._connections[connection.ends]
            member.leave(connection, "the peer is silent")


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)
