"""A connection whose frames bring nothing is closed before they cost much, and the others notice nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_ACK,
    FLAG_SYN,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)
from trio.testing import MockClock

from peerinfer.overlay import flood
from peerinfer.overlay.flood import BURST_S
from peerinfer.overlay.frame_meter import ANSWERS_PER_FRAME, STREAMS_MAX, FrameMeter, TooManyFramesError
from peerinfer.overlay.outbox import outbox_of
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from tests.contract.overlay_worlds import LibP2PWorld, until
from tests.contract.test_overlay_contract import SOON_S
from tests.overlay.raw_host import raw_host
from tests.overlay.test_flood import assert_unharmed

Frames = Callable[[int, int], bytes]
"""What an attacker sends again and again, by the number of its try and a stream that is open."""


def frame(kind: int, flags: int = 0, stream_id: int = 0, length: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, length or len(data)) + data


FLOODS: dict[str, tuple[Frames, str]] = {
    "window": (lambda _, known: frame(TYPE_WINDOW_UPDATE, 0, known, 1), "too many frames without data"),
    "ping": (lambda number, _: frame(TYPE_PING, FLAG_SYN, 0, number), "too many frames without data"),
    "pong": (lambda number, _: frame(TYPE_PING, FLAG_ACK, 0, number), "too many frames without data"),
    "unknown stream": (
        lambda _, __: frame(TYPE_DATA, 0, 99_999, data=b"x" * 200),
        "too many frames without data",
    ),
    "nothing": (lambda _, known: frame(TYPE_DATA, 0, known), "too many frames without data"),
    "open": (lambda number, _: frame(TYPE_WINDOW_UPDATE, FLAG_SYN, 1001 + 2 * number), "too many"),
    "beyond the window": (
        lambda _, known: frame(TYPE_DATA, 0, known, data=bytes(DEFAULT_WINDOW_SIZE + 1)),
        "more data than its window",
    ),
    "window at once": (
        lambda number, _: frame(TYPE_DATA, FLAG_SYN, 1001 + 2 * number, data=bytes(DEFAULT_WINDOW_SIZE + 1)),
        "more data than its window",
    ),
    "no kind": (lambda _, __: frame(7), "frames of no known kind"),
}


async def test_who_floods_below_the_streams_is_disconnected(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: one attacker after the other, with frames that the stock library sends as they are. The limits
    are made low, since a busy machine does not get to read as many frames in a second as are allowed."""
    monkeypatch.setattr(flood, "STREAMS_AT_ONCE_MAX", 50.0)
    a = await world.start(
        frames_without_data_per_connection_per_s_max=20.0, streams_opened_per_peer_per_s_max=5.0
    )
    b = await world.start(join=[a.address])
    await until(lambda: b.linked_to(a.id), within_s=SOON_S)
    for name, (make, reason) in FLOODS.items():
        a.sink.reasons.clear()
        async with raw_host() as attacker:
            await attacker.connect(a.address)
            await until(lambda who=attacker.id: a.linked_to(who), within_s=SOON_S)  # type: ignore[misc]
            (connection,) = attacker.host.get_network().get_connections(ID.from_base58(a.id))
            stream = await attacker.open(a.id, REQUEST_PROTOCOL)
            known = stream.muxed_stream.stream_id
            with trio.fail_after(SOON_S):
                await _flood(
                    connection.muxed_conn, lambda number, make=make, known=known: make(number, known)
                )  # type: ignore[misc]
            await until(lambda who=attacker.id: who in a.sink.down, within_s=SOON_S)  # type: ignore[misc]
        assert any(told.startswith(reason) for told in a.sink.reasons), name
        assert a.linked_to(b.id)
    assert set(a.sink.drops) == {"handshake"}
    assert not b.sink.down
    await assert_unharmed(a, b)


async def _flood(muxed: Any, make: Callable[[int], bytes]) -> None:
    """Until the connection is gone; writing to what this side has closed itself fails silently."""
    number = 0
    try:
        while not muxed.event_shutting_down.is_set():
            await muxed.secured_conn.write(b"".join(make(number + each) for each in range(100)))
            number += 100
            await trio.lowlevel.checkpoint()
    except STREAM_ERRORS:
        return


class Muxed(SimpleNamespace):
    """A multiplexer, as far as its meter looks at it."""

    def __init__(self) -> None:
        super().__init__(streams={}, secured_conn=SimpleNamespace())


def metered(muxed: Muxed, *, per_s: float = 10.0, streams_per_s: float = 1e6) -> tuple[FrameMeter, list[str]]:
    refused: list[str] = []
    meter = FrameMeter(muxed, frames_per_s_max=per_s, streams_per_s_max=streams_per_s, refuse=refused.append)
    return meter, refused


def taken(meter: FrameMeter, header: bytes, *, of: int) -> int:
    """How many of so many frames are let in."""
    for number in range(of):
        try:
            meter.check(header)
        except TooManyFramesError:
            return number
    return of


WINDOW = frame(TYPE_WINDOW_UPDATE, 0, 1, 1)


async def test_the_bucket_fills_with_time_and_with_what_this_node_sends(autojump_clock: MockClock) -> None:
    """Goal: an honest peer is never blamed, however much there is to do. Method: virtual time."""
    muxed = Muxed()
    meter, refused = metered(muxed)
    assert taken(meter, WINDOW, of=1000) == 10 * BURST_S
    await trio.sleep(1.0)
    assert taken(meter, WINDOW, of=1000) == 10
    for _ in range(5):
        outbox_of(muxed).put(frame(TYPE_DATA, 0, 1, data=b"x" * 100))
    assert taken(meter, WINDOW, of=1000) == 5 * ANSWERS_PER_FRAME
    for _ in range(100):
        outbox_of(muxed).put(frame(TYPE_WINDOW_UPDATE, FLAG_ACK, 1))  # what a stranger's SYN is answered
        outbox_of(muxed).put(frame(TYPE_PING, FLAG_ACK))
    assert taken(meter, WINDOW, of=1000) == 0
    assert len(refused) == 4


async def test_data_within_its_window_costs_nothing_unless_it_is_hardly_any() -> None:
    muxed = Muxed()
    muxed.streams[1] = SimpleNamespace(recv_window=1000)
    meter, _ = metered(muxed)
    assert taken(meter, frame(TYPE_DATA, 0, 1, 1000), of=1000) == 1000
    assert taken(meter, frame(TYPE_DATA, 0, 1, 63), of=1000) == 10 * BURST_S
    assert taken(meter, frame(TYPE_DATA, 0, 1, 1001), of=1) == 0


async def test_streams_that_are_open_at_once_are_bounded() -> None:
    muxed = Muxed()
    meter, refused = metered(muxed)
    opening = frame(TYPE_WINDOW_UPDATE, FLAG_SYN, 7)
    muxed.streams = dict.fromkeys(range(8, 7 + STREAMS_MAX))
    assert taken(meter, opening, of=1) == 1
    muxed.streams = dict.fromkeys(range(8, 8 + STREAMS_MAX))
    assert taken(meter, opening, of=1) == 0
    assert refused == ["too many open streams"]


@pytest.mark.parametrize("kind", [TYPE_DATA, TYPE_WINDOW_UPDATE, TYPE_PING, TYPE_GO_AWAY])
async def test_every_kind_of_the_protocol_is_let_in(kind: int) -> None:
    meter, _ = metered(Muxed())
    assert taken(meter, frame(kind, 0, 1), of=1) == 1
