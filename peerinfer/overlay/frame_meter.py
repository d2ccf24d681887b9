"""What the frames of one connection may cost that bring nothing: the multiplexer's own flood limit.

The limits of flood.py begin with a stream. Below them a peer may open streams, grant windows, ping, and send
data to streams that are gone, in frames of 12 bytes: 5,000 of them in one encrypted message. So each such
frame costs a token of a bucket, which fills with time and with what this node sends itself, since most frames
that an honest peer sends answer ours. A new stream, which costs twenty times as much and is answered whoever
opens it, has a bucket of its own. Frames are counted by their headers, before the library looks at them. Who
exceeds that, or sends more than its window, which is kept in memory unread, loses the connection and is left
alone for a while.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import trio
from libp2p.io.utils import read_exactly
from libp2p.stream_muxer.yamux import yamux as yamux_module
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_SYN,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    YAMUX_HEADER_FORMAT,
    Yamux,
)

from peerinfer.core.types import PeerId
from peerinfer.overlay import flood
from peerinfer.overlay.backoff import TokenBucket
from peerinfer.overlay.flood import BURST_S
from peerinfer.overlay.outbox import outbox_of

SHORT_BYTES = 64  # guess: shorter than a token's frame
"""Data in smaller pieces costs as much as none: a window's worth would be 260,000 frames."""
ANSWERS_PER_FRAME = 4.0  # measured: the unhardened library grants a window for each of a message's reads
REFUSED_TOO = 2.0  # guess
"""So many times the streams that flood.py lets a peer open: what is beyond those it resets one by one."""
STREAMS_MAX = 768  # 256 of ours and of theirs at once (yamux's own limit), and what lingers
BODY_WITHIN_S = 60.0
"""The library's own limit for the data that a header announces."""


class TooManyFramesError(Exception):
    """The peer exceeded what its connection may cost; the connection ends."""


class FrameMeter:
    """Stands between one connection's bytes and the multiplexer."""

    def __init__(
        self,
        muxed: Any,
        *,
        frames_per_s_max: float,
        streams_per_s_max: float,
        refuse: Callable[[str], None],
    ) -> None:
        self._muxed, self._refuse = muxed, refuse
        self._frames = TokenBucket(rate_per_s=frames_per_s_max, burst=frames_per_s_max * BURST_S)
        self._streams = TokenBucket(
            rate_per_s=REFUSED_TOO * streams_per_s_max, burst=REFUSED_TOO * flood.STREAMS_AT_ONCE_MAX
        )
        outbox_of(muxed).note = self._note_sent
        muxed.secured_conn.frame_meter = self

    def check(self, header: bytes) -> None:
        """Let a frame in. Raises `TooManyFramesError`, once it is counted."""
        reason = self._reason(*struct.unpack(YAMUX_HEADER_FORMAT, header))
        if reason is not None:
            self._refuse(reason)
            raise TooManyFramesError(reason)

    def _reason(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> str | None:
        """Why this frame ends the connection; None if it does not."""
        if version != 0 or kind > TYPE_GO_AWAY:
            return "frames of no known kind"
        stream = self._muxed.streams.get(stream_id)
        if kind == TYPE_DATA:
            window = DEFAULT_WINDOW_SIZE if stream is None else stream.recv_window
            if length > window and (stream is not None or flags & FLAG_SYN):
                return "more data than its window"
            if stream is not None and length >= SHORT_BYTES:
                return None
        now = trio.current_time()
        if flags & FLAG_SYN and kind != TYPE_PING:
            if len(self._muxed.streams) >= STREAMS_MAX:
                return "too many open streams"
            return None if self._streams.take(now=now) else "too many new streams"
        return None if self._frames.take(now=now) else "too many frames without data"

    def _note_sent(self, frame: bytes) -> None:
        if frame[1] == TYPE_DATA:
            self._frames.give(ANSWERS_PER_FRAME)


def check_header(connection: Any, header: bytes) -> None:
    """Let a frame in on a secured connection. Raises `TooManyFramesError`."""
    meter: FrameMeter | None = getattr(connection, "frame_meter", None)
    if meter is not None:
        meter.check(header)


def meter_frames(network: Any, limits: flood.Flood) -> None:
    """Every connection of this network gets a meter. Patches the library, too: once is enough for that."""
    setattr(yamux_module, "read_exactly", _read_header)  # noqa: B010 - mypy forbids the plain assignment
    setattr(Yamux, "_read_data_body", _read_body)  # noqa: B010
    upgrader = network.upgrader
    multiplex = upgrader.upgrade_connection

    async def metered(secured: Any, peer_id: Any) -> Any:
        muxed = await multiplex(secured, peer_id)
        peer = PeerId(muxed.peer_id.to_base58())
        FrameMeter(
            muxed,
            frames_per_s_max=limits.frames_per_s_max,
            streams_per_s_max=limits.streams_per_s_max,
            refuse=lambda reason: limits.floods(peer, reason),
        )
        return muxed

    upgrader.upgrade_connection = metered


async def _read_header(connection: Any, size: int) -> bytes:
    header: bytes = await read_exactly(connection, size)
    check_header(connection, header)
    return header


async def _read_body(self: Any, length: int) -> bytes:
    with trio.fail_after(BODY_WITHIN_S):
        body: bytes = await read_exactly(self.secured_conn, length)
    return body
