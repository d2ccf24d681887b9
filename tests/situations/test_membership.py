"""Situations of nodes that come, go, freeze and come back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from peerinfer.config import AntiEntropyConfig, Config
from peerinfer.core.types import PeerId
from peerinfer.sim.runtime import run_virtual
from peerinfer.sim.world import NodeSpec, WorldSpec
from peerinfer.sim.world import World as VirtualWorld
from tests.node.swarm import ask, completion, text, world


async def test_05_unique_prompts_without_end_leave_bounded_trees(autojump_clock: MockClock) -> None:
    """Trees by the engine's cache, estimates by their pool, decisions by their ring, marks by the peers."""
    config = Config(anti_entropy=AntiEntropyConfig(estimates_bytes_max=100 * 16))
    config = replace(config, request=replace(config.request, decisions_kept=50))
    async with world(3, config=config, capacity_pages=60) as swarm:
        for seed in range(60):
            await ask(swarm[seed % 3], completion(text(seed), max_tokens=1))
        await trio.sleep(2.0)
        for member in swarm.members:
            node = member.node.context
            assert len(node.view.own) <= 60
            assert sum(len(node.view.estimated_pages(peer.peer_id)) for peer in swarm.members) <= 100
            assert len(node.decisions) <= 50


async def test_07_what_a_late_joiner_learned_outlives_its_teacher(autojump_clock: MockClock) -> None:
    async with world(3) as swarm:
        for seed in range(6):
            await ask(swarm[1 + seed % 2], completion(text(seed), policy="local"))
        await swarm.all_know_all()
        late = await swarm.start()
        await swarm.all_know_all()
        swarm.crash(swarm[0])
        await trio.sleep(5.0)
        for seed in range(6):
            answer = await ask(late, completion(text(seed), policy="longest-prefix"))
            assert answer.reply.served_by == swarm[1 + seed % 2].peer_id
            assert answer.end.cached_tokens == answer.reply.expected_cached_tokens == 464


async def test_09_nodes_start_in_any_order_and_serve_alone_meanwhile(autojump_clock: MockClock) -> None:
    """Both were given the address of a peer that is not there; it comes after a minute, and all meet."""
    async with world(0) as swarm:
        last = PeerId("node-2")
        made = swarm.network.overlay
        (address,) = made(last).addrs()

        def joining(peer_id: PeerId, **how: object) -> object:
            return made(peer_id, **{**how, "join": () if peer_id == last else (address,)})  # type: ignore[arg-type]

        swarm.network.overlay = joining  # type: ignore[method-assign,assignment]
        first, second = await swarm.start(), await swarm.start()
        await trio.sleep(60.0)
        for member in (first, second):
            assert member.peers() == {}
            assert (await ask(member, completion(text(1)))).reply.route == "local"
        await swarm.start()
        await swarm.all_know_all(within_s=60.0)


async def test_13_an_engine_that_is_away_for_30_s_costs_its_node_nothing(autojump_clock: MockClock) -> None:
    """It answers through its peers meanwhile, and takes part again after, without a restart."""
    async with world(2) as swarm:
        node = swarm[0]
        node.engine.crash(down_s=30.0)
        await trio.sleep(1.0)
        assert node.node.ready
        for seed in range(5):
            answer = await ask(node, completion(text(seed)))
            assert answer.reply.served_by == swarm[1].peer_id
            assert (await ask(swarm[1], completion(text(10 + seed)))).reply.served_by == swarm[1].peer_id
        await trio.sleep(31.0)
        assert (await ask(node, completion(text(20), policy="local"))).reply.served_by == node.peer_id
        assert swarm[1].state_of(node) == "alive"


async def test_15_a_peer_that_is_down_delays_no_answer_about_the_swarm(autojump_clock: MockClock) -> None:
    """All of it is known already: time does not move while it is told."""
    async with world(3) as swarm:
        swarm.network.partition(swarm[0].peer_id, swarm[2].peer_id)
        swarm.crash(swarm[1])
        for after_s in (0.0, 5.0, 60.0):
            await trio.sleep(after_s)
            started = trio.current_time()
            assert swarm[0].node.models() == ["simulated"]
            assert swarm[0].node.status()["peer_id"] == swarm[0].peer_id
            assert set(swarm[0].peers()) == {swarm[1].peer_id, swarm[2].peer_id}
            assert trio.current_time() == started


