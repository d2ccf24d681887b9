"""A peer that passes connections on between two that cannot reach each other: circuit relay v2, the hop.

It keeps who reserved, and pipes bytes between two streams; it can read none of them. All of it is bounded:
how many may reserve, how many circuits there are at once, of one peer and in total, how long each lasts and
how much it carries. Nobody is reached through it that did not reserve, and nothing is relayed twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage

from peerinfer.core.errors import WireError
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.circuit import HOP_PROTOCOL, STOP_PROTOCOL, receive, reset, send
from peerinfer.overlay.contained import contained
from peerinfer.overlay.host import Host, is_open, is_relayed, open_stream
from peerinfer.overlay.stream_errors import READ_BYTES, STREAM_ERRORS

RESERVED_S = 3600.0  # guess: go-libp2p's
RESERVATIONS_MAX = 1024  # guess
CIRCUIT_S_MAX = 3600.0  # guess: then both sides dial anew, and directly if they can by now
CIRCUIT_BYTES_MAX = 1024**3  # guess
CIRCUITS_PER_PEER_MAX = 16  # guess


class Relay:
    """The hop of one host."""

    def __init__(self, host: Host, *, circuits_max: int, refused: Callable[[PeerId, str], None]) -> None:
        self._host, self._circuits_max, self._refused = host, circuits_max, refused
        self._reserved: dict[PeerId, float] = {}
        self._circuits: Counter[PeerId] = Counter()
        host.host.set_stream_handler(TProtocol(HOP_PROTOCOL), self.accept)

    @property
    def reservations(self) -> int:
        """How many peers can be reached through here now."""
        now = trio.current_time()
        return sum(until > now and self._is_linked(peer) for peer, until in self._reserved.items())

    @property
    def circuits(self) -> int:
        """How many there are now."""
        return self._circuits.total() // 2

    async def accept(self, stream: Any) -> None:
        """Serve one message, and the circuit that it asks for."""
        peer = PeerId(stream.muxed_conn.peer_id.to_base58())
        try:
            with contained("relaying for it", peer=peer, refuse=partial(self._refused, peer)):
                try:
                    asked = await receive(stream, HopMessage)
                    if is_relayed(stream.muxed_conn):
                        await _tell(stream, Status.PERMISSION_DENIED)
                    elif asked.type == HopMessage.RESERVE:
                        await self._reserve(peer, stream)
                    elif asked.type == HopMessage.CONNECT:
                        await self._connect(peer, PeerId(ID(asked.peer.id).to_base58()), stream)
                    else:
                        await _tell(stream, Status.UNEXPECTED_MESSAGE)
                except (*STREAM_ERRORS, trio.TooSlowError):
                    pass
        finally:
            await reset(stream)

    async def _reserve(self, peer: PeerId, stream: Any) -> None:
        now = trio.current_time()
        kept = self._reserved.items()
        self._reserved = {each: until for each, until in kept if until > now and self._is_linked(each)}
        if peer not in self._reserved and len(self._reserved) >= RESERVATIONS_MAX:
            self._refused(peer, "too many reservations")
            await _tell(stream, Status.RESERVATION_REFUSED)
            return
        self._reserved[peer] = now + RESERVED_S
        answer = _status(Status.OK)
        answer.reservation.expire = int(time.time() + RESERVED_S)
        answer.reservation.addrs.extend(addr.to_bytes() for addr in self._host.host.get_addrs())
        await send(stream, answer)
        await stream.close()

    async def _connect(self, peer: PeerId, target: PeerId, stream: Any) -> None:
        if self._reserved.get(target, 0.0) <= trio.current_time():
            await _tell(stream, Status.NO_RESERVATION)
            return
        if not self._has_room(peer, target):
            self._refused(peer, "too many circuits")
            await _tell(stream, Status.RESOURCE_LIMIT_EXCEEDED)
            return
        with self._counted(peer, target):
            try:
                onward = await self._reach(peer, target)
            except (PeerLostError, WireError, *STREAM_ERRORS, trio.TooSlowError):
                await _tell(stream, Status.CONNECTION_FAILED)
                return
            try:
                await send(stream, _status(Status.OK))
                await _pipe(stream, onward)
            finally:
                await reset(onward)

    async def _reach(self, peer: PeerId, target: PeerId) -> Any:
        """A stream to the target that is the rest of the circuit."""
        onward = await open_stream(self._host, target, STOP_PROTOCOL, direct=True)
        agreed = False
        try:
            asked = StopMessage(type=StopMessage.CONNECT)
            asked.peer.id = ID.from_base58(peer).to_bytes()
            _limit(asked)
            await send(onward, asked)
            answer = await receive(onward, StopMessage)
            agreed = answer.type == StopMessage.STATUS and answer.status == Status.OK
        finally:
            if not agreed:
                await reset(onward)
        if not agreed:
            raise PeerLostError("it does not want to be reached")
        return onward

    def _is_linked(self, peer: PeerId) -> bool:
        """A reservation ends with its peer's connection, or strangers could leave a thousand behind."""
        return any(map(is_open, self._host.network.get_connections(ID.from_base58(peer))))

    def _has_room(self, *peers: PeerId) -> bool:
        return self.circuits < self._circuits_max and all(
            self._circuits[each] < CIRCUITS_PER_PEER_MAX for each in peers
        )

    @contextmanager
    def _counted(self, *peers: PeerId) -> Iterator[None]:
        self._circuits.update(peers)
        try:
            yield
        finally:
            self._circuits.subtract(peers)
            self._circuits += Counter()  # forgets who has none


async def _pipe(one: Any, other: Any) -> None:
    """Pass bytes on, both ways, until either side ends it or it was enough."""
    left = CIRCUIT_BYTES_MAX

    async def pass_on(source: Any, sink: Any, scope: trio.CancelScope) -> None:
        nonlocal left
        try:
            while left > 0:
                data = await source.read(READ_BYTES)
                left -= len(data)
                await sink.write(data)
        except STREAM_ERRORS:
            pass
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + CIRCUIT_S_MAX
        nursery.start_soon(pass_on, one, other, nursery.cancel_scope)
        nursery.start_soon(pass_on, other, one, nursery.cancel_scope)


def _status(status: int) -> HopMessage:
    message = HopMessage(type=HopMessage.STATUS, status=status)  # type: ignore[arg-type]
    _limit(message)
    return message


def _limit(message: HopMessage | StopMessage) -> None:
    message.limit.duration, message.limit.data = int(CIRCUIT_S_MAX), CIRCUIT_BYTES_MAX


async def _tell(stream: Any, status: int) -> None:
    """Why not; the other side reads it before the stream is reset."""
    await send(stream, _status(status))
    await stream.close()
