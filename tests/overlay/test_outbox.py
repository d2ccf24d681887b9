"""Frames of one connection: sent together when they come together, whole whatever is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.network.connection.exceptions import RawConnError

from peerinfer.overlay.outbox import COLLECTED_BYTES_MAX, WRITE_STUCK_S, Outbox, outbox_of


class Secured:
    """Noise: keeps what is sent, when it may."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.takes = trio.Event()
        self.takes.set()
        self.closed = False
        self.error: Exception | None = None

    async def write(self, data: bytes) -> None:
        await self.takes.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(data)

    async def close(self) -> None:
        self.closed = True


class Muxed:
    """The multiplexer."""

    def __init__(self) -> None:
        self.secured_conn = Secured()
        self.event_shutting_down = trio.Event()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Outbox, Secured, trio.Nursery]]:
    muxed = Muxed()
    outbox = outbox_of(muxed)
    assert outbox_of(muxed) is outbox
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        yield outbox, muxed.secured_conn, nursery
        nursery.cancel_scope.cancel()


async def test_frames_of_one_turn_are_one_message() -> None:
    """Of many streams, in their order; and the next turn's are not waited for."""
    async with running() as (outbox, secured, _):
        for frame in (b"a", b"b", b"c"):
            outbox.put(frame)
        await trio.testing.wait_all_tasks_blocked()
        outbox.put(b"d")
        await trio.testing.wait_all_tasks_blocked()
        assert secured.sent == [b"abc", b"d"]


async def test_write_returns_once_its_frame_is_out_behind_what_was_put() -> None:
    """Method: the socket takes nothing at first; two write at once, and a frame was put before."""
    async with running() as (outbox, secured, nursery):
        secured.takes = trio.Event()
        outbox.put(b"a")
        await trio.testing.wait_all_tasks_blocked()
        written: list[bytes] = []

        async def write(frame: bytes) -> None:
            await outbox.write(frame)
            written.append(frame)

        nursery.start_soon(write, b"b")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(write, b"c")
        await trio.testing.wait_all_tasks_blocked()
        assert written == []
        secured.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(written) == [b"b", b"c"]
        assert secured.sent == [b"a", b"bc"]


async def test_writes_without_a_running_writer_send_themselves() -> None:
    """The last goodbye, when the connection's own tasks have ended."""
    muxed = Muxed()
    await Outbox(muxed).write(b"goodbye")
    assert muxed.secured_conn.sent == [b"goodbye"]


async def test_cancelled_write_leaves_no_hole() -> None:
    """S1. Method: cancel a write that waits behind another, and one that is at it; everything is whole."""
    async with running() as (outbox, secured, nursery):
        secured.takes = trio.Event()
        scopes = [trio.CancelScope(), trio.CancelScope()]
        for scope, frame in zip(scopes, (b"a", b"b"), strict=True):
            nursery.start_soon(write_within, scope, outbox, frame)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(outbox.write, b"c")
        for scope in scopes:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        secured.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert secured.sent == [b"a", b"bc"]


async def test_cancelled_write_is_sent_though_nobody_else_writes() -> None:
    """It may have been taken by then; half a message would be worse than one too many."""
    async with running() as (outbox, secured, nursery):
        secured.takes = trio.Event()
        nursery.start_soon(outbox.write, b"a")
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()
        nursery.start_soon(write_within, scope, outbox, b"b")
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        secured.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert secured.sent == [b"a", b"b"]


async def test_one_message_is_sent_at_a_time() -> None:
    """Whoever sends takes turns with the rest. Method: many write and put while every send takes a turn."""
    async with running() as (outbox, secured, nursery):
        at_once = 0

        async def write(data: bytes) -> None:
            nonlocal at_once
            at_once += 1
            assert at_once == 1
            await trio.lowlevel.checkpoint()
            secured.sent.append(data)
            at_once -= 1

        secured.write = write  # type: ignore[method-assign]
        for number in range(60):
            if number % 3:
                nursery.start_soon(outbox.write, b"%02d" % number)
            else:
                outbox.put(b"%02d" % number)
            if not number % 7:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        sent = b"".join(secured.sent)
        assert sorted(sent[at : at + 2] for at in range(0, len(sent), 2)) == [b"%02d" % n for n in range(60)]


async def write_within(scope: trio.CancelScope, outbox: Outbox, frame: bytes) -> None:
    with scope:
        await outbox.write(frame)


async def test_socket_that_takes_nothing_has_lost_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After `WRITE_STUCK_S`; whoever writes is told, and nothing is taken any more."""
    async with running() as (outbox, secured, _):
        secured.takes = trio.Event()
        begun_at = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await outbox.write(b"a")
        assert trio.current_time() - begun_at == pytest.approx(WRITE_STUCK_S)
        assert secured.closed
        assert outbox.is_full
        with pytest.raises(RawConnError):
            await outbox.write(b"b")
        assert secured.sent == []


async def test_failed_send_ends_the_connection_for_all_who_wait() -> None:
    """Noise has counted a message that never went out: none that follows could be read."""
    async with running() as (outbox, secured, nursery):
        secured.takes = trio.Event()
        outbox.put(b"a")
        await trio.testing.wait_all_tasks_blocked()
        told: list[Exception] = []

        async def write() -> None:
            try:
                await outbox.write(b"b")
            except RawConnError as error:
                told.append(error)

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        secured.error = OSError("reset")
        secured.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(told) == 1
        assert secured.closed
        assert secured.sent == []


async def test_outbox_that_is_full_takes_nothing_without_waiting() -> None:
    """Until something went out: what waits for a slow peer is bounded."""
    async with running() as (outbox, secured, _):
        secured.takes = trio.Event()
        outbox.put(b"a")
        await trio.testing.wait_all_tasks_blocked()
        outbox.put(b"x" * (COLLECTED_BYTES_MAX + 1))
        assert outbox.is_full
        secured.takes.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not outbox.is_full


async def test_slow_socket_is_not_given_up_for_how_many_streams_send(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It takes 64 KiB a second, and forty streams have a whole frame each for it.

    All of it in one piece would have to be through within `WRITE_STUCK_S`, at any speed.
    """
    async with running() as (outbox, secured, nursery):

        async def write(data: bytes) -> None:
            await trio.sleep(len(data) / 65_536)
            secured.sent.append(data)

        secured.write = write  # type: ignore[method-assign]
        for number in range(40):
            nursery.start_soon(outbox.write, bytes([number]) * 65_536)
        await trio.sleep(50)
        assert sorted(b"".join(secured.sent)[::65_536]) == list(range(40))
        assert not secured.closed
        assert outbox._frames == []
        assert outbox._size == 0


async def test_no_failure_of_a_write_is_survived() -> None:
    """Of whatever kind: who waits would wait for ever, and Noise has counted the message."""
    async with running() as (outbox, secured, _):
        secured.error = ValueError("of no kind that the library tells")
        with pytest.raises(ValueError, match="of no kind"):
            await outbox.write(b"a")
        assert secured.closed
        assert outbox.is_full
