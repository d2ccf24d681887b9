"""What comes in on a connection: data of attached streams at once and in order, all else to the library."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_FIN,
    FLAG_SYN,
    HEADER_SIZE,
    MAX_WINDOW_SIZE,
    TYPE_DATA,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)

from peerinfer.overlay.frame_meter import FrameMeter, TooManyFramesError
from peerinfer.overlay.intake import Intake, intake_of
from peerinfer.overlay.outbox import outbox_of
from peerinfer.overlay.quick_stream import QuickStream

ATTACHED, OTHER = 1, 3


class Secured:
    """Noise: messages as they came."""

    is_initiator = True

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages

    async def read(self, n: int | None = None) -> bytes:
        assert n is None, "messages are read whole"
        if not self.messages:
            raise ConnectionClosedError("the end")
        return self.messages.pop(0)


def frame(
    kind: int, stream_id: int, body: bytes = b"", *, flags: int = 0, length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, size) + body


TINY = frame(TYPE_DATA, ATTACHED, b"x")


class Connection:
    """A multiplexer of the library's with two streams, whose loop does not run; what its loop would read."""

    def __init__(self, *messages: bytes) -> None:
        secured: Any = Secured(list(messages))
        self.muxed: Any = Yamux(secured, None)  # type: ignore[arg-type]
        self.streams = {number: YamuxStream(number, self.muxed, True) for number in (ATTACHED, OTHER)}
        self.muxed.streams.update(self.streams)
        for number in self.streams:
            self.muxed.stream_buffers[number] = bytearray()
            self.muxed.stream_events[number] = trio.Event()
        self.intake: Intake = intake_of(self.muxed)
        self.received = b""

    def feed(self, data: bytes) -> None:
        self.received += data

    def attach(self) -> None:
        self.intake.attach(self.streams[ATTACHED], self.feed)

    async def loop_reads(self) -> bytes:
        """All that the library's loop gets: heads, and bodies as it asks for them."""
        read = b""
        try:
            while True:
                head = await self.muxed.secured_conn.read(HEADER_SIZE)
                read += head
                _, kind, _, _, left = struct.unpack(YAMUX_HEADER_FORMAT, head)
                while kind == TYPE_DATA and left:
                    data = await self.muxed.secured_conn.read(left)
                    left -= len(data)
                    read += data
        except ConnectionClosedError:
            return read


