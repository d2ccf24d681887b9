"""Peers that cannot dial each other are linked through one that both have dialled, which reads nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage

from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay import gate as gate_module
from peerinfer.overlay import relay as relay_module
from peerinfer.overlay.circuit import (
    HOP_PROTOCOL,
    RELAYS_TRIED_MAX,
    RESERVE_AGAIN_S,
    STOP_PROTOCOL,
    Circuits,
    receive,
    send,
)
from peerinfer.overlay.host import is_relayed, open_stream
from peerinfer.overlay.relay import Relay
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, answer, request
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import raw_host
from tests.overlay.relayed import behind_nat, connections, linked_through
from tests.overlay.test_hardening import assert_gossip_flows, host_of

KEY = SwarmKey(bytes(range(32)))


async def test_two_that_cannot_dial_each_other_are_linked_through_a_relay(world: LibP2PWorld) -> None:
    """In a closed swarm. Calls and gossip as over any link, and the relay has seen neither plain nor Noise's
    inside: method: what it pipes is searched for what was sent."""
    piped = bytearray()
    pipe = relay_module._pipe

    async def listening(one: Any, other: Any) -> None:
        for stream in (one, other):
            _note_reads(stream, piped)
        await pipe(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_module, "_pipe", listening)
        relay, a, b = await linked_through(world, swarm_key=KEY)
        assert all(map(is_relayed, connections(a, b.id)))
        assert not any(map(is_relayed, connections(a, relay.id)))
        links = a.overlay.links()
        assert (links[b.id].relayed, links[relay.id].relayed) == (True, False)
        await until(lambda: relay.address in a.overlay.standing().relays, within_s=SOON_S)
        await until(lambda: relay.overlay.standing().reservations == 2, within_s=SOON_S)  # one made the link
        at_relay = relay.overlay.standing()
        assert (at_relay.relays, at_relay.circuits) == ((), 1)
        assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2
        assert len(await answer(b, a.id, request("r2"))) == DATA_FRAMES + 2
        await assert_gossip_flows(a, b)
    assert len(piped) > 1000
    assert b"multistream" not in piped, "the swarm's key is between the two ends, too"
    assert b"xxxxxxxxxx" not in piped
    assert not a.sink.drops
    assert not b.sink.drops


def _note_reads(stream: Any, piped: bytearray) -> None:
    read = stream.read

    async def noting(n: int | None = None) -> bytes:
        data: bytes = await read(n)
        piped.extend(data)
        return data

    stream.read = noting


async def test_a_circuit_ends_with_its_relay(world: LibP2PWorld) -> None:
    """At both ends, as any link: nobody waits for what cannot come."""
    relay, a, b = await linked_through(world)
    await world.stop(relay)
    await until(lambda: not a.linked_to(b.id) and not b.linked_to(a.id), within_s=SOON_S)


async def test_who_did_not_reserve_is_not_reached(world: LibP2PWorld) -> None:
    """Nor whoever is not there; the relay says why."""
    relay = await world.start(relay=True)
    async with raw_host() as stranger, raw_host() as target:
        await target.connect(relay.address)
        await stranger.connect(relay.address)
        assert await ask(stranger, relay, target.id) == Status.NO_RESERVATION
        stream = await target.open(relay.id, HOP_PROTOCOL)
        await send(stream, HopMessage(type=HopMessage.RESERVE))
        reserved = await receive(stream, HopMessage)
        assert reserved.status == Status.OK
        assert reserved.reservation.expire > 0
        assert reserved.limit.duration > 0
        assert await ask(stranger, relay, target.id) == Status.CONNECTION_FAILED, "it knows no circuits"
        stream = await stranger.open(relay.id, HOP_PROTOCOL)
        await send(stream, HopMessage(type=HopMessage.STATUS))
        assert (await receive(stream, HopMessage)).status == Status.UNEXPECTED_MESSAGE
    assert not relay.sink.drops


@pytest.mark.parametrize("garbage", [b"\x05garba", b"\xff" * 12, b"\x80\x80\x04" + b"x" * 5000])
async def test_garbage_costs_its_stream_and_is_counted(world: LibP2PWorld, garbage: bytes) -> None:
    """No message, no length, and one over the limit."""
    relay = await world.start(relay=True)
    async with raw_host() as stranger:
        await stranger.connect(relay.address)
        stream = await stranger.open(relay.id, HOP_PROTOCOL)
        with suppress(*STREAM_ERRORS):
            await stream.write(garbage)
        await until(lambda: relay.sink.drops["handshake"] == 1, within_s=SOON_S)
        assert await ask(stranger, relay, relay.id) == Status.NO_RESERVATION


async def ask(who: Any, relay: Peer, target: PeerId) -> int:
    stream = await who.open(relay.id, HOP_PROTOCOL)
    asked = HopMessage(type=HopMessage.CONNECT)
    asked.peer.id = ID.from_base58(target).to_bytes()
    await send(stream, asked)
    return int((await receive(stream, HopMessage)).status)


async def test_circuits_and_reservations_are_bounded(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "RESERVATIONS_MAX", 1)
    relay = await world.start(relay=True, relay_circuits_max=1)
    async with raw_host() as stranger, raw_host() as target:
        await target.connect(relay.address)
        await stranger.connect(relay.address)

        async def agree(stream: Any) -> None:
            await receive(stream, StopMessage)
            await send(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
            await trio.sleep_forever()

        target.host.set_stream_handler(TProtocol(STOP_PROTOCOL), agree)
        for who, status in ((target, Status.OK), (stranger, Status.RESERVATION_REFUSED), (target, Status.OK)):
            stream = await who.open(relay.id, HOP_PROTOCOL)
            await send(stream, HopMessage(type=HopMessage.RESERVE))
            assert (await receive(stream, HopMessage)).status == status
        assert await ask(stranger, relay, target.id) == Status.OK
        assert await ask(stranger, relay, target.id) == Status.RESOURCE_LIMIT_EXCEEDED
    assert relay.sink.reasons == ["too many reservations", "too many circuits"]


async def test_who_has_left_takes_no_room_for_reservations(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An identity costs nothing: whoever came and went would have all of them for an hour."""
    monkeypatch.setattr(relay_module, "RESERVATIONS_MAX", 1)
    relay = await world.start(relay=True)
    for _ in range(2):
        async with raw_host() as passer_by:
            await passer_by.connect(relay.address)
            stream = await passer_by.open(relay.id, HOP_PROTOCOL)
            await send(stream, HopMessage(type=HopMessage.RESERVE))
            assert (await receive(stream, HopMessage)).status == Status.OK
        await until(lambda: not relay.overlay.links(), within_s=SOON_S)