@pytest.mark.parametrize("forwarded", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_16_a_client_that_leaves_stops_the_engine_within_a_second(
    autojump_clock: MockClock, phase: str, stream: bool, forwarded: bool
) -> None:
    """Its slot is free and its pages are nobody's; the next request is served at once."""
    async with world(2, slots=1, prefill_tokens_per_s=100.0, decode_tokens_per_s=10.0) as swarm:
        server = swarm[1 if forwarded else 0]
        prompt = text(1, 1600 if phase == "prefill" else 32)
        with trio.move_on_after(5.0):
            await ask(swarm[0], completion(prompt, max_tokens=500, stream=stream, target=server.peer_id))
        left_at = trio.current_time()
        while server.engine.load().running or server.engine.load().queued_prefill_tokens:
            await trio.sleep(0.01)
        assert trio.current_time() - left_at < 1.0
        server.engine.cache.check()
        assert (await ask(server, completion(text(2, 32), max_tokens=1, policy="local"))).text


@pytest.mark.parametrize("frozen_s", [2.0, 20.0])
def test_20_a_freeze_costs_time_and_no_token(frozen_s: float) -> None:
    """SIGSTOP under a stream that it serves: after 2 s it goes on there, after 20 s it has moved; nobody is
    disconnected for good, and nothing is doubled. The world's checkers hold every token."""

    async def main() -> None:
        async with VirtualWorld(WorldSpec(seed=1, nodes=(NodeSpec(),) * 3)) as virtual:
            await virtual.settle()
            tokens, serving = list(range(100)), 1
            await virtual.request(entry=serving, tokens=tokens, max_tokens=1, policy="local")
            await trio.sleep(2.0)
            outcomes = []

            async def client() -> None:
                how = {"tokens": tokens, "max_tokens": 200, "policy": "longest-prefix"}
                outcomes.append(await virtual.request(entry=0, **how))  # type: ignore[arg-type]

            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                await trio.sleep(2.0)
                assert virtual.nodes[serving].engine.load().running == 1
                virtual.freeze(serving)
                await trio.sleep(frozen_s)
                virtual.thaw(serving)
            outcome = outcomes[0]
            assert outcome.error is None
            assert outcome.output_tokens == 200
            assert (len(outcome.attempts) > 1) == (frozen_s > 10.0)
            await virtual.settle()

    run_virtual(main, seed=1)


async def test_restarts_in_a_row_leave_no_ghosts(autojump_clock: MockClock) -> None:
    """Five lives of one node: the others know one peer of that name, in its last life, with its new tree."""
    async with world(3) as swarm:
        for life in range(5):
            await ask(swarm[2], completion(text(life), policy="local"))
            swarm.crash(swarm[2])
            await trio.sleep(0.5)
            await swarm.start(2)
            await swarm.all_know_all()
        for member in swarm.members[:2]:
            assert len(member.peers()) == 2
            assert member.peers()[swarm[2].peer_id]["pages"] == 0
            incarnation = swarm[2].node.status()["incarnation"]
            assert member.peers()[swarm[2].peer_id]["incarnation"] == incarnation


async def test_a_partition_heals_and_a_partial_one_does_not_flicker(autojump_clock: MockClock) -> None:
    """Two halves suspect each other and serve on; where only one link is down, gossip through the third
    keeps both alive to each other, and nobody's state changes back and forth."""
    async with world(3) as swarm:
        a, b, c = swarm.members
        for other in (b, c):
            swarm.network.partition(a.peer_id, other.peer_id)
        await trio.sleep(15.0)
        assert a.state_of(b) == a.state_of(c) == "suspect"
        assert b.state_of(c) == "alive"
        assert (await ask(a, completion(text(1)))).reply.route == "local"
        for other in (b, c):
            swarm.network.heal(a.peer_id, other.peer_id)
        await swarm.all_know_all(within_s=60.0)
        swarm.network.partition(a.peer_id, b.peer_id)
        await trio.sleep(15.0)
        states = []
        for _ in range(200):
            await trio.sleep(0.1)
            states.append(a.state_of(b))
        assert sum(one != other for one, other in pairwise(states)) <= 1