@pytest.mark.parametrize("seed", range(20))
async def test_attached_streams_data_are_handed_over_and_the_rest_is_the_loops(seed: int) -> None:
    """Method: random frames in random messages; compare with what was sent, byte for byte."""
    rng = random.Random(seed)
    wire, data, rest = b"", b"", b""
    for _ in range(50):
        body = rng.randbytes(rng.choice((0, 1, 11, 12, 13, 300)))
        match rng.choice(("data", "data", "other", "ping", "window")):
            case "data":
                wire += frame(TYPE_DATA, ATTACHED, body)
                data += body
            case "other":
                wire += (each := frame(TYPE_DATA, OTHER, body))
                rest += each
            case "ping":
                wire += (each := frame(TYPE_PING, 0, length=7))
                rest += each
            case "window":
                wire += (each := frame(TYPE_WINDOW_UPDATE, ATTACHED, length=99))
                rest += each
    cuts = sorted(rng.choices(range(len(wire)), k=rng.randrange(1, 60)))
    messages = [wire[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    connection = Connection(*messages)
    connection.attach()
    assert await connection.loop_reads() == rest
    assert connection.received == data


async def test_flags_of_a_frame_whose_data_were_handed_over_are_the_loops() -> None:
    """It closes the stream; the data come first."""
    connection = Connection(frame(TYPE_DATA, ATTACHED, b"the last", flags=FLAG_FIN))
    connection.attach()
    assert await connection.loop_reads() == frame(TYPE_DATA, ATTACHED, flags=FLAG_FIN)
    assert connection.received == b"the last"


async def test_what_the_library_has_to_judge_is_left_to_it() -> None:
    """A frame that opens the stream again, one that is too long, one of a stream that is unknown by now."""
    opening = frame(TYPE_DATA, ATTACHED, b"x", flags=FLAG_SYN)
    connection = Connection(opening)
    connection.attach()
    assert await connection.loop_reads() == opening
    connection = Connection(frame(TYPE_DATA, ATTACHED, length=MAX_WINDOW_SIZE + 1))
    connection.attach()
    assert await connection.loop_reads() == frame(TYPE_DATA, ATTACHED, length=MAX_WINDOW_SIZE + 1)
    connection = Connection(late := frame(TYPE_DATA, ATTACHED, b"late"))
    connection.attach()
    del connection.muxed.streams[ATTACHED]
    assert await connection.loop_reads() == late
    assert connection.received == b""


async def test_frames_that_are_handed_over_are_metered_like_all_others() -> None:
    """Goal: no way around the flood limit. Method: more than the window, and data in tiny pieces."""
    for sent in ([frame(TYPE_DATA, ATTACHED, bytes(DEFAULT_WINDOW_SIZE + 1))], [TINY] * 1000):
        connection = Connection(*sent)
        refused: list[str] = []
        FrameMeter(connection.muxed, frames_per_s_max=10.0, streams_per_s_max=10.0, refuse=refused.append)
        connection.attach()
        with pytest.raises(TooManyFramesError):
            await connection.loop_reads()
        assert len(refused) == 1
        assert len(connection.received) < 1000


async def test_what_the_library_kept_comes_first() -> None:
    """What it had before the stream was attached, and what it was busy with meanwhile."""
    connection = Connection(frame(TYPE_DATA, ATTACHED, b"3"))
    connection.muxed.stream_buffers[ATTACHED] += b"1"
    connection.attach()
    assert connection.received == b"1"
    connection.muxed.stream_buffers[ATTACHED] += b"2"
    await connection.loop_reads()
    assert connection.received == b"123"


async def test_window_is_granted_again_by_halves() -> None:
    """Else its sender stops; and not with every frame. Method: count the frames put for half a window."""
    piece = 1024
    count = DEFAULT_WINDOW_SIZE // 2 // piece
    connection = Connection(*[frame(TYPE_DATA, ATTACHED, bytes(piece))] * (count - 1))
    connection.attach()
    await connection.loop_reads()
    outbox = outbox_of(connection.muxed)
    assert outbox._frames == []
    connection.muxed.secured_conn.messages.append(frame(TYPE_DATA, ATTACHED, bytes(piece)))
    await connection.loop_reads()
    (granted,) = outbox._frames
    _, kind, flags, stream_id, increment = struct.unpack(YAMUX_HEADER_FORMAT, granted)
    assert (kind, flags, stream_id) == (TYPE_WINDOW_UPDATE, 0, ATTACHED)
    assert increment >= count * piece
    assert connection.streams[ATTACHED].recv_window >= DEFAULT_WINDOW_SIZE


async def test_what_came_in_is_heard(autojump_clock: trio.testing.MockClock) -> None:
    """Also data that the library never sees: else a busy connection would be pinged, or held for dead."""
    connection = Connection(frame(TYPE_DATA, ATTACHED, b"x"))
    connection.attach()
    await trio.sleep(5)
    await connection.loop_reads()
    assert connection.intake.heard_at == trio.current_time()


class Stream:
    """The library's, as far as `QuickStream` needs it."""

    def __init__(self, muxed_stream: YamuxStream) -> None:
        self.muxed_stream = muxed_stream

    async def reset(self) -> None:
        self.muxed_stream.closed = True


async def test_end_of_a_stream_comes_behind_its_data() -> None:
    """Method: the library keeps the last data and closes, or resets; then a stream that it has forgotten."""
    for reset, error in ((False, StreamEOF), (True, StreamReset)):
        connection = Connection()
        stream = connection.streams[ATTACHED]
        quick = QuickStream(Stream(stream))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends, quick, connection, error)
            await trio.testing.wait_all_tasks_blocked()
            connection.muxed.stream_events[ATTACHED].set()  # news that is none
            await trio.testing.wait_all_tasks_blocked()
            connection.muxed.stream_buffers[ATTACHED] += b"the last"
            stream.recv_closed, stream.reset_received = True, reset
            connection.muxed.stream_events[ATTACHED].set()
        assert connection.received == b"the last"
        await quick.reset()
        assert ATTACHED not in connection.muxed.streams
        await ends(quick, connection, error)


async def ends(quick: QuickStream, connection: Connection, error: type[Exception]) -> None:
    with pytest.raises(error):
        await quick.receive(connection.feed)


async def test_message_is_put_only_where_it_need_not_wait() -> None:
    """A window too small, an outbox too full: the caller has to wait, and nothing was taken."""
    connection = Connection()
    stream = connection.streams[ATTACHED]
    quick = QuickStream(Stream(stream))
    stream.send_window = 10
    assert not quick.put(b"x" * 11)
    assert quick.put(b"x" * 10)
    assert outbox_of(connection.muxed)._frames == [frame(TYPE_DATA, ATTACHED, b"x" * 10)]
    stream.send_window = 10
    connection.muxed.event_shutting_down.set()
    assert not quick.put(b"x")
    assert stream.send_window == 10
