"""The world itself: requests go the production path, and faults do what they are named after."""

from __future__ import annotations

import random
from array import array
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from peerinfer.core.estimate import Estimate
from peerinfer.core.estimate_index import Difference, EstimateIndex
from peerinfer.engine.simulated_language import expected_answer
from peerinfer.node.node import Node
from peerinfer.sim import shared_reading
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.world import Conditions, NodeSpec, Outcome, World, WorldSpec


def prompt(seed: int, length: int = 320) -> list[int]:
    """A prompt of a real vocabulary that shares nothing with one of another seed."""
    draw = random.Random(seed)
    return [draw.randrange(50_000) for _ in range(length)]


def in_world(
    test: Callable[[World], Awaitable[None]], *, size: int = 3, delay_s: float = 0.01, seed: int = 0
) -> None:
    """Run a test in a settled world."""

    async def main() -> None:
        spec = WorldSpec(seed=seed, nodes=(NodeSpec(),) * size, conditions=Conditions(delay_s=delay_s))
        async with World(spec) as world:
            await world.settle()
            await test(world)

    run_virtual(main, seed=seed)


def test_a_request_is_answered_where_its_prefix_is_and_its_time_is_accounted_for() -> None:
    async def test(world: World) -> None:
        shared = prompt(1)
        first = await world.request(entry=0, tokens=shared + prompt(2, 20), max_tokens=3, target=1)
        second = await world.request(entry=0, tokens=shared + prompt(3, 20), max_tokens=3)
        assert (first.served_by, second.served_by, second.route) == (1, 1, "forwarded")
        assert second.expected_cached_tokens == second.cached_tokens == 320
        assert second.output == tuple(expected_answer(shared + prompt(3, 20), 3))
        assert second.error is None
        assert abs(second.engine_s - (0.01 + 20 / 480 + 3 / 40)) < 1e-9
        assert abs(second.network_s - 2 * 0.01) < 1e-9
        assert second.attempts == (("node-0001", "served"),)

    in_world(test)


def test_a_node_that_crashed_takes_its_clients_with_it_and_comes_back_empty() -> None:
    async def test(world: World) -> None:
        outcomes: list[Outcome] = []

        async def client() -> None:
            outcomes.append(await world.request(entry=1, tokens=prompt(1), max_tokens=400))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            await trio.sleep(2)
            world.crash(1)
        assert outcomes[0].error == "the entry node died"
        assert 0 < len(outcomes[0].output) < 400
        refused = await world.request(entry=1, tokens=prompt(1))
        assert refused.error == "connection refused"
        await world.restart(1)
        await world.settle()
        assert world.nodes[1].engine.cache.check() is None
        assert len(world.nodes[1].engine.cache) == 0

    in_world(test)


def test_a_frozen_node_does_nothing_and_is_late_when_it_thaws() -> None:
    """Goal: freezing is SIGSTOP. Method: a request lasts as long as the freeze, and peers suspect it."""

    async def test(world: World) -> None:
        outcomes: list[Outcome] = []

        async def client() -> None:
            outcomes.append(await world.request(entry=1, tokens=prompt(1), max_tokens=4, target=1))

        async with trio.open_nursery() as nursery:
            world.freeze(1)
            nursery.start_soon(client)
            await trio.sleep(20)
            assert world.nodes[0].node.peers()["peers"][0]["state"] == "suspect"  # type: ignore[index]
            assert not outcomes
            world.thaw(1)
        assert outcomes[0].error is None
        assert outcomes[0].latency_s > 20
        await world.settle()

    in_world(test)


def test_a_node_that_left_is_gone_and_one_that_joined_serves() -> None:
    async def test(world: World) -> None:
        world.leave(2)
        await trio.sleep(1)
        assert not world.nodes[2].alive
        fourth = await world.join(NodeSpec())
        await world.settle()
        outcome = await world.request(entry=0, tokens=prompt(1), target=fourth.index)
        assert outcome.served_by == 3

    in_world(test)


def test_one_seed_gives_one_history_and_another_seed_another() -> None:
    async def history(seed: int) -> list[Outcome]:
        conditions = Conditions(delay_s=0.01, jitter_s=0.02, loss=0.1)
        async with World(WorldSpec(seed=seed, nodes=(NodeSpec(),) * 3, conditions=conditions)) as world:
            await world.settle()
            return [await world.request(entry=turn % 3, tokens=prompt(turn % 4)) for turn in range(12)]

    assert run_virtual(history, 1, seed=1) == run_virtual(history, 1, seed=1)
    assert run_virtual(history, 1, seed=1) != run_virtual(history, 2, seed=2)


def test_nodes_that_are_linked_from_the_start_hear_of_each_other_without_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the start of a thousand nodes is not a million pulls. Method: count those of thirty."""
    size, pulls = 30, 0
    hello = Node.hello

    def counted(self: Node) -> bytes:
        nonlocal pulls
        pulls += 1
        return hello(self)

    monkeypatch.setattr(Node, "hello", counted)

    async def main() -> None:
        async with World(WorldSpec(nodes=(NodeSpec(),) * size, linked=True)) as world:
            await world.settle()
            assert trio.current_time() < 1.0
            assert all(len(place.overlay.connections) == size - 1 for place in world.nodes)

    run_virtual(main, seed=1)
    assert pulls < size * size / 10


def test_what_a_message_changed_is_computed_once_for_all_who_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: count the comparisons, and that all have the tree in the end, our own inserts beside it."""
    size, compared, applied = 8, 0, 0
    difference, replace = shared_reading.difference, EstimateIndex.replace

    def counted(before: array[int], keys: Sequence[int]) -> Difference:
        nonlocal compared
        compared += 1
        return difference(before, keys)

    def noted(self: EstimateIndex, estimate: Estimate, keys: Sequence[int]) -> None:
        nonlocal applied
        applied += 1
        replace(self, estimate, keys)

    monkeypatch.setattr(shared_reading, "difference", counted)
    monkeypatch.setattr(EstimateIndex, "replace", noted)

    async def main() -> None:
        async with World(WorldSpec(nodes=(NodeSpec(),) * size, linked=True)) as world:
            await world.settle()
            for turn in range(20):
                await world.request(entry=turn % size, tokens=prompt(turn), target=(turn + 1) % size)
            await trio.sleep(10)
            for owner in world.nodes:
                pages = owner.node.context.view.own.ordered_keys()
                for place in world.nodes:
                    if place is not owner:
                        assert place.node.context.view.estimated_pages(owner.peer_id) == pages

    run_virtual(main, seed=1)
    assert applied > 20 * (size - 1)
    assert compared < applied / 4
