"""Calls over kept-open streams: `/peerinfer/request/1`, both of its sides.

Negotiating a stream costs round trips and CPU (measured: 10 ms here, two round trips far away), so a
stream serves one call after the other. It goes back to its peer's pool only after a terminal frame,
when both sides agree on where they are; whatever else happens, it is reset. Streams are opened in
tasks of the overlay's own: a caller that is cancelled meanwhile leaves a stream to the next one,
instead of half of one in the library's books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from peerinfer.config import OverlayConfig
from peerinfer.core.errors import WireError
from peerinfer.core.frames import Ask, Frame, Request
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, OverlaySink, PeerLostError
from peerinfer.overlay.exchange import IncomingExchange, OutgoingExchange
from peerinfer.overlay.frame_stream import FrameStream
from peerinfer.overlay.quick_stream import RESET_S, QuickStream
from peerinfer.overlay.unfinished import Unfinished

REQUEST_PROTOCOL = "/peerinfer/request/1"
INBOUND_STREAMS_PER_PEER_MAX = 256  # as many as a yamux peer can have open

OpenStream = Callable[[PeerId], Awaitable[Any]]
"""A new stream to a peer, negotiated for the request protocol. Raises `PeerLostError`."""


class _Outgoing:
    """A stream opened here, and the call that has it at the moment."""

    def __init__(self, frames: FrameStream, *, connection: Any) -> None:
        self.frames = frames
        self.connection = connection
        self.exchange: OutgoingExchange | None = None
        frames.on_lost = self._lost

    def deliver(self, frame: Frame, size: int) -> None:
        if self.exchange is None:
            raise WireError(f"t: {type(frame).__name__} came outside of any exchange")
        self.exchange.deliver(frame, size)

    def _lost(self, _reason: str) -> None:
        if self.exchange is not None:
            self.exchange.lose()


class _Pool:
    """The streams to one peer."""

    def __init__(self, config: OverlayConfig) -> None:
        self.idle: list[_Outgoing] = []
        self.calls = trio.Semaphore(config.streams_per_peer_max)

    def take(self) -> _Outgoing | None:
        """The stream that was used last, if one is idle."""
        while self.idle:
            stream = self.idle.pop()
            if not stream.frames.reason:
                return stream
        return None


class _Opening:
    """A stream on its way, and whoever waits for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.stream: _Outgoing | None = None
        self.error = "the overlay is closing"
        self.abandoned = False


