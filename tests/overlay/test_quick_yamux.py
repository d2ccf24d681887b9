"""Connections of the library's with their outbox and intake: what two of them do to each other."""

from __future__ import annotations

import struct
from typing import Any

import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from peerinfer.overlay.intake import intake_of
from peerinfer.overlay.outbox import outbox_of
from peerinfer.overlay.quick_yamux import make_yamux_quick

STREAM, PIECE, PIECES = 1, 60_000, 40


class Secured:
    """Noise over a socket that holds one message in either direction."""

    is_initiator = True

    def __init__(self, out: trio.MemorySendChannel[bytes], into: trio.MemoryReceiveChannel[bytes]) -> None:
        self._out, self._into = out, into

    async def write(self, data: bytes) -> None:
        try:
            await self._out.send(data)
        except trio.BrokenResourceError:
            raise ConnectionClosedError("closed") from None

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._into.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise ConnectionClosedError("closed") from None

    async def close(self) -> None:
        self._out.close()
        self._into.close()


class End:
    """One side: a connection with one stream, whose data are counted."""

    def __init__(self, secured: Any) -> None:
        self.muxed: Any = Yamux(secured, None)  # type: ignore[arg-type]
        self.received = 0
        stream = YamuxStream(STREAM, self.muxed, True)
        self.muxed.streams[STREAM] = stream
        self.muxed.stream_buffers[STREAM] = bytearray()
        self.muxed.stream_events[STREAM] = trio.Event()
        intake_of(self.muxed).attach(stream, self._feed)

    def _feed(self, data: bytes) -> None:
        self.received += len(data)

    async def send(self, kind: int, body: bytes = b"", *, flags: int = 0) -> None:
        head = struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, STREAM if body else 0, len(body))
        await outbox_of(self.muxed).write(head + body)


def pair() -> tuple[End, End]:
    make_yamux_quick()
    there, here = trio.open_memory_channel[bytes](1), trio.open_memory_channel[bytes](1)
    return End(Secured(there[0], here[1])), End(Secured(here[0], there[1]))


async def test_two_that_have_much_to_send_do_not_wait_for_each_other_to_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Method: both send more than the socket holds, and a ping among it, which the other one answers."""
    ends = pair()
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(end.muxed.handle_incoming)
            for number in range(PIECES):
                nursery.start_soon(end.send, TYPE_DATA, bytes(PIECE))
                if number == PIECES // 4:
                    nursery.start_soon(lambda end=end: end.send(TYPE_PING, flags=FLAG_SYN))
        await trio.sleep(60)
        assert [end.received for end in ends] == [PIECE * PIECES] * 2
        assert not any(end.muxed.event_shutting_down.is_set() for end in ends)
        assert all(end.muxed._ping_event.is_set() for end in ends), "both pings were answered"
        nursery.cancel_scope.cancel()
