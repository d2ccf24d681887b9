"""Frames that are sent together are written together, and a peer that takes nothing holds senders up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from peerinfer.core.frame_codec import decode_frame
from peerinfer.core.frames import Data
from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay.frame_stream import UNSENT_BYTES_MAX, FrameStream
from peerinfer.overlay.framing import Deframer
from peerinfer.overlay.intake import Feed
from peerinfer.overlay.unfinished import Unfinished


class Peer:
    """The library's stream: keeps what is written, when it may take it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.takes = trio.Event()
        self.takes.set()
        self.has_room = False

    async def receive(self, _feed: Feed) -> None:
        await trio.sleep_forever()

    def put(self, message: bytes) -> bool:
        if self.has_room:
            self.writes.append(message)
        return self.has_room

    async def write(self, data: bytes) -> None:
        await self.takes.wait()
        self.writes.append(data)

    async def reset(self) -> None:
        pass


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Peer, FrameStream]]:
    peer = Peer()
    unfinished = Unfinished(per_peer_bytes_max=1 << 20, bytes_max=1 << 20, refused=lambda *_: None)
    frames = FrameStream(
        peer, peer=PeerId("p"), frame_bytes_max=1 << 20, unfinished=unfinished, refuse=lambda *_: None
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.run, lambda _frame, _size: None)
        yield peer, frames
        nursery.cancel_scope.cancel()


def data(number: int, size: int = 10) -> Data:
    return Data(id=f"r{number}", sse_json=b"x" * size)


async def test_frames_that_come_together_are_one_write() -> None:
    """Encrypting and framing a write costs more than a frame; none is held back for another."""
    async with opened() as (peer, frames):
        for number in range(5):
            await frames.send(data(number))
        await trio.testing.wait_all_tasks_blocked()
        await frames.send(data(5))
        await trio.testing.wait_all_tasks_blocked()
        assert len(peer.writes) == 2
        received = list(Deframer(bytes_max=1 << 20).feed(b"".join(peer.writes)))
        assert [decode_frame(payload).id for payload in received] == [f"r{number}" for number in range(6)]


async def test_frame_that_need_not_wait_goes_out_at_once_unless_another_waits() -> None:
    """Their order is the senders'. Method: room, no room, and room again while the second is written."""
    async with opened() as (peer, frames):
        peer.has_room = True
        await frames.send(data(0))
        assert len(peer.writes) == 1
        peer.has_room = False
        peer.takes = trio.Event()
        await frames.send(data(1))
        await trio.testing.wait_all_tasks_blocked()
        peer.has_room = True
        await frames.send(data(2))
        assert len(peer.writes) == 1
        peer.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        received = list(Deframer(bytes_max=1 << 20).feed(b"".join(peer.writes)))
        assert [decode_frame(payload).id for payload in received] == ["r0", "r1", "r2"]


async def test_peer_that_takes_nothing_holds_senders_up(autojump_clock: trio.testing.MockClock) -> None:
    """Until it takes something; what waits meanwhile is bounded."""
    async with opened() as (peer, frames):
        peer.takes = trio.Event()
        sent = 0

        async def send_all(nursery: trio.Nursery) -> None:
            nonlocal sent
            for number in range(100):
                await frames.send(data(number, 10_000))
                sent += 1
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, nursery)
            await trio.sleep(1)
            assert sent * 10_000 <= UNSENT_BYTES_MAX + 20_000
            peer.takes.set()
            await trio.sleep_forever()
        assert sent == 100


async def test_sender_that_waits_is_told_of_the_loss(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (peer, frames):
        peer.takes = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose_soon, frames)
            with pytest.raises(PeerLostError, match="as the test wants"):
                await send_for_ever(frames)


async def send_for_ever(frames: FrameStream) -> None:
    while True:
        await frames.send(data(0, 10_000))


async def lose_soon(frames: FrameStream) -> None:
    await trio.sleep(1)
    frames.lose("as the test wants")
