"""What comes in on one connection: the data of streams that ask for it are handed over at once.

Theory of operation. The library's reading loop reads a frame's head and its body, waits for a lock, keeps the
data and wakes the stream's reader, who waits for three more locks: six turns of the loop for a token's frame.
An intake stands between that loop and Noise. It reads whole messages and looks at the heads of the frames in
them. The data of a stream that was attached go to its function, in this very moment; every other frame is
given to the loop as it came, and so are the flags of those frames: opening, closing, resetting, windows and
pings remain the library's.

The rule: a stream's bytes keep their order. What the library has kept of a stream when it is attached, or
keeps because it had begun with it by then, is handed over before anything that came later.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import trio
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    HEADER_SIZE,
    MAX_WINDOW_SIZE,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)

from peerinfer.overlay.frame_meter import check_header
from peerinfer.overlay.outbox import outbox_of

Feed = Callable[[bytes], None]
"""Takes a stream's next bytes; must not raise."""

_HEAD = struct.Struct(YAMUX_HEADER_FORMAT)


class Intake:
    """Stands for the secured connection where the library's loop reads from it."""

    def __init__(self, muxed: Any) -> None:
        self.heard_at = trio.current_time()
        """When something came in."""
        self._muxed = muxed
        self._read = muxed.secured_conn.read
        muxed.secured_conn.read = self.read
        self._feeds: dict[int, Feed] = {}
        self._ahead = b""
        self._at = 0
        """Of what was read ahead, so much is taken."""
        self._body = 0
        """Bytes of a body that are the loop's to read."""

    def attach(self, stream: Any, feed: Feed) -> None:
        """Hand over what has come for a stream, and from now on everything that comes."""
        self._feeds[stream.stream_id] = feed
        self.hand_over_kept(stream)

    def hand_over_kept(self, stream: Any) -> None:
        """What the library has kept of an attached stream."""
        if kept := self._muxed.stream_buffers.get(stream.stream_id):
            data = bytes(kept)
            kept.clear()
            self._take(stream, data)

    def detach(self, stream: Any) -> None:
        """Nobody wants a stream's data any more."""
        self._feeds.pop(stream.stream_id, None)

    async def read(self, n: int | None = None) -> bytes:
        """What the library's loop reads: the heads of frames, and the bodies of those that are its own."""
        if self._body:
            data = await self._some(self._body if n is None else min(n, self._body))
            self._body -= len(data)
            return data
        while True:
            while len(self._ahead) - self._at < HEADER_SIZE:
                await self._fill()
            head = self._ahead[self._at : self._at + HEADER_SIZE]
            self._at += HEADER_SIZE
            _, kind, flags, stream_id, length = _HEAD.unpack(head)
            if kind != TYPE_DATA:
                return head
            stream = self._muxed.streams.get(stream_id) if stream_id in self._feeds else None
            if stream is None or flags & FLAG_SYN or length > MAX_WINDOW_SIZE:
                self._body = length
                return head
            check_header(self._muxed.secured_conn, head)  # of the others the loop is told when it reads them
            await self._hand_over(stream, length)
            if flags:
                return _HEAD.pack(0, kind, flags, stream_id, 0)

    async def _hand_over(self, stream: Any, size: int) -> None:
        self.hand_over_kept(stream)
        stream.recv_window = max(0, stream.recv_window - size)
        while size:
            data = await self._some(size)
            size -= len(data)
            self._take(stream, data)

    def _take(self, stream: Any, data: bytes) -> None:
        if (feed := self._feeds.get(stream.stream_id)) is None:
            return
        feed(data)
        if granted := granted_again(stream, len(data), kept=0):
            outbox_of(self._muxed).put(_HEAD.pack(0, TYPE_WINDOW_UPDATE, 0, stream.stream_id, granted))

    async def _some(self, size: int) -> bytes:
        if self._at == len(self._ahead):
            await self._fill()
        data = self._ahead[self._at : self._at + size]
        self._at += len(data)
        return data

    async def _fill(self) -> None:
        """Read ahead one more message. Raises what the library raises at the end."""
        data = await self._read(None)
        self.heard_at = trio.current_time()
        self._ahead = self._ahead[self._at :] + data
        self._at = 0


def granted_again(stream: Any, size: int, *, kept: int) -> int:
    """How much window to grant to a stream's sender, now that so many bytes more were read; mostly none.

    Every read, of a single byte too, was answered with a frame that grants its bytes again: in an idle swarm
    two of three frames sent (measured). Granting when half of the window was read is what other
    implementations do; a sender that waits then always has a reader with bytes to read. `kept` is what waits
    to be read.
    """
    stream._pending_recv_release += size
    granted: int = stream._pending_recv_release
    if granted < stream.target_recv_window // 2:
        return 0
    stream._pending_recv_release = 0
    stream.recv_window += granted
    granted += stream._apply_autotune_epoch(kept)
    return granted


def intake_of(muxed: Any) -> Intake:
    """A connection's intake."""
    intake: Intake | None = muxed.__dict__.get("_intake")
    if intake is None:
        intake = muxed.__dict__["_intake"] = Intake(muxed)
    return intake
