"""A connection behind its handshake as a target of the fuzzing: nothing that it carries harms anybody else.

The library's multiplexer with all that stands around it here (meter, intake, outbox), and streams that read
frames; scripted messages in place of Noise. However the bytes are cut into messages, the same frames come
out.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_FIN,
    FLAG_RST,
    FLAG_SYN,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
)

from peerinfer.config import OverlayConfig
from peerinfer.core.frame_codec import encode_frame
from peerinfer.core.frames import Ask, Cancel, Frame, Heartbeat
from peerinfer.core.types import PeerId
from peerinfer.overlay.flood import Flood
from peerinfer.overlay.frame_meter import TooManyFramesError, meter_frames
from peerinfer.overlay.frame_stream import FrameStream
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.intake import intake_of
from peerinfer.overlay.quick_stream import QuickStream
from peerinfer.overlay.quick_yamux import make_yamux_quick
from peerinfer.overlay.unfinished import Unfinished
from tests.fuzz.log_bugs import bugs_logged

PEER = "12D3KooWSj6jQEeeZAgdKb12WPQjvGMM5mWZWLPPUeM6dBuPkjCA"
ENOUGH_S = 600.0
"""Of virtual time: a connection that is still open after this hangs."""
FRAME_BYTES_MAX = 1000
THE_END = "the script is over"
PEERS_FAULT = ("Incomplete read for", "Received GO_AWAY", THE_END)
"""What the library calls an error, and is one of the peer's."""


def _head(kind: int, stream_id: int, length: int, flags: int = 0) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream_id, length)


def _data(stream_id: int, *frames: Frame, flags: int = 0) -> bytes:
    body = b"".join(with_length(encode_frame(frame)) for frame in frames)
    return _head(TYPE_DATA, stream_id, len(body), flags) + body


_ASK = Ask(id="a", prompt_tokens=3, expected_cached_tokens=0)
SEEDS = (
    _data(1, _ASK, flags=FLAG_SYN) + _data(1, Cancel(id="a")),
    _head(TYPE_WINDOW_UPDATE, 1, 0, FLAG_SYN) + _data(1, _ASK, _ASK) + _data(1, flags=FLAG_FIN),
    _data(1, _ASK, flags=FLAG_SYN) + _data(3, Heartbeat(id="b"), flags=FLAG_SYN) + _data(1, Cancel(id="a")),
    _data(1, _ASK, flags=FLAG_SYN) + _data(1, _ASK, flags=FLAG_RST) + _data(1, _ASK),
    _head(TYPE_PING, 0, 7, FLAG_SYN) + _head(TYPE_GO_AWAY, 0, 0),
)


@dataclass(slots=True)
class _Received:
    """What came on one of the streams that the peer opened."""

    stream: Any
    frames: list[Frame] = field(default_factory=list)
    was_ended: bool = True
    """By the peer, or with the connection before all was read."""

    def take(self, frame: Frame, _size: int) -> None:
        self.frames.append(frame)


class _Secured:
    """Noise: messages as they came, then the end."""

    is_initiator = False

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self.received: list[_Received] = []
        self.is_over = False

    async def read(self, n: int | None = None) -> bytes:
        assert n is None, "messages are read whole"
        await trio.testing.wait_all_tasks_blocked()
        if not self._messages:
            self.is_over = True
            for each in self.received:
                each.was_ended = each.stream.recv_closed or each.stream.reset_received
            raise ConnectionClosedError(THE_END)
        return self._messages.pop(0)

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def run(payload: bytes) -> None:
    """One connection that sends this and no more, in one message and in many. Raises what is logged."""
    payload = payload[:16_384]
    size = 1 + sum(payload) % 40
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
    (whole, whole_is_over), (cut, cut_is_over) = _received([payload] if payload else []), _received(pieces)
    # What ends a stream or the connection, or cuts a frame off, may do so before others are read, and the
    # number of a stream may be free again by then; nothing else loses frames.
    must_agree = whole_is_over and cut_is_over and _ends_with_a_frame(payload)
    must_agree = must_agree and not any(each.was_ended for each in (*whole, *cut))
    assert len(whole) == len(cut) or not must_agree, (whole, cut)
    for one, other in zip(whole, cut, strict=False):
        assert all(map(operator.eq, one.frames, other.frames)) or not must_agree, (whole, cut)
        assert len(one.frames) == len(other.frames) or not must_agree, (whole, cut)


def _ends_with_a_frame(payload: bytes) -> bool:
    at = 0
    while len(payload) - at >= HEADER_SIZE:
        _, kind, _, _, length = struct.unpack_from(YAMUX_HEADER_FORMAT, payload, at)
        at += HEADER_SIZE + (length if kind == TYPE_DATA else 0)
    return at == len(payload)


def _received(messages: list[bytes]) -> tuple[list[_Received], bool]:
    """What came on each stream, and whether all was read."""
    secured = _Secured(messages)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with bugs_logged("peerinfer.overlay", "libp2p.stream_muxer.yamux", but=PEERS_FAULT):
        trio.run(_serve, secured, clock=clock)
    return secured.received, secured.is_over


async def _serve(secured: _Secured) -> None:
    make_yamux_quick()

    async def multiplex(connection: Any, peer_id: Any) -> Any:
        return Yamux(connection, peer_id)

    network = SimpleNamespace(upgrader=SimpleNamespace(upgrade_connection=multiplex))
    meter_frames(network, Flood(OverlayConfig(), refused=lambda *_: None))
    muxed = await network.upgrader.upgrade_connection(secured, ID.from_base58(PEER))
    read, bugs = intake_of(muxed).read, list[Exception]()

    async def read_watched(n: int | None = None) -> bytes:
        """The library's loop takes whatever is raised here for the connection's end."""
        try:
            return await read(n)
        except (ConnectionClosedError, TooManyFramesError):
            raise
        except Exception as bug:
            bugs.append(bug)
            raise

    muxed.secured_conn.read = read_watched
    with trio.fail_after(ENOUGH_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_streams, muxed, secured.received)
            await muxed.handle_incoming()
            muxed.new_stream_send_channel.close()
    for bug in bugs:
        raise bug


async def _serve_streams(muxed: Any, received: list[_Received]) -> None:
    unfinished = Unfinished(per_peer_bytes_max=2000, bytes_max=4000, refused=lambda *_: None)
    async with trio.open_nursery() as nursery:
        async for stream in muxed.new_stream_receive_channel:
            wrapped = SimpleNamespace(muxed_stream=stream, reset=stream.reset, write=stream.write)
            frames = FrameStream(
                QuickStream(wrapped),
                peer=PeerId(PEER),
                frame_bytes_max=FRAME_BYTES_MAX,
                unfinished=unfinished,
                refuse=lambda *_: None,
            )
            received.append(_Received(stream))
            nursery.start_soon(frames.run, received[-1].take)
