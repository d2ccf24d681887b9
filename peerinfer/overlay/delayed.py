"""An overlay whose messages arrive late: Δ_comm for experiments with real nodes on one machine (paper §4).

It wraps any overlay. Delay happens where a message arrives: a frame is taken off the wire at once, held, and
handed over when it is due, in order, so frames that follow each other closely are all late by one delay and
not by one each. Opening a stream is not delayed, since nodes keep streams open.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio

from peerinfer.core.frames import Ask, Frame, Request
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, Link, Overlay, OverlaySink, PeerLostError, Standing

HELD_FRAMES_MAX = 1024
"""Frames of one call that are under way; a sender that is further ahead waits, as on a real link."""


class DelayedOverlay:
    """See the module.

    Args:
        inner: the overlay that really carries everything.
        delay_s: one way, on average.
        jitter_s: the delay varies evenly by so much in either direction.
    """

    def __init__(self, inner: Overlay, *, delay_s: float, jitter_s: float, seed: int | None = None) -> None:
        assert 0 <= jitter_s <= delay_s
        self._inner = inner
        self._delay_s, self._jitter_s = delay_s, jitter_s
        self._rng = random.Random(seed)
        self._nursery: trio.Nursery

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    @asynccontextmanager
    async def run(self, sink: OverlaySink) -> AsyncIterator[None]:
        error: BaseException | None = None
        async with trio.open_nursery() as self._nursery:
            async with self._inner.run(_DelayedSink(self, sink)):
                try:
                    yield
                except BaseException as caught:
                    error = caught  # a nursery would wrap it into a group; callers expect it as it is
            self._nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    def addrs(self) -> tuple[str, ...]:
        return self._inner.addrs()

    def links(self) -> Mapping[PeerId, Link]:
        return self._inner.links()

    def standing(self) -> Standing:
        return self._inner.standing()

    async def publish(self, payload: bytes) -> None:
        await self._inner.publish(payload)

    @asynccontextmanager
    async def open_call(self, peer: PeerId) -> AsyncIterator[Call]:
        async with self._inner.open_call(peer) as call:
            with self.delayed(call) as delayed:
                yield delayed

    async def pull(self, peer: PeerId) -> bytes:
        await trio.sleep(self.draw_s())
        hello = await self._inner.pull(peer)
        await trio.sleep(self.draw_s())
        return hello

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        self._inner.learn(peer, addrs)

    def draw_s(self) -> float:
        """How long the next message is under way."""
        return self._delay_s + self._rng.uniform(-self._jitter_s, self._jitter_s)

    def start_soon(self, act: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Do something beside everything else, until this overlay stops."""
        self._nursery.start_soon(act, *arguments)

    @contextmanager
    def delayed(self, call: Call) -> Iterator[Call]:
        """The call with its incoming frames delayed, while the block lasts."""
        delayed = _DelayedCall(self, call)
        self.start_soon(delayed.pump)
        try:
            yield delayed
        finally:
            delayed.close()


class _DelayedCall:
    """A call whose frames are taken off the wire by a task of the overlay's."""

    def __init__(self, overlay: DelayedOverlay, inner: Call) -> None:
        self._overlay, self._inner = overlay, inner
        self._scope = trio.CancelScope()
        self._due_at = 0.0
        self._arrived, self._held = trio.open_memory_channel[tuple[float, Frame | PeerLostError]](
            HELD_FRAMES_MAX
        )
        self._next: tuple[float, Frame | PeerLostError] | None = None

    @property
    def peer(self) -> PeerId:
        return self._inner.peer

    async def send(self, frame: Frame) -> None:
        await self._inner.send(frame)

    async def receive(self) -> Frame:
        if self._next is None:
            self._next = await self._held.receive()
        due_at, item = self._next
        await trio.sleep_until(due_at)  # cancelled here, the frame stays for the next call
        if isinstance(item, PeerLostError):
            raise item
        self._next = None
        return item

    async def pump(self) -> None:
        """Take frames off the wire until the call is lost or left."""
        with self._scope:
            while True:
                item: Frame | PeerLostError
                try:
                    item = await self._inner.receive()
                except PeerLostError as error:
                    item = error
                self._due_at = max(self._due_at, trio.current_time() + self._overlay.draw_s())
                await self._arrived.send((self._due_at, item))
                if isinstance(item, PeerLostError):
                    return

    def close(self) -> None:
        """Nobody reads on."""
        self._scope.cancel()


class _DelayedSink:
    """Hands on what arrives, later."""

    def __init__(self, overlay: DelayedOverlay, sink: OverlaySink) -> None:
        self._overlay, self._sink = overlay, sink

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        self._overlay.start_soon(self._gossip, peer, payload)

    async def _gossip(self, peer: PeerId, payload: bytes) -> None:
        await trio.sleep(self._overlay.draw_s())
        self._sink.gossip(peer, payload)

    def link_up(self, peer: PeerId) -> None:
        self._sink.link_up(peer)

    def link_down(self, peer: PeerId) -> None:
        self._sink.link_down(peer)

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        with self._overlay.delayed(call) as delayed:
            await trio.sleep(self._overlay.draw_s())
            await self._sink.serve_call(delayed, opening)

    def hello(self) -> bytes:
        return self._sink.hello()

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        self._sink.dropped(kind, peer, reason)
