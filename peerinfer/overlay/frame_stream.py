"""One negotiated stream that carries frames, each of them whole or not at all.

Two tasks own it from its first frame to its end: the only reader and the only writer. Nobody else
touches the library's stream, so that nobody's cancelled request can cut a frame in two or lose one
that was already read. The reader never waits for whoever consumes its frames: a paused reader closes
the window, and five seconds later the other side's write fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio
from libp2p.exceptions import BaseLibp2pError

from peerinfer.core.errors import WireError
from peerinfer.core.frame_codec import decode_frame, encode_frame
from peerinfer.core.frames import Frame
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.contained import contained
from peerinfer.overlay.framing import Deframer, with_length
from peerinfer.overlay.hardening import RESET_S, forget_stream
from peerinfer.overlay.unfinished import Unfinished

log = logging.getLogger("peerinfer.overlay")

READ_BYTES = 64 * 1024
"""One yamux frame's worth."""
UNSENT_BYTES_MAX = 64 * 1024
"""Beyond this senders wait for the writer."""

STREAM_ERRORS = (BaseLibp2pError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What reading, writing or opening a stream raises when its connection, or the other side, gives up."""

Deliver = Callable[[Frame, int], None]
"""Takes a frame and its size in bytes; raises `WireError` for one that is out of place."""


class FrameStream:
    """A stream of frames with one peer. `run` is its life; `lose` ends it."""

    def __init__(
        self,
        stream: Any,
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
                    await forget_stream(self._stream)

    async def send(self, frame: Frame) -> None:
        """Hand a frame to the writer, who takes all that there are. Cancelled, it was not handed over.

        Encrypting and framing a write costs more than a token's frame, so what comes together goes together.

        Raises:
            PeerLostError: the stream is lost.
        """
        message = with_length(encode_frame(frame))
        await trio.lowlevel.checkpoint_if_cancelled()
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
            while True:
                for payload in self._deframer.feed(await self._stream.read(READ_BYTES)):
                    deliver(decode_frame(payload), len(payload))
                self._note_unfinished()
        except WireError as error:
            self._refuse(self.peer, str(error))
            self.lose(f"refused: {error}")
        except STREAM_ERRORS as error:
            self.lose(f"the stream broke: {type(error).__name__}")

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
