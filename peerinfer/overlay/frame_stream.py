"""One negotiated stream that carries frames, each of them whole or not at all.

Two tasks own it from its first frame to its end. Nobody else waits for the library's stream, so that
nobody's cancelled request can cut a frame in two or lose one that was already read. Frames that come in are
delivered at once and never wait for whoever consumes them: a paused reader closes the window, and five
seconds later the other side's write fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from peerinfer.core.errors import WireError
from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.frames import Frame
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.contained import contained
from peerinfer.overlay.framing import Deframer, with_length
from peerinfer.overlay.intake import Feed
from peerinfer.overlay.quick_stream import RESET_S
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.unfinished import Unfinished

log = logging.getLogger("peerinfer.overlay")

UNSENT_BYTES_MAX = 64 * 1024
"""Beyond this senders wait for the writer."""

Deliver = Callable[[Frame, int], None]
"""Takes a frame and its size in bytes; raises `WireError` for one that is out of place."""


class ByteStream(Protocol):
    """What carries the frames: `QuickStream`."""

    async def receive(self, feed: Feed) -> None:
        """Hand over what comes in until the end, then raise one of `STREAM_ERRORS`."""

    def put(self, message: bytes) -> bool:
        """Send a message soon, without waiting; False if it has to wait."""

    async def write(self, message: bytes) -> None:
        """Return once it is out; raises one of `STREAM_ERRORS`."""

    async def reset(self) -> None:
        """End it."""


class FrameStream:
    """A stream of frames with one peer. `run` is its life; `lose` ends it."""

    def __init__(
        self,
        stream: ByteStream,
        *,
        peer: PeerId,
        frame_bytes_max: int,
        unfinished: Unfinished,
        refuse: Callable[[PeerId, str], None],
    ) -> None:
        self.peer = peer
        self.reason = ""
        """Why the stream is lost; empty while it is not."""
        self.on_lost: Callable[[str], None] = lambda _reason: None
        """Told once."""
        self._stream = stream
        self._refuse = refuse
        self._deframer = Deframer(bytes_max=frame_bytes_max)
        self._unfinished = unfinished
        self._noted_bytes = 0
        self._scope = trio.CancelScope()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._more, self._room = trio.Event(), trio.Event()

    @property
    def unfinished_bytes(self) -> int:
        """What is kept of a frame whose end has not come; nothing once the stream is lost."""
        return 0 if self.reason else self._deframer.unfinished_bytes

    async def run(self, deliver: Deliver) -> None:
        """Read and write until the stream breaks, then reset it. Raises nothing but cancellation."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_all)
                    nursery.start_soon(self._read_all, deliver)
        except Exception as error:  # the stream's one boundary: nothing else ends with it
            log.warning("peer=%s its stream failed: %r", self.peer, error)
            self.lose("the stream failed")
        finally:
            self.lose("the overlay is closing")
            with contained("resetting its stream", peer=self.peer):
                with trio.move_on_after(RESET_S, shield=True):
                    await self._stream.reset()

    async def send(self, frame: Frame) -> None:
        """Put a frame on its way, behind those that wait already. Cancelled, it was not.

        Nearly always it can leave with what the connection sends next; what cannot waits for the writer, who
        takes all that there is.

        Raises:
            PeerLostError: the stream is lost.
        """
        message = with_length(encode_frame(frame))
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._unsent_bytes and not self.reason and self._stream.put(message):
            return
        while not self.reason and self._unsent_bytes > UNSENT_BYTES_MAX:
            await self._room.wait()
        if self.reason:
            raise PeerLostError(self.reason)
        self._unsent.append(message)
        self._unsent_bytes += len(message)
        self._more.set()

    def lose(self, reason: str) -> None:
        """The stream is of no use any more: end both tasks, and reset it."""
        if not self.reason:
            self.reason = reason
            self._note_unfinished()
            self._room.set()
            self._scope.cancel()
            self.on_lost(reason)

    async def _read_all(self, deliver: Deliver) -> None:
        try:
            await self._stream.receive(partial(self._feed, deliver))
        except STREAM_ERRORS as error:
            self.lose(f"the stream broke: {type(error).__name__}")

    def _feed(self, deliver: Deliver, data: bytes) -> None:
        """What came in; nothing of it goes wrong for anybody but this stream."""
        if self.reason:
            return
        try:
            for payload in self._deframer.feed(data):
                deliver(decode_frame(payload), len(payload))
            self._note_unfinished()
        except WireError as error:
            self._refuse(self.peer, str(error))
            self.lose(f"refused: {error}")
        except Exception as error:
            log.warning("peer=%s its stream failed: %r", self.peer, error)
            self.lose("the stream failed")

    def _note_unfinished(self) -> None:
        if self.unfinished_bytes != self._noted_bytes:
            self._noted_bytes = self.unfinished_bytes
            self._unfinished.note(self)

    async def _write_all(self) -> None:
        try:
            while True:
                await self._more.wait()
                messages = b"".join(self._unsent)
                self._unsent.clear()
                self._more = trio.Event()
                await self._stream.write(messages)
                # Room is made once it is out: a peer that takes nothing must hold its senders up.
                self._unsent_bytes = sum(map(len, self._unsent))
                self._room.set()
                self._room = trio.Event()
        except STREAM_ERRORS as error:
            self.lose(f"the stream broke: {type(error).__name__}")
