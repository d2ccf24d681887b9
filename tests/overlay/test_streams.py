"""Kept-open request streams: when one is kept, when it is reset, and what a peer can do to it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from peerinfer.core.frame_codec import encode_frame
from peerinfer.core.frames import Accept, Cancel, Data, EndFrame, Heartbeat
from peerinfer.core.types import Load, PeerId
from peerinfer.node.ports import Call, PeerLostError
from peerinfer.overlay.framing import Deframer, with_length
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, answer, drain, request, start_linked
from tests.overlay.peer_process import DATA_FRAMES, FRAME_BYTES_MAX
from tests.overlay.raw_host import raw_host


def idle_streams(peer: Peer, to: PeerId) -> int:
    assert isinstance(peer.overlay, LibP2POverlay)
    assert peer.overlay._swarm is not None
    return peer.overlay._swarm.streams.idle(to)


LIBRARYS_OWN_STREAMS_MAX = 6
"""Gossip's two, identify's and discovery's, in either direction; far fewer than the calls of a test."""


def yamux_streams(peer: Peer, to: PeerId) -> int:
    """Streams of the connection to a peer that the library has on its books."""
    assert isinstance(peer.overlay, LibP2POverlay)
    assert peer.overlay._swarm is not None
    (connection,) = peer.overlay._swarm.links._connections(to)
    books = connection.muxed_conn
    assert len(books.streams) == len(books.stream_buffers) == len(books.stream_events)
    return len(books.streams)


async def test_a_stream_is_kept_after_a_terminal_frame(world: LibP2PWorld) -> None:
    a, b = await start_linked(world)
    for number in range(5):
        await answer(a, b.id, request(f"r{number}"))
        assert idle_streams(a, b.id) == 1


