"""Frames without an end take a bounded part of a node's memory, and nobody's whole frames pay for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from peerinfer.config import UNFINISHED_BYTES_MIN
from peerinfer.core.frame_codec import encode_frame
from peerinfer.core.frames import EndFrame, Request
from peerinfer.core.types import PeerId
from peerinfer.overlay.framing import with_length
from peerinfer.overlay.libp2p import LibP2POverlay
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.streams import REQUEST_PROTOCOL
from peerinfer.overlay.unfinished import Unfinished
from tests.contract.overlay_worlds import LibP2PWorld, Peer, until
from tests.contract.test_overlay_contract import SOON_S, request, start_linked
from tests.overlay.peer_process import FRAME_BYTES_MAX
from tests.overlay.raw_host import raw_host

MEGABYTE = 1_000_000


@dataclass(eq=False)
class Stream:
    """A holder of what it is told."""

    peer: PeerId
    book: Unfinished
    unfinished_bytes: int = 0
    lost: list[str] = field(default_factory=list)

    def hold(self, count: int) -> None:
        self.unfinished_bytes = count
        self.book.note(self)

    def lose(self, reason: str) -> None:
        self.lost.append(reason)
        self.hold(0)


class Refusals(list[PeerId]):
    """Whose streams were given up."""

    def __call__(self, peer: PeerId, reason: str) -> None:
        assert reason == "too many bytes of unfinished frames"
        self.append(peer)


def book(per_peer: int, total: int) -> tuple[Unfinished, Refusals]:
    refused = Refusals()
    return Unfinished(per_peer_bytes_max=per_peer, bytes_max=total, refused=refused), refused


def test_who_is_over_its_bound_loses_the_stream_that_holds_the_most() -> None:
    unfinished, refused = book(100, 1000)
    small, large, other = (Stream(PeerId(peer), unfinished) for peer in ("a", "a", "b"))
    other.hold(100)
    large.hold(60)
    small.hold(40)
    assert not refused
    small.hold(41)
    assert (small.lost, len(large.lost), other.lost, refused) == ([], 1, [], ["a"])
    small.hold(100)
    assert not small.lost, "what is given up makes room"


def test_all_together_are_bounded_at_the_cost_of_the_peer_that_holds_the_most() -> None:
    unfinished, refused = book(100, 150)
    a, b, c = (Stream(PeerId(peer), unfinished) for peer in "abc")
    a.hold(90)
    b.hold(50)
    c.hold(10)
    assert not refused
    c.hold(11)
    assert (len(a.lost), b.lost, c.lost, refused) == (1, [], [], ["a"])


def test_what_is_finished_takes_no_part() -> None:
    """Method: many times the bound, in frames that come to their end one after the other."""
    unfinished, refused = book(100, 100)
    streams = [Stream(PeerId(f"{number % 3}"), unfinished) for number in range(9)]
    for _ in range(50):
        for stream in streams:
            stream.hold(70)
            stream.hold(100)
            stream.hold(0)
    assert not refused
    assert not unfinished._holders
    assert not unfinished._peers


async def test_a_peer_that_ends_no_frame_is_bounded_and_the_longest_body_still_travels(
    world: LibP2PWorld,
) -> None:
    """Method: an attacker leaves a frame of nearly the greatest length open on each of 40 streams; meanwhile
    and afterwards another peer sends one of that length."""
    bounds = {"unfinished_bytes_per_peer_max": UNFINISHED_BYTES_MIN}
    a = await world.start(**bounds)  # type: ignore[arg-type]
    b = await world.start(join=[a.address])
    await until(lambda: b.linked_to(a.id), within_s=SOON_S)
    most = 0
    async with raw_host() as attacker:
        await attacker.connect(a.address)
        for _ in range(40):
            stream = await attacker.open(a.id, REQUEST_PROTOCOL)
            try:
                await stream.write(with_length(bytes(FRAME_BYTES_MAX))[:-1])
            except STREAM_ERRORS:
                continue
            most = max(most, kept_bytes(a))
        await until(lambda: a.sink.drops["request"] >= 5, within_s=SOON_S)
        assert set(a.sink.reasons) == {"too many bytes of unfinished frames"}
        assert 30 * MEGABYTE < most <= UNFINISHED_BYTES_MIN
        await send_longest(b, a.id)
    await until(lambda: kept_bytes(a) == 0, within_s=SOON_S)


async def test_a_lost_stream_takes_its_unfinished_frame_along(world: LibP2PWorld) -> None:
    """Else a peer that reconnects would run out of room that nobody has."""
    a, _ = await start_linked(world)
    for _ in range(3):
        async with raw_host() as attacker:
            await attacker.connect(a.address)
            stream = await attacker.open(a.id, REQUEST_PROTOCOL)
            await stream.write(with_length(bytes(FRAME_BYTES_MAX))[:100_000])
            await until(lambda: kept_bytes(a) > 50_000, within_s=SOON_S)
            await stream.reset()
        await until(lambda: kept_bytes(a) == 0, within_s=SOON_S)
    assert not a.sink.drops


def kept_bytes(peer: Peer) -> int:
    """Of unfinished frames, by the node's own book."""
    assert isinstance(peer.overlay, LibP2POverlay)
    assert peer.overlay._swarm is not None
    book = peer.overlay._swarm.streams._unfinished
    assert book._bytes == sum(book._peers.values())
    return book._bytes


async def send_longest(sender: Peer, to: PeerId) -> None:
    """A request in a frame as long as any may be, answered to its end."""
    opening = request("longest")
    assert isinstance(opening, Request)
    room = FRAME_BYTES_MAX - len(encode_frame(opening)) - 16
    longest = Request(
        id=opening.id,
        fingerprint=opening.fingerprint,
        endpoint=opening.endpoint,
        body=b"x" * room,
        time_left_s=opening.time_left_s,
        prompt_pages=opening.prompt_pages,
        expected_cached_tokens=opening.expected_cached_tokens,
    )
    with trio.fail_after(SOON_S):
        async with sender.overlay.open_call(to) as call:
            await call.send(longest)
            while not isinstance(await call.receive(), EndFrame):
                pass
