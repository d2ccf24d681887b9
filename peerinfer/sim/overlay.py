"""An overlay in memory: the second implementation of the port in node/ports.py, over a `Fabric`.

It keeps the rules of the real one, with the same code where that knows no transport (the dialler, the
exchange), and has no streams to pool and nothing to decode: frames travel as the objects that they are.
What a sink raises ends the simulation, where the real overlay goes on: here it is a bug to be found.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.errors import WireError
from peerinfer.core.frames import Ask, Frame, Request
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, Link, OverlaySink, PeerLostError, Standing
from peerinfer.overlay.dialler import DialError, Dialler
from peerinfer.overlay.exchange import IncomingExchange, OutgoingExchange
from peerinfer.overlay.single_error import single_error
from peerinfer.sim.fabric import Connection, Fabric

ASK_AGAIN_S = (0.0, 0.3, 1.0, 3.0)
"""When a new link is asked for other peers, as the real overlay does."""
UNBOUNDED = 1 << 62
"""Frames have no size here."""


class SimOverlay:
    """One node's overlay in a simulated network.

    Args:
        join: addresses (`addrs()` of others) to join through.
        topic: None for a peer that does not gossip.
    """

    def __init__(
        self,
        network: Fabric,
        peer_id: PeerId,
        *,
        join: Sequence[str] = (),
        topic: str | None = "peerinfer/1/simulated",
        config: OverlayConfig | None = None,
    ) -> None:
        self._network, self._peer_id, self._topic = network, peer_id, topic
        self._join = [_parse(addr) for addr in join]
        self._config = config or OverlayConfig()
        self._draw = random.Random(f"{network.seed}/{peer_id}/dialler").random
        self.connections: dict[PeerId, Connection] = {}
        """By the other ends."""
        self._streams: dict[Connection, list[SimStream]] = {}
        self.sink: OverlaySink
        self.nursery: trio.Nursery
        self._dialler: Dialler

    @property
    def peer_id(self) -> PeerId:
        """This node."""
        return self._peer_id

    @property
    def topic(self) -> str | None:
        """What it gossips on."""
        return self._topic

    @asynccontextmanager
    async def run(self, sink: OverlaySink) -> AsyncIterator[None]:
        """Join, stay connected; see `Overlay.run`."""
        self.sink = sink
        self._dialler = Dialler(me=self._peer_id, config=self._config, dial=self._dial, draw=self._draw)
        self._dialler.give(self._join)
        self._network.attach(self)
        with single_error():
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self._dialler.run)
                try:
                    yield
                finally:
                    self._network.detach(self)  # before the nursery closes: nothing may arrive after that
                    self.nursery.cancel_scope.cancel()
        self.connections.clear()

    def addrs(self) -> tuple[str, ...]:
        """Under which others can join through this node."""
        return (f"{_addr(self._peer_id)}/p2p/{self._peer_id}",)

    def links(self) -> Mapping[PeerId, Link]:
        """The peers that are connected now."""
        return {peer: Link(addrs=(_addr(peer),)) for peer in self.connections}

    def standing(self) -> Standing:
        """There are no relays here."""
        return Standing(unreached=self._dialler.unreached(), relays=())

    async def publish(self, payload: bytes) -> None:
        """Send to everybody on the topic, at most once, in no order."""
        await trio.lowlevel.checkpoint()
        assert self._topic is not None, "this overlay was made without a topic"
        if self._network.is_attached(self):
            self._network.flood(self._peer_id, payload)

    @asynccontextmanager
    async def open_call(self, peer: PeerId) -> AsyncIterator[Call]:
        """A call; see `Overlay.open_call`."""
        await trio.lowlevel.checkpoint()
        stream = SimStream(self, self._connection_to(peer))
        exchange = stream.exchange = OutgoingExchange(stream, inbox_bytes_max=UNBOUNDED)
        try:
            yield exchange
        finally:
            if not exchange.ended and exchange.id is not None:
                stream.lose("the call was left before its end")
            stream.forget()

    async def pull(self, peer: PeerId) -> bytes:
        """The peer's `hello`. Raises `PeerLostError`."""
        await trio.lowlevel.checkpoint()
        stream = SimStream(self, self._connection_to(peer))
        try:
            return await stream.pull()
        finally:
            stream.forget()

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        """Addresses a peer announced."""
        self._dialler.learn(peer, [addr for addr in addrs if addr == _addr(peer)], announced=True)

    # What the network tells.

    def fail(self, error: Exception) -> None:
        """What happened here raised this: so does `run`."""

        async def fail() -> None:
            raise error

        self.nursery.start_soon(fail)

    def join_connection(self, connection: Connection, *, asks: bool = True) -> None:
        """This end of a connection is up."""
        peer = connection.other(self._peer_id)
        if peer in self.connections and self.connections[peer].broken:
            self.leave(self.connections[peer], "the peer came back")
        if connection.broken or peer in self.connections:
            return
        connection.set_up(self._peer_id, is_up=True)
        self.connections[peer] = connection
        self._dialler.link_up(peer)
        if asks:
            self.nursery.start_soon(self._ask_for_peers, peer)
        self.sink.link_up(peer)

    def leave(self, connection: Connection, reason: str) -> None:
        """This end of a connection is gone."""
        peer = connection.other(self._peer_id)
        if self.connections.get(peer) is not connection:
            return
        connection.set_up(self._peer_id, is_up=False)
        del self.connections[peer]
        for stream in self._streams.pop(connection, ()):
            stream.lose(reason)
        self._dialler.learn(peer, [_addr(peer)], announced=True)
        self._dialler.link_down(peer)
        self.sink.link_down(peer)

    def gossip_arrived(self, author: PeerId, payload: bytes) -> None:
        """A message on the topic."""
        self.sink.gossip(author, payload)

    # What its streams ask.

    def keep(self, connection: Connection, stream: SimStream) -> None:
        """A stream that ends with its connection."""
        self._streams.setdefault(connection, []).append(stream)

    def drop(self, connection: Connection, stream: SimStream) -> None:
        """A stream that is over."""
        if stream in self._streams.get(connection, ()):
            self._streams[connection].remove(stream)

    def send(self, connection: Connection, act: Callable[[], None]) -> None:
        """Have `act` called at the other end of a connection."""
        if self._network.is_attached(self):
            peer = connection.other(self._peer_id)
            self._network.send(self._peer_id, peer, act, over=connection)

    def other_end(self, connection: Connection) -> SimOverlay | None:
        """The overlay at the other end, while it is there."""
        other = self._network.member(connection.other(self._peer_id))
        return other if isinstance(other, SimOverlay) else None

    def _connection_to(self, peer: PeerId) -> Connection:
        if peer not in self.connections:
            raise PeerLostError("not connected")
        return self.connections[peer]

    async def _dial(self, peer: PeerId, _addr: str) -> None:
        """There, where the other end joins, and back."""
        await trio.lowlevel.checkpoint()
        network, me = self._network, self._peer_id
        linked = trio.Event()

        def back(connection: Connection) -> None:
            if network.is_attached(self):  # and not another life of this node
                self.join_connection(connection)
                linked.set()

        def there() -> None:
            other = network.member(peer)
            if isinstance(other, SimOverlay):
                connection = network.connection(me, peer)
                if connection.up == (peer,):  # of a dial whose answer we never got
                    network.break_half(connection)
                    other.leave(connection, "dialled anew")
                    connection = network.connection(me, peer)
                other.join_connection(connection)
                network.watch(other, connection)
                network.send(peer, me, partial(back, connection))

        if network.member(peer) is None:
            raise DialError("connection refused")
        if network.can_connect(me, peer):
            network.send(me, peer, there)
        await linked.wait()

    async def _ask_for_peers(self, peer: PeerId) -> None:
        """What discovery does: ask a new link whom it is linked to."""
        began = trio.current_time()
        for after_s in ASK_AGAIN_S:
            await trio.sleep_until(began + after_s)
            connection = self.connections.get(peer)
            if connection is None:
                return
            self.send(connection, partial(self._asked, connection))

    def _asked(self, connection: Connection) -> None:
        """Happens at the other end: it answers with its links."""
        other = self.other_end(connection)
        if other is not None:
            other.send(connection, partial(self._found, sorted(other.connections)))

    def _found(self, peers: Sequence[PeerId]) -> None:
        for peer in peers:
            if peer not in self.connections:
                self._dialler.learn(peer, [_addr(peer)], announced=False)


