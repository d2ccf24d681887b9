"""What every overlay promises (node/ports.py), tested on real hosts and in the simulation alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from peerinfer.core.frames import Accept, Ask, Cancel, Data, EndFrame, Frame, Request, Wait
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Call, PeerLostError
from tests.contract.overlay_worlds import Peer, World, open_world, until
from tests.overlay.peer_process import DATA_FRAMES

Clock = trio.abc.Clock | None

SOON_S = 10.0
"""Real machines may be five times slower than the one this was written on; virtual time costs nothing."""


@pytest.fixture(params=["simulated", "delayed", "libp2p"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(kind: str) -> Clock:
    """Virtual time for the simulation; no clock of its own for real hosts.

    Each test names this fixture itself: that is how pytest-trio finds it.
    """
    return trio.testing.MockClock(autojump_threshold=0) if kind != "libp2p" else None


@pytest.fixture
async def world(kind: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(kind, tmp_path) as world:
        yield world


async def start_linked(world: World, count: int = 2) -> list[Peer]:
    """Peers that joined through the first one's address and are all linked."""
    peers = [await world.start()]
    for _ in range(count - 1):
        peers.append(await world.start(join=[peers[0].address]))
    for peer in peers:
        others = [other.id for other in peers if other is not peer]
        await until(lambda peer=peer, others=others: peer.linked_to(*others), within_s=SOON_S)  # type: ignore[misc]
    return peers


def request(name: str, *, body: bytes = b"{}", endless: bool = False) -> Request:
    """An opening; the peer never ends an exchange for a prompt of no pages."""
    return Request(
        id=name,
        endpoint="chat",
        body=body,
        fingerprint=bytes(16),
        prompt_pages=0 if endless else 1,
        expected_cached_tokens=0,
        time_left_s=60.0,
    )


async def answer(peer: Peer, to: PeerId, opening: Request | Ask) -> list[Frame]:
    """Open a call, send, and take all frames up to the terminal one."""
    frames: list[Frame] = []
    async with peer.overlay.open_call(to) as call:
        await call.send(opening)
        while not frames or not isinstance(frames[-1], EndFrame | Wait):
            frames.append(await call.receive())
    return frames


async def drain(call: Call) -> None:
    """Take frames until there are none to come."""
    while True:
        await call.receive()


async def test_peers_find_each_other_through_one_address(world: World, clock: Clock) -> None:
    """Goal: a full mesh of four who knew one address. Method: wait for every pair's link."""
    peers = await start_linked(world, 4)
    assert all(len(peer.overlay.links()) == 3 for peer in peers)
    await until(
        lambda: all(link.addrs for peer in peers for link in peer.overlay.links().values()),
        within_s=SOON_S,
    )


async def test_a_late_joiner_is_linked_to_all_within_five_seconds(world: World, clock: Clock) -> None:
    peers = await start_linked(world, 4)
    late = await world.start(join=[peers[1].address])
    await until(lambda: late.linked_to(*(peer.id for peer in peers)), within_s=5.0)


async def test_whom_a_node_was_told_to_join_and_does_not_reach_it_can_say(world: World, clock: Clock) -> None:
    """Method: it joins a peer that has left, then one that is there too."""
    gone = await world.start()
    address = gone.address
    await world.stop(gone)
    there = await world.start()
    late = await world.start(join=[address, there.address])
    await until(lambda: late.linked_to(there.id), within_s=SOON_S)
    await until(lambda: "not tried" not in str(late.overlay.standing().unreached), within_s=SOON_S)
    assert set(late.overlay.standing().unreached) == {address}


