"""Peers that are killed, frozen and restarted: real processes, real signals, real time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.contract.overlay_worlds import LibP2PWorld, Peer, PeerProcess, until
from tests.contract.test_overlay_contract import SOON_S, answer, request
from tests.overlay.peer_process import DATA_FRAMES
from tests.overlay.test_hardening import free_port

Start = Callable[..., PeerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a peer process on a data directory of that name, with options."""
    with ExitStack() as stack:

        def start(name: str, *options: str) -> PeerProcess:
            process = PeerProcess(tmp_path / name, *options)
            stack.callback(process.close)
            return process

        yield start


async def start_linked(world: LibP2PWorld, start: Start, *options: str) -> tuple[Peer, PeerProcess]:
    """A peer here and one in a process that joined it."""
    here = await world.start()
    there = await trio.to_thread.run_sync(start, "there", "--join", here.address, *options)
    await until(lambda: here.linked_to(there.id), within_s=SOON_S)
    return here, there


async def seconds_until(condition: Callable[[], bool], *, within_s: float) -> float:
    """How long it took."""
    began = trio.current_time()
    await until(condition, within_s=within_s)
    return trio.current_time() - began


async def test_a_killed_peer_is_noticed_at_once(world: LibP2PWorld, start: Start) -> None:
    here, there = await start_linked(world, start)
    there.kill()
    assert await seconds_until(lambda: here.sink.down == [there.id], within_s=SOON_S) < 3


async def test_a_freeze_of_two_seconds_costs_nothing(world: LibP2PWorld, start: Start) -> None:
    """Situation 20. Method: freeze for 2 s during a call, then wait out ping interval and timeout."""
    here, there = await start_linked(world, start)
    async with here.overlay.open_call(there.id) as call:
        await call.send(request("r1", endless=True))
        await call.receive()
        there.freeze()
        await trio.sleep(2.0)
        there.thaw()
        for _ in range(DATA_FRAMES):
            await call.receive()
        await trio.sleep(3.5)
        assert not here.sink.down
    assert len(await answer(here, there.id, request("r2"))) == DATA_FRAMES + 2


async def test_a_longer_freeze_is_noticed_and_healed(world: LibP2PWorld, start: Start) -> None:
    """Goal: down within ping interval and timeout, and back after the thaw, on its own."""
    here, there = await start_linked(world, start)
    there.freeze()
    assert await seconds_until(lambda: here.sink.down == [there.id], within_s=SOON_S) < 8
    await trio.sleep(1)
    there.thaw()
    await until(lambda: here.linked_to(there.id), within_s=SOON_S)
    assert len(await answer(here, there.id, request("r1"))) == DATA_FRAMES + 2


async def test_a_peer_that_restarts_with_its_identity_is_back_in_seconds(
    world: LibP2PWorld, start: Start
) -> None:
    here, there = await start_linked(world, start)
    there.kill()
    await until(lambda: here.sink.down == [there.id], within_s=SOON_S)
    again = await trio.to_thread.run_sync(start, "there", "--join", here.address)
    assert again.id == there.id
    assert await seconds_until(lambda: here.linked_to(again.id), within_s=SOON_S) < 5
    assert len(await answer(here, again.id, request("r1"))) == DATA_FRAMES + 2


async def test_a_peer_that_knows_nobody_any_more_is_dialled_by_the_others(
    world: LibP2PWorld, start: Start, tmp_path: Path
) -> None:
    """Goal: the first node of a swarm may restart. Method: nothing to join by; the same port."""
    port = await free_port()
    listen = ("--listen", f"/ip4/127.0.0.1/tcp/{port}")
    first = await trio.to_thread.run_sync(start, "first", *listen)
    here = await world.start(join=[first.address])
    await until(lambda: here.linked_to(first.id), within_s=SOON_S)
    first.kill()
    await until(lambda: here.sink.down == [first.id], within_s=SOON_S)
    again = await trio.to_thread.run_sync(start, "first", *listen)
    assert await seconds_until(lambda: here.linked_to(again.id), within_s=SOON_S) < 5


async def test_known_peers_bring_a_node_back_without_the_one_it_joined_by(
    world: LibP2PWorld, start: Start
) -> None:
    """Situation 9. Method: c joined by a, learned of b, stops; a is gone when c comes back."""
    a = await world.start()
    b = await world.start(join=[a.address])
    c = await world.start(join=[a.address])
    await until(lambda: c.linked_to(a.id, b.id) and b.linked_to(c.id), within_s=SOON_S)
    await until(lambda: all(link.addrs for link in c.overlay.links().values()), within_s=SOON_S)
    await world.stop(c)
    await world.stop(a)
    c = await world.restart(c)
    await until(lambda: c.linked_to(b.id), within_s=SOON_S)
