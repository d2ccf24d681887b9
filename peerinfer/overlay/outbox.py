"""The frames of one connection on their way out: those that come together are encrypted and sent together.

To encrypt and send costs more than a token's frame, and tokens of many streams come at once: an engine makes
one for each of its requests at every step. So frames are collected, and the connection's writer takes all
that there are as soon as it has its turn: a frame that comes alone is not held back, a hundred that come
within one turn of the loop are one message of Noise and one system call. No timer is involved. Long frames go
a few at a time: a socket is given up when it does not take that much in time, however many streams send.

The rule (S1 in quick_yamux.py): what was taken is written whole, whatever is cancelled. Noise counts its
messages, so half of one would end the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from libp2p.network.connection.exceptions import RawConnError

from peerinfer.overlay.stream_errors import STREAM_ERRORS

WRITE_STUCK_S = 5.0  # guess; yamux itself gives up on a closed window after as long
"""A socket that takes no byte for this long has lost its connection."""
COLLECTED_BYTES_MAX = 64 * 1024  # guess: one message of Noise
"""Beyond this frames are not taken without waiting, and what is sent at once has no more frames."""


class Outbox:
    """What goes out on one connection next."""

    def __init__(self, muxed: Any) -> None:
        self.note: Callable[[bytes], None] = lambda _frame: None
        """Told of every frame."""
        self._muxed = muxed
        self._frames: list[bytes] = []
        self._size = 0
        self._put = self._out = 0
        """Frames so far: taken, and sent."""
        self._more = trio.Event()
        self._sending: trio.Event | None = None
        """Set once what is being sent is out, or lost."""

    @property
    def is_full(self) -> bool:
        """Whether nothing can be put now: whoever sends has to wait."""
        return self._size > COLLECTED_BYTES_MAX or self._muxed.event_shutting_down.is_set()

    def put(self, frame: bytes) -> None:
        """Send a frame soon, without waiting."""
        self._take(frame)
        self._more.set()

    async def write(self, frame: bytes) -> None:
        """Send a frame; return once it is out. Cancelled, it goes out whole or not at all.

        Raises what the library raises where a connection is lost.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        number = self._take(frame)
        try:
            while self._out < number:
                if self._muxed.event_shutting_down.is_set():
                    raise RawConnError("connection closed")
                await self._turn()
        finally:
            if self._frames:  # cancelled, or others came meanwhile
                self._more.set()

    async def run(self) -> None:
        """Send what was put, until the connection ends."""
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                while self._frames:
                    await self._turn()
        except STREAM_ERRORS:
            pass  # the connection is over, and whoever waits for it is told by it

    def _take(self, frame: bytes) -> int:
        self.note(frame)
        self._frames.append(frame)
        self._size += len(frame)
        self._put += 1
        return self._put

    async def _turn(self) -> None:
        """Send some of what there is, or wait while somebody does."""
        if self._sending is None:
            await self._send()
        else:
            await self._sending.wait()

    async def _send(self) -> None:
        """Send the first of what there is: all of it, unless it is much."""
        data, number = self._next()
        self._sending = trio.Event()
        try:
            deadline = trio.current_time() + WRITE_STUCK_S
            with trio.CancelScope(shield=True, deadline=deadline) as scope:
                await self._muxed.secured_conn.write(data)
                self._out += number
            if scope.cancelled_caught:
                raise trio.BrokenResourceError(f"the socket took no byte for {WRITE_STUCK_S} s")
        except Exception:  # a message is counted that is not out: none that follows can be understood
            self._muxed.event_shutting_down.set()
            with trio.CancelScope(shield=True):
                await self._muxed.secured_conn.close()
            raise
        finally:
            self._sending.set()
            self._sending = None

    def _next(self) -> tuple[bytes, int]:
        """What is sent at once, and how many frames that is."""
        size = count = 0
        for frame in self._frames:
            size += len(frame)
            count += 1
            if size > COLLECTED_BYTES_MAX:
                break
        data = b"".join(self._frames[:count])
        del self._frames[:count]
        self._size -= size
        return data, count


def outbox_of(muxed: Any) -> Outbox:
    """A connection's outbox."""
    outbox: Outbox | None = muxed.__dict__.get("_outbox")
    if outbox is None:
        outbox = muxed.__dict__["_outbox"] = Outbox(muxed)
    return outbox
