"""Connections through a third peer that both sides reach: libp2p's circuit relay v2, as the two sides see it.

A node that others cannot dial (behind NAT, a firewall) has dialled somebody itself. It asks each such peer
that relays to keep a reservation. Whoever finds that it cannot dial a node asks the relays that it is linked
to; one that has a reservation of the node opens a stream to it and passes bytes on (relay.py). Those are the
bytes of an ordinary connection: swarm key, Noise and all else are between the two ends, so the relay reads
nothing, and the gate and the limits are those of any connection.

The library's own client and relay are not used: docs/adr/0008.
"""

from __future__ import annotations

import random
from typing import Any, TypeVar

import trio
from google.protobuf.message import DecodeError
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.exceptions import ParseError
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from peerinfer.core.errors import WireError
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.contained import contained
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.host import Host, is_open, is_relayed, open_stream
from peerinfer.overlay.quick_stream import RESET_S
from peerinfer.overlay.stream_errors import READ_BYTES, STREAM_ERRORS

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/stop"
MESSAGE_BYTES_MAX = 4096
MESSAGE_S = 3.0  # guess
RESERVE_AFTER_S = (0.5, 2.0, 8.0)  # guess
"""A link is up before its peer has told what it speaks."""
RESERVE_AGAIN_S = 600.0  # guess: within a relay's hour
RELAYS_TRIED_MAX = 3  # guess

Message = TypeVar("Message", HopMessage, StopMessage)


class CircuitError(Exception):
    """There is no circuit; the message says why."""


class CircuitStream(ReadWriteCloser):
    """A relay's stream as what lies below a connection."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes; none once the circuit is over."""
        try:
            data: bytes = await self._stream.read(n or READ_BYTES)
        except STREAM_ERRORS:
            return b""
        return data

    async def write(self, data: bytes) -> None:
        """Send it. Raises the library's `IOException`."""
        try:
            await self._stream.write(data)
        except STREAM_ERRORS as error:
            raise IOException(f"the circuit broke: {type(error).__name__}") from None

    async def close(self) -> None:
        """End the circuit."""
        await reset(self._stream)

    def get_remote_address(self) -> tuple[str, int] | None:
        """The other side has none that matters here."""
        return None