async def test_a_circuit_carries_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: two streams of memory; the second of them never says a word."""
    monkeypatch.setattr(relay_module, "CIRCUIT_BYTES_MAX", 1_000_000)

    class Endless:
        written = 0

        async def read(self, n: int) -> bytes:
            await trio.lowlevel.checkpoint()
            return bytes(n)

        async def write(self, data: bytes) -> None:
            self.written += len(data)

    class Silent(Endless):
        async def read(self, n: int) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

    silent = Silent()
    with trio.fail_after(SOON_S):
        await relay_module._pipe(Endless(), silent)
    assert 1_000_000 <= silent.written < 1_000_000 + 65_536


async def test_a_relay_that_refuses_is_not_named_to_others(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invite would lead through it to nobody."""
    monkeypatch.setattr(relay_module, "RESERVATIONS_MAX", 0)
    relay = await world.start(relay=True)
    a = await behind_nat(world, relay)
    await until(lambda: "too many reservations" in relay.sink.reasons, within_s=SOON_S)
    assert not a.overlay.standing().relays


async def test_nothing_is_relayed_twice(world: LibP2PWorld) -> None:
    """A relay refuses to pass on what was passed on to it. Method: the far end of a circuit relays, too."""
    _, a, b = await linked_through(world)
    Relay(host_of(b), circuits_max=8, refused=lambda *_: None)
    stream = await connections(a, b.id)[0].new_stream()
    select = host_of(a).host.multiselect_client.select_one_of
    await select([TProtocol(HOP_PROTOCOL)], MultiselectCommunicator(stream), SOON_S)
    await send(stream, HopMessage(type=HopMessage.RESERVE))
    assert (await receive(stream, HopMessage)).status == Status.PERMISSION_DENIED
    with pytest.raises(PeerLostError):
        await open_stream(host_of(a), b.id, STOP_PROTOCOL, direct=True)


