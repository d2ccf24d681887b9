"""One exchange of frames, as either side of it sees it: the overlay's `Call`.

Rules: all its frames carry one id; the opener sends nothing but cancels after its opening; the other
side's terminal frame is the last. What breaks a rule is out of place and costs the peer its stream.
Knows no transport: real and simulated streams carry it alike.
"""

from __future__ import annotations

import logging
import math
from typing import Protocol

import trio

from peerinfer.core.errors import WireError
from peerinfer.core.frames import Ask, Cancel, Frame, Heartbeat, Request, Terminal
from peerinfer.core.types import PeerId
from peerinfer.node.ports import OverlaySink, PeerLostError

log = logging.getLogger("peerinfer.overlay")

IN_A_ROW_MAX = 64
"""Frames that are given without letting others run: some milliseconds' worth of relaying."""
HEARTBEATS_MAX = 100_000
"""In one exchange: a day of honest ones, and a few seconds of a flood's."""


class Carrier(Protocol):
    """The stream under an exchange."""

    @property
    def peer(self) -> PeerId:
        """The other side."""

    @property
    def reason(self) -> str:
        """Why the stream is lost; empty while it is not."""

    async def send(self, frame: Frame) -> None:
        """Send a frame whole, or not at all when cancelled. Raises `PeerLostError`."""

    def lose(self, reason: str) -> None:
        """Reset the stream."""


class Exchange:
    """What both sides share: an inbox of frames that were received and not yet taken."""

    def __init__(self, stream: Carrier, *, inbox_bytes_max: int) -> None:
        self.id: str | None = None
        self.ended = False
        """The terminal frame was received or is about to be sent."""
        self._stream = stream
        self._room = inbox_bytes_max
        self._in_a_row = 0
        self._arrived, self._inbox = trio.open_memory_channel[tuple[Frame, int]](math.inf)

    @property
    def peer(self) -> PeerId:
        """The other side."""
        return self._stream.peer

    async def receive(self) -> Frame:
        """The next frame. Raises `PeerLostError`. Safe to cancel: no frame is lost."""
        try:
            frame, size = await self._next()
        except trio.EndOfChannel:
            raise PeerLostError(self._stream.reason) from None
        self._room += size
        return frame

    async def _next(self) -> tuple[Frame, int]:
        """Without letting others run while there is more: what came together goes on together."""
        if self._in_a_row < IN_A_ROW_MAX:
            try:
                received = self._inbox.receive_nowait()
            except trio.WouldBlock:
                pass
            else:
                self._in_a_row += 1
                await trio.lowlevel.checkpoint_if_cancelled()
                return received
        self._in_a_row = 0
        return await self._inbox.receive()

    def lose(self) -> None:
        """No more frames will arrive."""
        self._arrived.close()

    def _keep(self, frame: Frame, size: int) -> None:
        if self._stream.reason:
            return  # it came in together with what broke the stream
        self._room -= size
        if self._room < 0:
            self._stream.lose("its frames were not taken in time")
        else:
            self._arrived.send_nowait((frame, size))


class OutgoingExchange(Exchange):
    """Opened here: sends `Request` or `Ask`, then perhaps `Cancel`; receives the rest."""

    _heartbeats = 0

    async def send(self, frame: Frame) -> None:
        """Send a frame. Raises `PeerLostError`. Safe to cancel: it is sent whole or not at all."""
        opening = self.id is None
        assert isinstance(frame, Request | Ask) if opening else isinstance(frame, Cancel), frame
        assert opening or frame.id == self.id, frame
        self.id = frame.id
        try:
            await self._stream.send(frame)
        except BaseException:
            if opening:
                self.id = None
            raise

    def deliver(self, frame: Frame, size: int) -> None:
        """A frame came in. Raises `WireError` if it does not belong here."""
        if self.id is None or self.ended or frame.id != self.id:
            raise WireError(f"id: {frame.id!r} is no exchange of this stream")
        if isinstance(frame, Request | Ask | Cancel):
            raise WireError(f"t: {type(frame).__name__} came from the side that serves")
        if isinstance(frame, Heartbeat):
            self._heartbeats += 1
            if self._heartbeats > HEARTBEATS_MAX:
                raise WireError("t: too many heartbeats")
        self.ended = isinstance(frame, Terminal)
        self._keep(frame, size)


class IncomingExchange(Exchange):
    """Opened by the peer: `serve_call` answers it."""

    def __init__(self, stream: Carrier, opening: Request | Ask, *, inbox_bytes_max: int) -> None:
        super().__init__(stream, inbox_bytes_max=inbox_bytes_max)
        self.id = opening.id
        self._cancelled = False

    async def send(self, frame: Frame) -> None:
        """Send a frame. Raises `PeerLostError`. Safe to cancel: it is sent whole or not at all."""
        assert not self.ended, frame
        assert frame.id == self.id, frame
        self.ended = isinstance(frame, Terminal)  # before it is out: the peer may open its next at once
        try:
            await self._stream.send(frame)
        except BaseException:
            self.ended = False
            raise

    def deliver(self, frame: Frame, size: int) -> None:
        """A frame came in. Raises `WireError` if it does not belong here."""
        if frame.id != self.id or not isinstance(frame, Cancel):
            raise WireError(f"t: {type(frame).__name__} {frame.id!r} came within exchange {self.id!r}")
        if self._cancelled:
            raise WireError("t: a second Cancel")
        self._cancelled = True
        if not self.ended:  # a cancel that crossed with the terminal frame is nobody's fault
            self._keep(frame, size)

    async def serve(self, sink: OverlaySink, opening: Request | Ask) -> None:
        """Have the sink serve it. What goes wrong there costs this stream, nothing else."""
        try:
            await sink.serve_call(self, opening)
        except PeerLostError:
            self._stream.lose("the peer was lost")
        except Exception as error:
            log.exception("peer=%s serving a call failed: %r", self.peer, error)
            self._stream.lose("serving the call failed")
        else:
            if not self.ended and not self._stream.reason:
                log.error("peer=%s a served call ended without its terminal frame", self.peer)
                self._stream.lose("the call ended without its terminal frame")
        finally:
            self.lose()
