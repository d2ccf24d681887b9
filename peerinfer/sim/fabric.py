"""Who is where in a simulated world, who is connected to whom, and how what they say gets there.

A connection has two ends, each of which learns in its own time that it is up or broken. What is sent
over it arrives in order or not at all; gossip may be lost, and finds its way through third nodes. What
links do to messages is the `Weather`'s part; that things happen at their time is the `Postman`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Protocol

import trio

from peerinfer.core.types import PeerId
from peerinfer.sim.postman import Act, Postman, Receiver
from peerinfer.sim.weather import Conditions, Way, Weather


class Member(Receiver, Protocol):
    """A node as the network sees it."""

    @property
    def topic(self) -> str | None:
        """What it gossips on; None if it does not."""

    @property
    def connections(self) -> Mapping[PeerId, Connection]:
        """Those that this end has, by their other ends."""

    def join_connection(self, connection: Connection, *, asks: bool = True) -> None:
        """This end of a connection is up; `asks` the other end for more peers."""

    def leave(self, connection: Connection, reason: str) -> None:
        """The connection is gone, as far as this end can tell."""

    def gossip_arrived(self, author: PeerId, payload: bytes) -> None:
        """A message on the topic."""


@dataclass(eq=False, slots=True)
class Connection:
    """One connection between two nodes."""

    ends: tuple[PeerId, PeerId]
    up: tuple[PeerId, ...] = ()
    """The ends that have it."""
    broken: bool = False
    held: list[Act] = field(default_factory=list)
    """Messages that were sent while the network was cut."""

    def other(self, peer: PeerId) -> PeerId:
        """The end that is not `peer`."""
        return self.ends[1] if self.ends[0] == peer else self.ends[0]

    def set_up(self, peer: PeerId, *, is_up: bool) -> None:
        """One end has it now, or does not."""
        self.up = tuple(end for end in self.ends if (is_up if end == peer else end in self.up))


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
        self.postman = Postman()
        self._silence_s = silence_s
        self._weather = Weather(seed=seed, default=conditions or Conditions())
        self._members: dict[PeerId, Member] = {}
        self._connections: dict[PeerId, dict[PeerId, Connection]] = {}
        """Of each node, by their other ends."""
        self._last_arrival: dict[Way, float] = {}

    # What a test does to the world.

    def set_conditions(self, a: PeerId, b: PeerId, conditions: Conditions) -> None:
        """What the link between two nodes does from now on."""
        self._weather.set(a, b, conditions)

    def set_all_conditions(self, conditions: Conditions) -> None:
        """What all links do from now on."""
        self._weather.set_all(conditions)

    def partition(self, a: PeerId, b: PeerId, *, one_way: bool = False) -> None:
        """Cut the network between two nodes, or only from `a` to `b`; the link is lost after `silence_s`.

        It is lost at both ends, since liveness needs an answer.
        """
        now = trio.current_time()
        self._weather.cut(a, b, now=now)
        if not one_way:
            self._weather.cut(b, a, now=now)
        self._lose_later(a, b, lambda: self._weather.cut_at(a, b) == now)

    def heal(self, a: PeerId, b: PeerId) -> None:
        """Undo a partition. What was sent meanwhile over a link that is not lost yet arrives late."""
        self._weather.mend(a, b)
        connection = self._between(a, b)
        if connection is not None:
            held, connection.held = connection.held, []
            for act in held:
                act()

    def clog(self, a: PeerId, b: PeerId, *, for_s: float) -> None:
        """Everything on this link is late, and then comes all at once; what lasts longer is a partition."""
        assert for_s < self._silence_s
        self._weather.clog(a, b, until=trio.current_time() + for_s)

    def crash(self, peer: PeerId) -> None:
        """Kill a node: it says and hears nothing any more, and those linked to it notice a delay later."""
        if peer in self._members:
            self.detach(self._members[peer])

    def freeze(self, peer: PeerId) -> None:
        """What arrives at a node waits until it thaws; after `silence_s` its links are lost."""
        member = self._members[peer]
        self.postman.hold(member)
        for other in sorted(self._connections.get(peer, ())):
            self._lose_later(peer, other, lambda: self.postman.holds(member))

    def thaw(self, peer: PeerId) -> None:
        """All that arrived meanwhile happens now."""
        if peer in self._members:
            self.postman.release(self._members[peer])

    # What nodes do to each other.

    def attach(self, member: Member) -> None:
        """A node is there now."""
        assert member.peer_id not in self._members, f"{member.peer_id} runs already"
        self.postman.attach(member)
        self._members[member.peer_id] = member

    def detach(self, member: Member) -> None:
        """A node is gone."""
        if self._members.get(member.peer_id) is member:
            del self._members[member.peer_id]
            self.postman.detach(member)
            for _, connection in sorted(self._connections.get(member.peer_id, {}).items()):
                self.break_off(connection, told_by=member.peer_id, reason="the peer is gone")

    def end(self) -> None:
        """The world is over: nobody says or hears anything any more, goodbyes included."""
        for member in self._members.values():
            self.postman.detach(member)
        self._members.clear()

    def is_attached(self, member: Member) -> bool:
        """Whether a node is there, and has not crashed."""
        return self._members.get(member.peer_id) is member

    def member(self, peer: PeerId) -> Member | None:
        """A node that can be reached by name; None if there is none at the moment."""
        return self._members.get(peer)

    def connection(self, a: PeerId, b: PeerId) -> Connection:
        """The connection between two nodes that dial each other; one, even if both do at once."""
        connection = self._between(a, b)
        if connection is None:
            connection = Connection((a, b) if a < b else (b, a))
            for end in connection.ends:
                self._connections.setdefault(end, {})[connection.other(end)] = connection
        return connection

    def link_all(self) -> None:
        """Link everybody to everybody, without dialling and without asking each other for peers."""
        for one, other in combinations(list(self._members.values()), 2):
            connection = self.connection(one.peer_id, other.peer_id)
            one.join_connection(connection, asks=False)
            other.join_connection(connection, asks=False)

    def break_half(self, connection: Connection) -> None:
        """Only one end ever had it, and what that end sent is lost: it must not come to life later."""
        self._forget(connection)

    def break_off(self, connection: Connection, *, told_by: PeerId, reason: str) -> None:
        """One end closes a connection; the other learns of it a delay later, unless the network is cut."""
        self._forget(connection)
        other = self._members.get(connection.other(told_by))
        if other is not None:
            now = trio.current_time()
            at = self._weather.arrival(told_by, other.peer_id, now=now)
            if self._is_cut(told_by, other.peer_id):
                at = now + self._silence_s
            self.postman.post(at, other, partial(other.leave, connection, reason))

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

    def can_connect(self, a: PeerId, b: PeerId) -> bool:
        """Whether a connection can come to be: that takes both ways."""
        return b in self._members and not self._is_cut(a, b) and not self._is_cut(b, a)

    def watch(self, member: Member, connection: Connection) -> None:
        """One end has a connection that the other may never get: liveness ends it then."""

        def is_half() -> None:
            if not connection.broken and connection.other(member.peer_id) not in connection.up:
                self._forget(connection)
                member.leave(connection, "the peer is silent")

        self.postman.post(trio.current_time() + self._silence_s, member, is_half)

    def flood(self, author: PeerId, payload: bytes) -> None:
        """Bring a message to everybody on its author's topic, over third nodes where there is no link."""
        topic = self._members[author].topic
        arrival = {author: trio.current_time()}
        missing = {peer for peer, member in self._members.items() if member.topic == topic} - {author}
        due: dict[float, list[Member]] = {}
        self.postman.digest.said(payload)
        frontier = [author]
        while frontier and missing:
            reached: list[PeerId] = []
            for sender in frontier:
                for receiver, connection in self._members[sender].connections.items():
                    if receiver not in missing or len(connection.up) < 2 or self._is_cut(sender, receiver):
                        continue
                    if self._weather.loses(sender, receiver):
                        continue
                    times = self._weather.gossip_arrivals(sender, receiver, now=arrival[sender])
                    arrival[receiver] = times[0]
                    missing.discard(receiver)
                    member = self._members[receiver]
                    if not self.postman.holds(member):
                        reached.append(receiver)
                    for at in times:
                        due.setdefault(at, []).append(member)
            frontier = reached
        for at, members in due.items():
            self.postman.post_all(at, members, lambda member: member.gossip_arrived(author, payload))

    def _post(self, sender: PeerId, receiver: PeerId, act: Act) -> None:
        member = self._members.get(receiver)
        if member is not None:
            way = (sender, receiver)
            at = self._weather.arrival(sender, receiver, now=trio.current_time())
            at = self._last_arrival[way] = max(at, self._last_arrival.get(way, 0.0))
            self.postman.post(at, member, act)

    def _is_cut(self, sender: PeerId, receiver: PeerId) -> bool:
        return self._weather.cut_at(sender, receiver) is not None

    def _lose_later(self, a: PeerId, b: PeerId, still: Callable[[], bool]) -> None:
        """After `silence_s`, both ends lose their connection if the reason still holds."""
        connection = self._between(a, b)
        if connection is None:
            return

        def notice(member: Member) -> None:
            if connection.broken or still():
                self._forget(connection)
                member.leave(connection, "the peer is silent")

        for peer in connection.ends:
            if peer in self._members:
                member = self._members[peer]
                at = trio.current_time() + self._silence_s
                self.postman.post(at, member, partial(notice, member))

    def _forget(self, connection: Connection) -> None:
        connection.broken = True
        if self._between(*connection.ends) is connection:
            for end in connection.ends:
                del self._connections[end][connection.other(end)]

    def _between(self, a: PeerId, b: PeerId) -> Connection | None:
        return self._connections.get(a, {}).get(b)