class Circuits:
    """This node's side of all circuits that begin or end here."""

    def __init__(self, host: Host, *, nursery: trio.Nursery) -> None:
        self._host, self._nursery = host, nursery
        self._reserving: dict[PeerId, trio.CancelScope] = {}
        self._reserved: set[PeerId] = set()
        """Relays that have said so."""
        host.host.set_stream_handler(TProtocol(STOP_PROTOCOL), self.accept)

    def link_up(self, peer: PeerId) -> None:
        """Perhaps a relay: have it keep a reservation while it is linked."""
        if (before := self._reserving.get(peer)) is not None:
            before.cancel()  # it sleeps through a link that was lost and is up again
        self._reserved.discard(peer)
        scope = self._reserving[peer] = trio.CancelScope()
        self._nursery.start_soon(self._keep_reserved, peer, scope)

    def reserved(self) -> list[PeerId]:
        """The relays that pass connections on to this node."""
        return sorted(peer for peer in self._reserved if self._dialled(peer))

    def addrs_of_last_resort(self, peer: PeerId) -> list[str]:
        """Under which a peer may be reached that cannot be dialled; of many others the next time."""
        relays = [relay for relay in self._relays() if relay != peer]
        tried = random.sample(relays, min(RELAYS_TRIED_MAX, len(relays)))
        return [f"/p2p/{relay}/p2p-circuit" for relay in tried]

    async def dial(self, peer: PeerId, addr: str) -> None:
        """Connect to a peer under one of those.

        Raises:
            CircuitError, PeerLostError, WireError: the relay cannot, or will not.
            SwarmException: the peer at the other end will not.
        """
        relay = PeerId(addr.split("/")[2])
        stream = await open_stream(self._host, relay, HOP_PROTOCOL, direct=True)
        try:
            asked = HopMessage(type=HopMessage.CONNECT)
            asked.peer.id = ID.from_base58(peer).to_bytes()
            await send(stream, asked)
            answer = await receive(stream, HopMessage)
            if answer.type != HopMessage.STATUS or answer.status != Status.OK:
                raise CircuitError(f"the relay answers {_named(answer.status)}")
            connection = _raw(stream, addr, initiator=True)
            await self._host.network.upgrade_outbound_raw_conn(connection, ID.from_base58(peer))
            stream = None
        finally:
            if stream is not None:
                await reset(stream)

    async def accept(self, stream: Any) -> None:
        """A relay says that somebody wants to reach this node through it."""
        relay = PeerId(stream.muxed_conn.peer_id.to_base58())
        connected = False
        with contained("letting a circuit in", peer=relay):
            try:
                asked = await receive(stream, StopMessage)
                if asked.type == StopMessage.CONNECT:
                    await send(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
                    addr = f"/p2p/{relay}/p2p-circuit"
                    connection = _raw(stream, addr, initiator=False)
                    await self._host.network.upgrade_inbound_raw_conn(connection, Multiaddr(addr))
                    connected = True
            except (*STREAM_ERRORS, SwarmException, trio.TooSlowError):
                pass  # whoever it is has been counted where it was refused
        if not connected:
            await reset(stream)

    async def _keep_reserved(self, relay: PeerId, scope: trio.CancelScope) -> None:
        with contained("reserving at it", peer=relay), scope:
            for after_s in RESERVE_AFTER_S:
                await trio.sleep(after_s)
                if self._dialled(relay) and self._speaks(relay):
                    break
            while self._dialled(relay) and self._speaks(relay):
                await self._reserve(relay)
                await trio.sleep(RESERVE_AGAIN_S)
        if self._reserving.get(relay) is scope:
            del self._reserving[relay]
            self._reserved.discard(relay)

    async def _reserve(self, relay: PeerId) -> None:
        """One that does not want to is asked again as late as one that does."""
        try:
            stream = await open_stream(self._host, relay, HOP_PROTOCOL, direct=True)
        except PeerLostError:
            return
        try:
            await send(stream, HopMessage(type=HopMessage.RESERVE))
            granted = (await receive(stream, HopMessage)).status == Status.OK
        except (*STREAM_ERRORS, trio.TooSlowError, WireError):
            granted = False
        finally:
            await reset(stream)
        (self._reserved.add if granted else self._reserved.discard)(relay)

    def _relays(self) -> list[PeerId]:
        peers = {PeerId(each.muxed_conn.peer_id.to_base58()) for each in self._connections() if _direct(each)}
        return sorted(peer for peer in peers if self._speaks(peer))

    def _dialled(self, peer: PeerId) -> bool:
        """Whoever dialled this node needs no help to reach it."""
        connections = self._host.network.get_connections(ID.from_base58(peer))
        return any(each.direction == Direction.OUTBOUND for each in connections if _direct(each))

    def _speaks(self, peer: PeerId) -> bool:
        store = self._host.host.get_peerstore()
        return bool(store.supports_protocols(ID.from_base58(peer), [HOP_PROTOCOL]))

    def _connections(self) -> list[Any]:
        return list(self._host.network.get_connections())


def _direct(connection: Any) -> bool:
    return is_open(connection) and not is_relayed(connection)


def _raw(stream: Any, addr: str, *, initiator: bool) -> RawConnection:
    return RawConnection(
        CircuitStream(stream),
        initiator,
        connection_type=ConnectionType.RELAYED,
        addresses=[Multiaddr(addr)],
    )


def _named(status: int) -> str:
    names: dict[int, str] = {number: name for name, number in Status.items()}
    return names.get(status, str(status)).lower().replace("_", " ")


async def send(stream: Any, message: HopMessage | StopMessage) -> None:
    """Raises what writing raises."""
    await stream.write(with_length(message.SerializeToString()))


async def receive(stream: Any, kind: type[Message]) -> Message:
    """The next message, and not a byte of what follows it.

    Raises:
        trio.TooSlowError: it does not come. WireError: it is none. What reading raises.
    """
    try:
        with trio.fail_after(MESSAGE_S):
            return kind.FromString(await read_varint_prefixed_bytes_limited(stream, MESSAGE_BYTES_MAX))
    except (ParseError, MessageTooLarge, DecodeError) as error:
        raise WireError(f"{kind.__name__}: {type(error).__name__}") from None


async def reset(stream: Any) -> None:
    """End a stream, whoever is cancelled."""
    with contained("resetting a circuit's stream"), trio.move_on_after(RESET_S, shield=True):
        await stream.reset()