async def test_a_link_that_comes_and_goes_is_reserved_at_once_each_time(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps a reservation looks every few minutes whether there is a link, and may miss that it was
    lost. Method: nine new links within minutes, then an hour in which nothing happens."""
    reserved: list[float] = []

    async def reserve(*_: object) -> None:
        reserved.append(trio.current_time())

    monkeypatch.setattr(Circuits, "_dialled", lambda *_: True)
    monkeypatch.setattr(Circuits, "_speaks", lambda *_: True)
    monkeypatch.setattr(Circuits, "_reserve", reserve)
    async with trio.open_nursery() as nursery:
        circuits = Circuits(Mock(), nursery=nursery)
        for number in range(9):
            circuits.link_up(PeerId("relay"))
            await trio.sleep(20.0)
            assert len(reserved) == number + 1
        assert len(nursery.child_tasks) == 1
        await trio.sleep(3600.0)
        assert len(reserved) == 9 + 3600 // RESERVE_AGAIN_S
        monkeypatch.setattr(Circuits, "_dialled", lambda *_: False)
        await trio.sleep(RESERVE_AGAIN_S)
        assert not nursery.child_tasks
        assert not circuits._reserving


async def test_every_relay_is_asked_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few at a time; who has the reservation may be any of them."""
    relays = [PeerId(f"relay{number}") for number in range(8)]
    monkeypatch.setattr(Circuits, "_relays", lambda *_: relays)
    async with trio.open_nursery() as nursery:
        circuits = Circuits(Mock(), nursery=nursery)
        tries = [circuits.addrs_of_last_resort(relays[0]) for _ in range(100)]
    assert {len(set(tried)) for tried in tries} == {RELAYS_TRIED_MAX}
    assert {addr for tried in tries for addr in tried} == {
        f"/p2p/{relay}/p2p-circuit" for relay in relays[1:]
    }


async def test_one_relay_cannot_use_up_what_the_others_may_bring(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes through a relay counts for that relay. Method: a stranger says again and again that somebody
    wants to reach a node through it, and a peer that cannot be dialled comes through the real relay."""
    async with raw_host() as stranger:
        relay = await world.start(relay=True)
        with monkeypatch.context() as patch:
            patch.setattr(gate_module, "ARRIVALS_AT_ONCE_MAX", 3.0)
            patch.setattr(gate_module, "ARRIVALS_PER_S_MAX", 0.001)
            b = await behind_nat(world, relay)
        (listener,) = host_of(b).network.listeners.values()
        await stranger.connect(f"{listener.get_addrs()[0]}/p2p/{b.id}")
        for _ in range(5):
            stream = await stranger.open(b.id, STOP_PROTOCOL)
            await send(stream, StopMessage(type=StopMessage.CONNECT))
            with suppress(*STREAM_ERRORS):
                await receive(stream, StopMessage)
                await stream.reset()
        await until(lambda: "too many connections from one address" in b.sink.reasons, within_s=SOON_S)
        a = await behind_nat(world, relay)
        await until(lambda: a.linked_to(b.id) and b.linked_to(a.id), within_s=3 * SOON_S)
