"""Virtual time is repeatable, also with the trio that is installed; a new one may break it."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import trio

from peerinfer.sim import runtime
from peerinfer.sim.runtime import run_virtual

RACE = """
import trio
from peerinfer.sim.runtime import run_virtual

async def main():
    order = []

    async def racer(name):
        for _ in range(3):
            await trio.sleep(0.5)
            order.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abcdefgh":
            nursery.start_soon(racer, name)
    return "".join(order)

print(run_virtual(main, seed=7), run_virtual(main, seed=7), run_virtual(main, seed=8))
"""


def test_tasks_run_in_an_order_that_the_seed_alone_decides() -> None:
    """Goal: trio's draw is ours. Method: eight tasks that wake at once, in processes of other hashes."""
    lines = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", RACE], env=environment, capture_output=True, text=True, check=True
        )
        lines.add(ran.stdout)
    assert len(lines) == 1, "the same seeds gave other orders in other processes"
    first, again, other = lines.pop().split()
    assert first == again != other


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def main() -> float:
        await trio.sleep(3600.0)
        return trio.current_time()

    assert run_virtual(main, seed=0) == 3600.0


def test_timeouts_and_sleeps_end_in_the_order_of_their_times() -> None:
    async def main() -> list[str]:
        order: list[str] = []

        async def wait(seconds: float, name: str) -> None:
            with trio.move_on_after(seconds):
                await trio.sleep_forever()
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 0.3, "last")
            nursery.start_soon(wait, 0.1, "first")
            nursery.start_soon(wait, 0.2, "second")
        return order

    assert run_virtual(main, seed=0) == ["first", "second", "last"]


def test_a_world_that_is_stuck_says_so() -> None:
    """Goal: no hanging for ever. Method: the clock alone, since what it raises leaves trio in pieces."""
    clock = runtime.VirtualClock()
    assert clock.deadline_to_sleep_time(1.0) == 0
    for _ in range(runtime.IDLE_ROUNDS_MAX):
        clock.deadline_to_sleep_time(math.inf)
    with pytest.raises(RuntimeError, match="nothing will ever happen again"):
        clock.deadline_to_sleep_time(math.inf)


def test_frozen_tasks_stand_still_and_are_late() -> None:
    """Goal: freezing holds a task and all below it, and nobody else. Method: two clocks, one frozen."""

    async def main() -> tuple[list[float], list[float]]:
        frozen: list[float] = []
        free: list[float] = []
        roots: list[trio.lowlevel.Task] = []

        async def tick(ticks: list[float]) -> None:
            for second in range(1, 7):
                await trio.sleep_until(second)
                ticks.append(trio.current_time())

        async def node() -> None:
            roots.append(trio.lowlevel.current_task())
            async with trio.open_nursery() as below:
                below.start_soon(tick, frozen)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node)
            nursery.start_soon(tick, free)
            await trio.sleep(2.5)
            runtime.freeze(roots[0])
            await trio.sleep(2.0)
            runtime.thaw(roots[0])
        return frozen, free

    frozen, free = run_virtual(main, seed=0)
    assert free == [1, 2, 3, 4, 5, 6]
    assert frozen == [1, 2, 4.5, 4.5, 5, 6]


def test_two_that_are_frozen_thaw_one_by_one() -> None:
    async def main() -> list[str]:
        woken: list[str] = []
        roots: dict[str, trio.lowlevel.Task] = {}

        async def node(name: str) -> None:
            roots[name] = trio.lowlevel.current_task()
            await trio.sleep(1)
            woken.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node, "a")
            nursery.start_soon(node, "b")
            await trio.sleep(0.5)
            for root in roots.values():
                runtime.freeze(root)
            await trio.sleep(5)
            assert woken == []
            runtime.thaw(roots["b"])
            await trio.sleep(1)
            assert woken == ["b"]
            runtime.thaw(roots["a"])
        return woken

    assert run_virtual(main, seed=0) == ["b", "a"]
