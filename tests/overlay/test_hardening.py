"""One test for each defect of the library: each fails when its function in hardening.py does nothing."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from libp2p import generate_new_ed25519_identity
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_client import _build_protocols_not_supported_message
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.stream_muxer.yamux.yamux import (
    HEADER_SIZE,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)
from libp2p.tools.anyio_service.trio_tasks import FunctionTask

from peerinfer.node.ports import PeerLostError
from peerinfer.overlay import hardening
from peerinfer.overlay.host import open_stream
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.quick_stream import one_frame
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, answer, request, start_linked
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.raw_host import raw_host

MESHSUB = "/meshsub/1.1.0"


def host_of(peer: Peer) -> Any:
    """The host under an overlay."""
    assert isinstance(peer.overlay, LibP2POverlay)
    assert peer.overlay._swarm is not None
    return peer.overlay._swarm.host


async def assert_gossip_flows(author: Peer, receiver: Peer) -> None:
    """A message gets through, perhaps not the first."""
    receiver.sink.messages.clear()
    with trio.fail_after(SOON_S):
        while not receiver.sink.messages:
            await author.overlay.publish(b"still there")
            await trio.sleep(0.3)


async def test_a_cancelled_write_keeps_the_connection(world: LibP2PWorld) -> None:
    """S1. Method: cancel a write after each number of scheduling steps that it may take."""
    a, b = await start_linked(world)
    for steps in range(12):
        stream = await open_stream(host_of(a), b.id, REQUEST_PROTOCOL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, b"\x01x" * 500)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await stream.reset()
    assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2
    assert not a.sink.down
    assert not b.sink.down


async def test_garbage_on_a_stream_leaves_the_host_alone(world: LibP2PWorld) -> None:
    """S2. Method: no protobuf on meshsub, no UTF-8 in a negotiation; then everything still works."""
    a, b = await start_linked(world)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        await (await attacker.open(a.id, MESHSUB)).write(b"\x05garba")
        (connection,) = attacker.host.get_network().get_connections(ID.from_base58(a.id))
        await (await connection.new_stream()).write(b"\x03\xff\xff\n")
        await until(lambda: a.sink.drops["gossip"] == 1, within_s=SOON_S)
    assert len(await answer(b, a.id, request("r1"))) == DATA_FRAMES + 2
    await assert_gossip_flows(b, a)


async def test_what_goes_wrong_around_a_stream_costs_its_connection_at_most(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, one level up. Method: the library fails to register a stream; then the peers link up again."""
    a, b = await start_linked(world)
    with monkeypatch.context() as patch:
        patch.setattr(SwarmConn, "_add_stream", lambda _self, _stream: 1 / 0)
        async with raw_host() as attacker:
            with suppress(Exception):
                await attacker.connect(a.address)
                await attacker.open(a.id, MESHSUB)
    answered = False
    with trio.fail_after(2 * SOON_S):
        while not answered:
            with suppress(PeerLostError):
                answered = bool(await answer(b, a.id, request("r1")))
            await trio.sleep(0.1)


async def test_a_validator_that_raises_leaves_the_host_alone(world: LibP2PWorld) -> None:
    """S3. Method: a validator with a bug; the message is dropped and counted, the next goes through."""
    a, b = await start_linked(world)
    await assert_gossip_flows(b, a)
    validators = host_of(a).pubsub.topic_validators
    (topic,) = validators
    welcome = validators[topic]

    def buggy(_forwarder: Any, _message: Any) -> bool:
        raise ZeroDivisionError

    host_of(a).pubsub.set_topic_validator(topic, buggy, False)
    with trio.fail_after(SOON_S):
        while not a.sink.drops["gossip"]:
            await b.overlay.publish(b"dropped")
            await trio.sleep(0.3)
    validators[topic] = welcome
    await assert_gossip_flows(b, a)


async def test_plaintext_is_refused(world: LibP2PWorld) -> None:
    """S4. Method: a host that offers plaintext alone."""
    a = await world.start()
    key_pair = generate_new_ed25519_identity()
    plaintext = {TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(key_pair)}
    async with raw_host(sec_opt=plaintext) as attacker:
        with trio.fail_after(SOON_S), pytest.raises(SwarmException):
            await attacker.connect(a.address)
    assert not a.overlay.links()