async def test_a_stream_is_reset_when_its_call_was_left_early(world: LibP2PWorld) -> None:
    a, b = await start_linked(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1", endless=True))
        await call.receive()
    assert idle_streams(a, b.id) == 0
    await until(lambda: b.sink.serving == 0, within_s=SOON_S)


async def test_a_cancelled_opening_leaves_its_stream_to_the_next(world: LibP2PWorld) -> None:
    """Goal: nobody's impatience costs a slot in the library's books. Method: cut 20 openings short."""
    a, b = await start_linked(world)
    await answer(a, b.id, request("r0"))
    async with a.overlay.open_call(b.id):  # holds the idle stream, so that the next need new ones
        for number in range(20):
            with trio.move_on_after(0.0002 * number):
                async with a.overlay.open_call(b.id):
                    pass
        await until(lambda: idle_streams(a, b.id) >= 1, within_s=SOON_S)
    assert idle_streams(a, b.id) <= 20
    assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2


async def test_calls_beyond_the_limit_wait_for_a_stream(world: LibP2PWorld) -> None:
    a = await world.start(streams_per_peer_max=3, idle_streams_per_peer_max=2)
    b = await world.start(join=[a.address])
    await until(lambda: a.linked_to(b.id), within_s=SOON_S)
    open_now = most = 0

    async def call(number: int) -> None:
        nonlocal open_now, most
        async with a.overlay.open_call(b.id) as call:
            open_now += 1
            most = max(most, open_now)
            await call.send(request(f"r{number}"))
            while not isinstance(await call.receive(), EndFrame):
                pass
            open_now -= 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
    assert most == 3
    assert idle_streams(a, b.id) == 2


async def test_a_cancel_that_crosses_the_end_frame_harms_nobody(world: LibP2PWorld) -> None:
    """Goal: a late cancel is nobody's fault. Method: send it after the end was sent, before it is read."""
    a, b = await start_linked(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1"))
        await until(lambda: b.sink.serving == 0, within_s=SOON_S)
        await call.send(Cancel(id="r1"))
        while not isinstance(await call.receive(), EndFrame):
            pass
    await answer(a, b.id, request("r2"))
    assert idle_streams(a, b.id) == 1
    assert not b.sink.drops


@pytest.mark.parametrize("endless", [True, False])
async def test_a_second_cancel_costs_the_stream(world: LibP2PWorld, endless: bool) -> None:
    """Goal: nobody keeps a node busy with frames that change nothing. Method: of an exchange that goes on,
    and of one that is over."""
    (a,) = await start_linked(world, 1)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        stream = await attacker.open(a.id, REQUEST_PROTOCOL)
        await stream.write(with_length(encode_frame(request("r1", endless=endless))))
        await until(lambda: a.sink.serving == (1 if endless else 0), within_s=SOON_S)
        await stream.write(with_length(encode_frame(Cancel(id="r1"))))
        assert not a.sink.drops
        await stream.write(with_length(encode_frame(Cancel(id="r1"))))
        await until(lambda: a.sink.drops["request"] == 1 and a.sink.serving == 0, within_s=SOON_S)


async def test_endless_heartbeats_cost_the_stream(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an answer that never begins is no way to keep a node busy. Method: three more than allowed."""
    monkeypatch.setattr("peerinfer.overlay.exchange.HEARTBEATS_MAX", 10)
    await assert_loses_the_call(world, 13 * with_length(encode_frame(Heartbeat(id="r1"))))


async def assert_loses_the_call(world: LibP2PWorld, reply: bytes) -> None:
    """A server that answers with this is refused and counted."""
    (a,) = await start_linked(world, 1)

    async def talk_nonsense(stream: Any) -> None:
        await stream.read(10)
        await stream.write(reply)
        await trio.sleep_forever()

    async with raw_host() as attacker:
        attacker.host.set_stream_handler(REQUEST_PROTOCOL, talk_nonsense)
        await attacker.connect(a.address)
        await until(lambda: a.linked_to(attacker.id), within_s=SOON_S)
        with trio.fail_after(SOON_S), pytest.raises(PeerLostError, match="refused"):
            await answer(a, attacker.id, request("r1"))
    assert a.sink.drops["request"] == 1


BAD_OPENINGS = {
    "no frame": with_length(b"\xffgarbage"),
    "a frame of another kind": with_length(encode_frame(Heartbeat(id="r1"))),
    "a cancel of nothing": with_length(encode_frame(Cancel(id="r1"))),
    "a frame over the limit": with_length(b"x" * (FRAME_BYTES_MAX + 1)),
    "a length that is none": b"\xff" * 8,
}


@pytest.mark.parametrize("bad", BAD_OPENINGS)
async def test_bad_bytes_cost_their_own_stream_and_are_counted(world: LibP2PWorld, bad: str) -> None:
    """Goal: garbage is refused, counted, and nothing else changes. Method: beside a good call."""
    a, b = await start_linked(world)
    async with raw_host() as attacker, a.overlay.open_call(b.id) as call:
        await call.send(request("good", endless=True))
        await call.receive()
        await attacker.connect(b.address)
        stream = await attacker.open(b.id, REQUEST_PROTOCOL)
        await stream.write(BAD_OPENINGS[bad][:1000])
        await until(lambda: b.sink.drops["request"] == 1, within_s=SOON_S)
        (connection,) = attacker.host.get_network().get_connections()
        assert not connection.is_closed
        for _ in range(DATA_FRAMES):
            assert isinstance(await call.receive(), Data)
        assert b.sink.serving == 1


async def test_a_second_opening_on_a_busy_stream_is_refused(world: LibP2PWorld) -> None:
    (a,) = await start_linked(world, 1)
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        stream = await attacker.open(a.id, REQUEST_PROTOCOL)
        for name in ("r1", "r2"):
            await stream.write(with_length(encode_frame(request(name, endless=True))))
        await until(lambda: a.sink.drops["request"] == 1 and a.sink.serving == 0, within_s=SOON_S)


@pytest.mark.parametrize(
    "reply",
    [
        with_length(b"\xffgarbage"),
        with_length(encode_frame(Accept(id="another", incarnation=1, seq=1, load=Load()))),
        with_length(encode_frame(Cancel(id="r1"))),
    ],
)
async def test_a_server_that_talks_nonsense_loses_the_call(world: LibP2PWorld, reply: bytes) -> None:
    await assert_loses_the_call(world, reply)


async def test_a_peer_that_speaks_no_peerinfer_is_linked_but_lost_for_calls(world: LibP2PWorld) -> None:
    (a,) = await start_linked(world, 1)
    async with raw_host() as other:
        await other.connect(a.address)
        await until(lambda: a.linked_to(other.id), within_s=SOON_S)
        with pytest.raises(PeerLostError, match="does not speak"):
            await a.overlay.pull(other.id)
        with pytest.raises(PeerLostError, match="does not speak"):
            await answer(a, other.id, request("r1"))


async def test_frames_that_nobody_takes_do_not_fill_the_memory(world: LibP2PWorld) -> None:
    """Goal: an inbox is bounded. Method: an answer longer than the longest frame, and nobody reads."""
    a = await world.start()
    sink_serve = a.sink.serve_call

    async def flood(call: Call, opening: Any) -> None:
        if opening.id != "flood":
            await sink_serve(call, opening)
            return
        for _ in range(FRAME_BYTES_MAX // 50_000 + 10):
            await call.send(Data(id=opening.id, sse_json=b"x" * 50_000))
        await trio.sleep_forever()

    a.sink.serve_call = flood  # type: ignore[method-assign]
    b = await world.start(join=[a.address])
    await until(lambda: b.linked_to(a.id), within_s=SOON_S)
    async with b.overlay.open_call(a.id) as call:
        await call.send(request("flood"))
        assert isinstance(b.overlay, LibP2POverlay)
        await until(lambda: idle_or_lost(call), within_s=SOON_S)
        with pytest.raises(PeerLostError, match="not taken"):
            await drain(call)
    assert len(await answer(b, a.id, request("r2"))) == DATA_FRAMES + 2


def idle_or_lost(call: Call) -> bool:
    """Whether the stream under a call is lost."""
    return bool(call._stream.reason)  # type: ignore[attr-defined]


async def test_no_stream_is_left_in_the_books(world: LibP2PWorld) -> None:
    """Goal: nothing leaks per call. Method: 60 calls that are cut short, then look at the library's books.
    Some streams are its own: gossip and discovery may open theirs while this runs."""
    a, b = await start_linked(world)
    allowed = yamux_streams(a, b.id) + LIBRARYS_OWN_STREAMS_MAX

    async def cut_short(number: int) -> None:
        with trio.move_on_after(0.0007 * number):
            await answer(a, b.id, request(f"r{number}", endless=True))

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(cut_short, number)
    await until(
        lambda: yamux_streams(a, b.id) <= allowed + idle_streams(a, b.id) and b.sink.serving == 0,
        within_s=SOON_S,
    )


async def test_frames_arrive_whatever_way_their_bytes_are_cut(world: LibP2PWorld) -> None:
    """Goal: framing does not depend on writes. Method: an opening written byte by byte."""
    (a,) = await start_linked(world, 1)
    frames: list[bytes] = []
    async with raw_host() as client:
        await client.connect(a.address)
        stream = await client.open(a.id, REQUEST_PROTOCOL)
        for byte in with_length(encode_frame(request("r1"))):
            await stream.write(bytes([byte]))
        deframer = Deframer(bytes_max=FRAME_BYTES_MAX)
        with trio.fail_after(SOON_S):
            while len(frames) < DATA_FRAMES + 2:
                frames += deframer.feed(await stream.read(7))
    assert not a.sink.drops