async def test_links_are_told_once_at_both_ends(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    await until(lambda: a.sink.up == [b.id] and b.sink.up == [a.id], within_s=SOON_S)
    await world.stop(b)
    await until(lambda: a.sink.down == [b.id], within_s=SOON_S)
    assert not a.overlay.links()


async def test_a_message_reaches_all_others_under_its_authors_name(world: World, clock: Clock) -> None:
    """Goal: gossip is complete and authenticated. Method: repeat until the mesh of the topic has formed."""
    peers = await start_linked(world, 4)
    author, others = peers[2], [peer for peer in peers if peer is not peers[2]]
    with trio.fail_after(SOON_S):
        while not all(other.sink.messages for other in others):
            await author.overlay.publish(b"the tree")
            await trio.sleep(0.2)
    for other in others:
        assert set(other.sink.messages) == {(author.id, b"the tree")}
    assert not author.sink.messages


async def test_a_large_message_arrives_whole(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    payload = bytes(range(256)) * 1024
    with trio.fail_after(SOON_S):
        while not b.sink.messages:
            await a.overlay.publish(payload)
            await trio.sleep(0.3)
    assert b.sink.messages[0] == (a.id, payload)


async def test_a_call_brings_back_its_frames_in_order(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    frames = await answer(a, b.id, request("r1", body=b"x" * 4096))
    assert [type(frame) for frame in frames] == [Accept, *[Data] * DATA_FRAMES, EndFrame]
    assert {frame.id for frame in frames} == {"r1"}


async def test_an_ask_is_answered_with_the_wait(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    (wait,) = await answer(b, a.id, Ask(id="a1", prompt_tokens=10, expected_cached_tokens=0))
    assert isinstance(wait, Wait)


async def test_many_calls_run_at_once_both_ways(world: World, clock: Clock) -> None:
    """Goal: calls share the link without mixing. Method: 60 at once, each with an id of its own."""
    a, b = await start_linked(world)
    complete: list[str] = []

    async def ask(peer: Peer, to: PeerId, name: str) -> None:
        frames = await answer(peer, to, request(name, body=b"x" * 2000))
        assert {frame.id for frame in frames} == {name}
        complete.append(name)

    with trio.fail_after(3 * SOON_S):
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(ask, a, b.id, f"a{number}")
                nursery.start_soon(ask, b, a.id, f"b{number}")
    assert len(complete) == 60


async def test_cancelled_callers_break_no_other_call(world: World, clock: Clock) -> None:
    """Goal: a cancel costs its own call only. Method: 80 calls at once, every other one is cut short."""
    a, b = await start_linked(world)
    complete = 0

    async def ask(number: int) -> None:
        nonlocal complete
        cut_after_s = 0.0005 * number if number % 2 else SOON_S
        with trio.move_on_after(cut_after_s):
            await answer(a, b.id, request(f"r{number}", body=b"x" * 3000))
            complete += not number % 2

    with trio.fail_after(3 * SOON_S):
        async with trio.open_nursery() as nursery:
            for number in range(80):
                nursery.start_soon(ask, number)
    assert complete == 40
    assert len(await answer(a, b.id, request("after"))) == DATA_FRAMES + 2
    assert not a.sink.down
    assert not b.sink.down


async def test_a_cancelled_receive_loses_no_frame(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    frames: list[Frame] = []
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1"))
        with trio.fail_after(SOON_S):
            while not frames or not isinstance(frames[-1], EndFrame):
                with trio.move_on_after(0.0003):
                    frames.append(await call.receive())
    assert [type(frame) for frame in frames] == [Accept, *[Data] * DATA_FRAMES, EndFrame]


async def test_leaving_a_call_early_cancels_the_work_at_the_peer(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1", endless=True))
        assert isinstance(await call.receive(), Accept)
    await until(lambda: b.sink.cancelled == 1 and b.sink.serving == 0, within_s=SOON_S)
    assert len(await answer(a, b.id, request("r2"))) == DATA_FRAMES + 2


async def test_a_cancel_frame_reaches_whoever_serves(world: World, clock: Clock) -> None:
    """Goal: both sides see the frames of their exchange only. Method: cancel an endless one, then leave."""
    a, b = await start_linked(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1", endless=True))
        for _ in range(DATA_FRAMES + 1):
            await call.receive()
        await call.send(Cancel(id="r1"))
    await until(lambda: b.sink.serving == 0, within_s=SOON_S)
    assert not b.sink.drops


async def test_a_cancel_that_crosses_the_end_harms_nobody(world: World, clock: Clock) -> None:
    """Goal: a late cancel is nobody's fault. Method: send it after the end was sent, before it is read."""
    a, b = await start_linked(world)
    async with a.overlay.open_call(b.id) as call:
        await call.send(request("r1"))
        assert isinstance(await call.receive(), Accept)
        await until(lambda: b.sink.serving == 0, within_s=SOON_S)
        await call.send(Cancel(id="r1"))
        while not isinstance(await call.receive(), EndFrame):
            pass
        await trio.sleep(0.1)
    assert len(await answer(a, b.id, request("r2"))) == DATA_FRAMES + 2
    assert not b.sink.drops


async def test_a_peer_that_crashes_during_a_call_is_lost_promptly(world: World, clock: Clock) -> None:
    a = await world.start()
    mortal = await world.start_mortal(join=[a.address])
    await until(lambda: a.linked_to(mortal.id), within_s=SOON_S)
    async with a.overlay.open_call(mortal.id) as call:
        await call.send(request("r1", endless=True))
        assert isinstance(await call.receive(), Accept)
        mortal.kill()
        with trio.fail_after(3.0), pytest.raises(PeerLostError):
            await drain(call)
    await until(lambda: a.sink.down == [mortal.id], within_s=3.0)


async def test_a_stranger_cannot_be_called_or_pulled(world: World, clock: Clock) -> None:
    (a,) = await start_linked(world, 1)
    stranger = PeerId("12D3KooWRj8fEjQGsHqpUMhXsHsE8NVXqWVGGGKRmYZAJAv1KsAH")
    with pytest.raises(PeerLostError):
        await a.overlay.pull(stranger)
    with pytest.raises(PeerLostError):
        async with a.overlay.open_call(stranger):
            pass


async def test_a_pull_brings_the_peers_hello(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    assert await a.overlay.pull(b.id) == b"hello " * 5000


async def test_a_bug_in_whoever_serves_costs_one_call(world: World, caplog: pytest.LogCaptureFixture) -> None:
    a, b = await start_linked(world)
    with pytest.raises(PeerLostError):
        await answer(a, b.id, request("r1", body=b"raise"))
    assert "a bug in whoever serves" in caplog.text
    assert len(await answer(a, b.id, request("r2"))) == DATA_FRAMES + 2


async def test_learned_addresses_are_dialled(world: World, clock: Clock) -> None:
    """Goal: an address in a snapshot makes a link. Method: tell one peer of another it cannot know."""
    a, b = await world.start(), await world.start()
    a.overlay.learn(b.id, [addr.rsplit("/p2p/", 1)[0] for addr in b.overlay.addrs()])
    await until(lambda: a.linked_to(b.id) and b.linked_to(a.id), within_s=SOON_S)


async def test_a_call_that_was_never_opened_leaves_no_trace(world: World, clock: Clock) -> None:
    a, b = await start_linked(world)
    with suppress(PeerLostError):
        async with a.overlay.open_call(b.id):
            pass
    assert len(await answer(a, b.id, request("r1"))) == DATA_FRAMES + 2
    assert not b.sink.drops


async def test_what_goes_wrong_in_the_body_of_run_comes_out_as_it_is(world: World, clock: Clock) -> None:
    """Goal: callers need no `except*`. Method: raise inside of the innermost nursery of them all."""
    with pytest.raises(ZeroDivisionError):
        await world.fail_within_run(ZeroDivisionError())