async def test_nobody_comes_in_before_pubsub_runs(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5. Method: pubsub starts late; whoever dials the port all the time gets in only after it runs."""
    running = trio.Event()
    run_service = hardening.background_trio_service

    @asynccontextmanager
    async def start_late(service: Any) -> AsyncIterator[Any]:
        if isinstance(service, Pubsub):
            await trio.sleep(0.3)
        async with run_service(service) as manager:
            if isinstance(service, Pubsub):
                running.set()
            yield manager

    monkeypatch.setattr(hardening, "background_trio_service", start_late)
    port = await free_port()
    came_in: list[bool] = []

    async def knock() -> None:
        while not came_in:
            with suppress(OSError):
                async with await trio.open_tcp_stream("127.0.0.1", port):
                    came_in.append(running.is_set())
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(knock)
        await world.start(listen=f"/ip4/127.0.0.1/tcp/{port}")
    assert came_in == [True]


async def free_port() -> int:
    """A port that nobody has at the moment."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = int(listener.socket.getsockname()[1])
    await listener.aclose()
    return port


async def test_two_writers_on_one_stream_do_not_mix(world: LibP2PWorld) -> None:
    """Goal: messages of several frames stay whole. Method: two long ones at once; count the changes."""
    a, b = await start_linked(world)
    length = 300_000
    received = bytearray()
    complete = trio.Event()

    async def collect(stream: Any) -> None:
        while len(received) < 2 * length:
            received.extend(await stream.read(65536))
        complete.set()
        await stream.reset()

    host_of(b).host.set_stream_handler(TProtocol("/test/1"), collect)
    stream = await open_stream(host_of(a), b.id, "/test/1")
    with trio.fail_after(SOON_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, b"a" * length)
            nursery.start_soon(stream.write, b"b" * length)
        await complete.wait()
    assert sum(received[i] != received[i + 1] for i in range(len(received) - 1)) == 1


async def test_gossip_goes_on_after_its_stream_broke(world: LibP2PWorld) -> None:
    """Goal: a broken stream is not a forgotten subscription. Method: reset it, on either side."""
    a, b = await start_linked(world)
    await assert_gossip_flows(a, b)
    await assert_gossip_flows(b, a)
    for side in (a, b):
        for stream in list(host_of(side).pubsub.peers.values()):
            await stream.reset()
        await assert_gossip_flows(a, b)
        await assert_gossip_flows(b, a)


async def test_a_stream_for_gossip_whose_negotiation_fails_is_tried_again(world: LibP2PWorld) -> None:
    """Goal: a peer that was busy for some seconds is not cut off from what the other says until their link
    breaks. Method: the first two negotiations do not end; whoever dials is the one whose stream fails."""
    a, b = await world.start(), await world.start()
    client = host_of(b).host.multiselect_client
    select, failed = client.select_one_of, 0

    async def fail_twice(protocols: Any, *others: Any) -> Any:
        nonlocal failed
        if MESHSUB in protocols and failed < 2:
            failed += 1
            raise MultiselectClientError(f"response timed out after 10s, protocols tried: {protocols}")
        return await select(protocols, *others)

    client.select_one_of = fail_twice
    b.overlay.learn(a.id, [a.address.partition("/p2p/")[0]])
    await until(lambda: a.linked_to(b.id), within_s=SOON_S)
    await assert_gossip_flows(b, a)
    assert failed == 2


async def test_who_does_not_speak_gossip_is_not_asked_again() -> None:
    """A bootstrap peer never will. Method: what the library raises for one, and for one that says nothing."""

    async def register(peer: str) -> None:
        refused = _build_protocols_not_supported_message([TProtocol(MESHSUB)], 10, ["response='na'"])
        reason = refused if peer == "bootstrap" else "response timed out"
        raise StreamFailure(f"failed to open a stream to peer {peer}") from MultiselectClientError(reason)

    pubsub = Mock(_handle_new_peer=register)
    hardening.open_gossip_again(pubsub)
    with pytest.raises(StreamFailure):
        await pubsub._handle_new_peer("bootstrap")
    with pytest.raises(SwarmException):  # which is what the library tries again after
        await pubsub._handle_new_peer("busy")


async def test_small_reads_grant_no_window(world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no frame per read; and a sender that needs more than the window still gets on."""
    a, b = await start_linked(world)
    grants = 0
    write_frame = Yamux._write_frame

    async def counted(self: Any, data: bytes) -> None:
        nonlocal grants
        grants += struct.unpack(YAMUX_HEADER_FORMAT, data[:HEADER_SIZE])[1:3] == (TYPE_WINDOW_UPDATE, 0)
        await write_frame(self, data)

    done = trio.Event()
    small: list[int] = []

    async def read_one_by_one(stream: Any) -> None:
        for _ in range(100):
            await stream.read(1)
        small.append(grants)
        total = 0
        while total < 3_000_000:
            total += len(await stream.read(65536))
        done.set()
        await stream.reset()

    host_of(b).host.set_stream_handler(TProtocol("/test/1"), read_one_by_one)
    stream = await open_stream(host_of(a), b.id, "/test/1")
    monkeypatch.setattr(Yamux, "_write_frame", counted)
    with trio.fail_after(SOON_S):
        await stream.write(b"x" * 3_000_100)
        await done.wait()
    assert small[0] < 10
    assert grants > small[0]


async def test_a_restarted_author_is_heard_at_once(world: LibP2PWorld) -> None:
    """Goal: no message of a new life carries a number of the last one. Method: publish fast, restart."""
    a, b = await start_linked(world)
    with trio.fail_after(SOON_S):
        while len(a.sink.messages) < 20:
            await b.overlay.publish(b"first life")
            await trio.sleep(0.05)
    await world.stop(b)
    b = await world.restart(b, join=[a.address])
    await until(lambda: a.linked_to(b.id) and b.linked_to(a.id), within_s=SOON_S)
    await assert_gossip_flows(b, a)
    assert host_of(b).pubsub.counter > time.time_ns() - 60e9


async def test_nothing_is_kept_of_messages_that_went_by(world: LibP2PWorld) -> None:
    a, b = await start_linked(world)
    await assert_gossip_flows(a, b)
    for peer in (a, b):
        assert not host_of(peer).router.recent_message_deliveries
        assert not host_of(peer).router.equivocation_detection


class Frames:
    """A connection that keeps what its streams write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def _write_frame(self, data: bytes) -> None:
        self.written.append(data)


def yamux_stream(conn: Frames, *, window: int) -> YamuxStream:
    stream = YamuxStream(7, conn, is_initiator=True)  # type: ignore[arg-type]
    stream.send_window = window
    return stream


async def test_message_that_fits_is_the_librarys_own_frame_without_its_locks() -> None:
    """The same bytes, the same window left; and none of it before the window allows it."""
    ours, theirs = Frames(), Frames()
    quick, slow = yamux_stream(ours, window=100), yamux_stream(theirs, window=100)
    await hardening._write_alone(quick, b"x" * 60)
    await hardening._write_in_frames(slow, b"x" * 60)
    assert ours.written == theirs.written
    assert quick.send_window == slow.send_window == 40
    assert one_frame(quick, b"x" * 41) is None
    assert one_frame(quick, b"") is None
    async with quick.window_lock:
        assert one_frame(quick, b"x") is None
    quick.send_closed = True
    assert one_frame(quick, b"x") is None
    assert quick.send_window == 40


async def test_addresses_that_come_with_each_message_are_verified_once(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cost a signature each. Method: count while messages come; then lies, and another's."""
    verified: list[tuple[ID, bytes]] = []
    consume = hardening.maybe_consume_signed_record

    def counted(message: Any, host: Any, peer_id: Any) -> bool:
        verified.append((peer_id, message.senderRecord))
        return consume(message, host, peer_id)

    monkeypatch.setattr(hardening, "maybe_consume_signed_record", counted)
    a, b = await start_linked(world)
    for _ in range(5):
        await assert_gossip_flows(a, b)
    assert len(verified) == len(set(verified)) > 0
    host, asked_by = host_of(b).host, ID.from_base58(a.id)
    record = next(record for peer, record in verified if peer == asked_by)
    verified.clear()
    assert hardening._consume_if_new(rpc_pb2.RPC(senderRecord=record), host, asked_by)
    assert not verified
    assert not hardening._consume_if_new(rpc_pb2.RPC(senderRecord=b"lies"), host, asked_by)
    assert not hardening._consume_if_new(rpc_pb2.RPC(senderRecord=record), host, ID.from_base58(b.id))


async def test_task_of_a_service_is_started_without_a_look_at_all_others(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: count the looks while a message, which is a task of its own, comes in."""
    looks = 0
    look = FunctionTask.iterate_tasks

    def counted(*tasks: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*tasks)

    a, b = await start_linked(world)
    monkeypatch.setattr(FunctionTask, "iterate_tasks", counted)
    stats = host_of(b).pubsub.manager.stats
    await assert_gossip_flows(a, b)
    assert host_of(b).pubsub.manager.stats.tasks.total_count > stats.tasks.total_count
    assert looks == 0