class SimStream:
    """One end of a stream: what an exchange is carried by."""

    def __init__(self, overlay: SimOverlay, connection: Connection, other: SimStream | None = None) -> None:
        self.reason = ""
        """Why it is lost; empty while it is not."""
        self.exchange: OutgoingExchange | IncomingExchange | None = None
        self._overlay, self._connection, self._other = overlay, connection, other
        self._scope = trio.CancelScope()
        self._answered = trio.Event()
        self._hello: bytes | None = None
        overlay.keep(connection, self)

    @property
    def peer(self) -> PeerId:
        """The other side."""
        return self._connection.other(self._overlay.peer_id)

    async def send(self, frame: Frame) -> None:
        """Send a frame, or do not when cancelled. Raises `PeerLostError`."""
        await trio.lowlevel.checkpoint()
        if self.reason:
            raise PeerLostError(self.reason)
        self._tell_other(lambda other: other.arrived(frame))

    def lose(self, reason: str) -> None:
        """Reset it: both ends are of no use any more."""
        if not self.reason:
            self.reason = reason
            if self.exchange is not None:
                self.exchange.lose()
            self._scope.cancel()
            self._answered.set()
            self._tell_other(lambda other: other.lose("the other side reset the stream"))

    def forget(self) -> None:
        """It is over, well or not."""
        self._overlay.drop(self._connection, self)

    def arrived(self, frame: Frame) -> None:
        """A frame came in at this end."""
        if self.reason:
            return
        try:
            if self.exchange is not None:
                self.exchange.deliver(frame, 0)
            elif isinstance(frame, Request | Ask):
                self.exchange = IncomingExchange(self, frame, inbox_bytes_max=UNBOUNDED)
                self._overlay.nursery.start_soon(self._serve, self.exchange, frame)
            else:
                raise WireError(f"t: {type(frame).__name__} came outside of any exchange")
        except WireError as error:
            self._overlay.sink.dropped("request", self.peer, str(error))
            self.lose(f"refused: {error}")

    async def pull(self) -> bytes:
        """The other side's hello. Raises `PeerLostError`."""
        self._tell_other(lambda other: other._pulled())
        await self._answered.wait()
        if self._hello is None:
            raise PeerLostError(self.reason)
        return self._hello

    def _pulled(self) -> None:
        hello = self._overlay.sink.hello()
        self._tell_other(lambda other: other._answer(hello))
        self.forget()

    def _answer(self, hello: bytes) -> None:
        self._hello = hello
        self._answered.set()

    async def _serve(self, exchange: IncomingExchange, opening: Request | Ask) -> None:
        with self._scope:
            await exchange.serve(self._overlay.sink, opening)
        self.forget()

    def _tell_other(self, tell: Callable[[SimStream], None]) -> None:
        """Have something happen at the other end, which comes to be with the first thing that does."""

        def arrive() -> None:
            if self._other is None:
                overlay = self._overlay.other_end(self._connection)
                if overlay is None:
                    return
                self._other = SimStream(overlay, self._connection, other=self)
            tell(self._other)

        self._overlay.send(self._connection, arrive)


def _addr(peer: PeerId) -> str:
    """A node's address, which nobody but this module reads."""
    return f"/memory/{peer}"


def _parse(addr: str) -> tuple[PeerId, str]:
    """What `SimOverlay.addrs` wrote."""
    where, peer = addr.rsplit("/p2p/", 1)
    return PeerId(peer), where