class Streams:
    """All request streams of a node."""

    def __init__(
        self,
        *,
        config: OverlayConfig,
        frame_bytes_max: int,
        sink: OverlaySink,
        nursery: trio.Nursery,
        open_stream: OpenStream,
        lets_request: Callable[[PeerId], bool] = lambda _peer: True,
    ) -> None:
        self._config = config
        self._frame_bytes_max = frame_bytes_max
        self._sink = sink
        self._nursery = nursery
        self._open_stream = open_stream
        self._lets_request = lets_request
        self._pools: dict[PeerId, _Pool] = {}
        self._inbound: dict[PeerId, int] = {}
        self._calls_over: Counter[int] = Counter()
        """Connections, by their identity in memory, that carry calls, and how many."""
        self._unfinished = Unfinished(
            per_peer_bytes_max=config.unfinished_bytes_per_peer_max,
            bytes_max=config.unfinished_bytes_max,
            refused=self._refuse,
        )

    def idle(self, peer: PeerId) -> int:
        """How many streams to a peer wait for a call."""
        pool = self._pools.get(peer)
        return sum(not stream.frames.reason for stream in pool.idle) if pool else 0

    def carries_calls(self, connection: Any) -> bool:
        """Whether there are calls on a connection, whoever opened them."""
        return id(connection.muxed_conn) in self._calls_over

    def forget(self, peer: PeerId) -> None:
        """Use no kept-open stream to a peer again: its last connection is gone, or there is a better one."""
        self._pools.pop(peer, None)

    @asynccontextmanager
    async def open_call(self, peer: PeerId) -> AsyncIterator[Call]:
        """A call over a kept-open stream; see `Overlay.open_call`."""
        pool = self._pools.setdefault(peer, _Pool(self._config))
        async with pool.calls:
            stream = pool.take() or await self._open(peer, pool)
            exchange = OutgoingExchange(stream.frames, inbox_bytes_max=self._frame_bytes_max)
            stream.exchange = exchange
            try:
                with self._call_over(stream.connection):
                    yield exchange
            finally:
                stream.exchange = None
                if exchange.ended or exchange.id is None:
                    self._keep(pool, stream)
                else:
                    stream.frames.lose("the call was left before its end")
                exchange.lose()

    async def accept(self, stream: Any) -> None:
        """Serve a stream that a peer opened, until it breaks."""
        peer = PeerId(stream.muxed_conn.peer_id.to_base58())
        if self._inbound.get(peer, 0) >= INBOUND_STREAMS_PER_PEER_MAX:
            self._sink.dropped("request", peer, "too many streams")
            with trio.move_on_after(RESET_S, shield=True):
                await stream.reset()
            return
        done = trio.Event()
        self._inbound[peer] = self._inbound.get(peer, 0) + 1
        self._nursery.start_soon(self._serve_stream, self._frames(stream, peer), stream.muxed_conn, done)
        await done.wait()

    async def _serve_stream(self, frames: FrameStream, connection: Any, done: trio.Event) -> None:
        current: IncomingExchange | None = None

        def deliver(frame: Frame, size: int) -> None:
            nonlocal current
            is_over = current is None or current.ended
            if is_over and isinstance(frame, Request | Ask):
                if not self._lets_request(frames.peer):
                    raise WireError("too many requests")
                current = IncomingExchange(frames, frame, inbox_bytes_max=self._frame_bytes_max)
                nursery.start_soon(self._serve_call, current, frame, connection)
            elif current is None:
                raise WireError(f"t: {type(frame).__name__} came outside of any exchange")
            else:
                current.deliver(frame, size)

        try:
            async with trio.open_nursery() as nursery:
                await frames.run(deliver)
                nursery.cancel_scope.cancel()
        finally:
            self._inbound[frames.peer] -= 1
            if not self._inbound[frames.peer]:
                del self._inbound[frames.peer]
            done.set()

    async def _serve_call(self, call: IncomingExchange, opening: Request | Ask, connection: Any) -> None:
        with self._call_over(connection):
            await call.serve(self._sink, opening)

    @contextmanager
    def _call_over(self, connection: Any) -> Iterator[None]:
        key = id(connection)
        self._calls_over[key] += 1
        try:
            yield
        finally:
            self._calls_over[key] -= 1
            if not self._calls_over[key]:
                del self._calls_over[key]

    async def _open(self, peer: PeerId, pool: _Pool) -> _Outgoing:
        opening = _Opening()
        self._nursery.start_soon(self._run_opened, peer, pool, opening)
        try:
            await opening.done.wait()
        except trio.Cancelled:
            opening.abandoned = True
            if opening.stream is not None:
                self._keep(pool, opening.stream)
            raise
        if opening.stream is None:
            if pool.calls.value == self._config.streams_per_peer_max - 1 and not pool.idle:
                self._pools.pop(peer, None)  # nobody else calls it: it may be a stranger
            raise PeerLostError(opening.error)
        return opening.stream

    async def _run_opened(self, peer: PeerId, pool: _Pool, opening: _Opening) -> None:
        """Open a stream, hand it over, and be its owner until it breaks."""
        try:
            stream = await self._open_stream(peer)
            opening.stream = _Outgoing(self._frames(stream, peer), connection=stream.muxed_conn)
        except PeerLostError as error:
            opening.error = str(error)
        finally:
            opening.done.set()
        if opening.stream is None:
            return
        if opening.abandoned:
            self._keep(pool, opening.stream)
        await opening.stream.frames.run(opening.stream.deliver)

    def _keep(self, pool: _Pool, stream: _Outgoing) -> None:
        pool.idle = [other for other in pool.idle if not other.frames.reason]
        if len(pool.idle) >= self._config.idle_streams_per_peer_max:
            stream.frames.lose("enough idle streams")
        elif not stream.frames.reason:
            pool.idle.append(stream)

    def _frames(self, stream: Any, peer: PeerId) -> FrameStream:
        return FrameStream(
            QuickStream(stream),
            peer=peer,
            frame_bytes_max=self._frame_bytes_max,
            unfinished=self._unfinished,
            refuse=self._refuse,
        )

    def _refuse(self, peer: PeerId, reason: str) -> None:
        self._sink.dropped("request", peer, reason)
