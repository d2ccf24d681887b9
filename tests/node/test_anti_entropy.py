"""Snapshots, silence and push-back in a swarm in virtual time (paper §3, case by case)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from peerinfer.config import AntiEntropyConfig, Config, RoutingConfig
from peerinfer.core.types import PeerId
from peerinfer.sim.network import Conditions
from tests.node.swarm import Member, World, ask, completion, text, world

PAPER = Config(routing=RoutingConfig(policy="longest-prefix"))


def _status(member: Member, *path: str) -> object:
    value: object = member.node.status()
    for name in path:
        value = value[name]  # type: ignore[index]
    return value


async def _until(condition: object, within_s: float) -> float:
    """Virtual seconds until a condition holds."""
    started = trio.current_time()
    with trio.fail_after(within_s):
        while not condition():  # type: ignore[operator]
            await trio.sleep(0.01)
    return trio.current_time() - started


async def test_a_change_is_known_to_all_within_one_round(autojump_clock: MockClock) -> None:
    """§3.5: staleness is bounded by Δ_poll."""
    async with world(4) as swarm:
        await ask(swarm[0], completion(text(1), policy="local"))
        took = await _until(
            lambda: all(member.peers()[swarm[0].peer_id]["pages"] == 30 for member in swarm.members[1:]), 5.0
        )
        assert took <= Config().anti_entropy.poll_interval_s + 0.1


async def test_lost_broadcasts_cost_rounds_and_nothing_else(autojump_clock: MockClock) -> None:
    """§3.4: with half of all gossip lost, estimates equal trees once the trees are quiet."""
    async with world(3) as swarm:
        for a in swarm.members:
            for b in swarm.members:
                if a is not b:
                    swarm.network.set_conditions(a.peer_id, b.peer_id, Conditions(loss=0.5))
        for seed in range(10):
            await ask(swarm[seed % 3], completion(text(seed), policy="local"))
        await swarm.all_know_all(within_s=30.0)
        versions = {member.peer_id: member.node._context.view.own.version for member in swarm.members}
        await _until(
            lambda: all(
                peer["tree_version"] == versions[PeerId(peer_id)]
                for member in swarm.members
                for peer_id, peer in member.peers().items()
            ),
            30.0,
        )


async def test_a_late_joiner_knows_every_tree_at_once(autojump_clock: MockClock) -> None:
    """It pulls; it does not wait for the next complete round. Then the node that taught it dies."""
    async with world(2) as swarm:
        await ask(swarm[1], completion(text(1), policy="local"))
        await trio.sleep(3.0)  # only heartbeats now
        late = await swarm.start()

        def knows_the_tree() -> bool:  # a heartbeat tells the number of its pages, and not the pages
            peer = late.peers().get(swarm[1].peer_id, {})
            return peer.get("pages") == 30 and int(peer["tree_version"]) >= 0  # type: ignore[call-overload]

        assert await _until(knows_the_tree, 5.0) < 1.0
        swarm.crash(swarm[0])
        answer = await ask(late, completion(text(1), policy="longest-prefix"))
        assert (answer.reply.served_by, answer.end.cached_tokens) == (swarm[1].peer_id, 464)


async def test_an_engine_restart_empties_the_estimate_and_starts_a_new_life(
    autojump_clock: MockClock,
) -> None:
    """Situation: the engine restarts, its node does not. Nobody sends for a cache that is gone."""
    async with world(2, config=PAPER) as swarm:
        await ask(swarm[1], completion(text(1), policy="local"))
        await swarm.all_know_all()
        before = swarm[0].peers()[swarm[1].peer_id]
        swarm[1].engine.crash(down_s=3.0)
        took = await _until(lambda: swarm[0].peers()[swarm[1].peer_id]["pages"] == 0, 5.0)
        assert took < 0.1
        after = swarm[0].peers()[swarm[1].peer_id]
        assert after["incarnation"] > before["incarnation"]  # type: ignore[operator]
        assert after["state"] == "loading"
        assert (await ask(swarm[0], completion(text(1)))).reply.route == "local"
        await _until(lambda: swarm[0].state_of(swarm[1]) == "alive", 10.0)
        assert (await ask(swarm[1], completion(text(1), policy="local"))).end.cached_tokens == 0


async def test_silence_makes_a_peer_suspect_and_its_word_makes_it_alive_again(
    autojump_clock: MockClock,
) -> None:
    """§3.3: absence of broadcasts marks a peer; a healed partition forgives it. The others never doubt it."""
    async with world(3) as swarm:
        swarm.network.partition(swarm[0].peer_id, swarm[1].peer_id)
        await _until(lambda: swarm[0].state_of(swarm[1]) == "suspect", 10.0)
        assert swarm[2].state_of(swarm[1]) == "alive"
        swarm.network.heal(swarm[0].peer_id, swarm[1].peer_id)
        await _until(lambda: swarm[0].state_of(swarm[1]) == "alive", 10.0)


async def test_a_dead_peer_is_forgotten_and_not_resurrected(autojump_clock: MockClock) -> None:
    """Situation: a node dies, the others gossip on; nobody brings it back."""
    async with world(3) as swarm:
        dead = swarm[2]
        swarm.crash(dead)
        await _until(lambda: swarm[0].state_of(dead) == "suspect", 10.0)
        await _until(lambda: dead.peer_id not in swarm[0].peers(), Config().anti_entropy.forget_after_s + 10)
        await trio.sleep(60.0)
        assert all(dead.peer_id not in member.peers() for member in swarm.members[:2])


async def test_a_restarted_node_is_back_with_an_empty_estimate(autojump_clock: MockClock) -> None:
    """Paper §2, crash recovery: same identity, new incarnation, empty cache."""
    async with world(3) as swarm:
        await ask(swarm[2], completion(text(1), policy="local"))
        await swarm.all_know_all()
        swarm.crash(swarm[2])
        await _until(lambda: swarm[0].state_of(swarm[2]) == "suspect", 10.0)
        again = await swarm.start(2)
        took = await _until(lambda: swarm[0].state_of(again) == "alive", 10.0)
        assert took < 5.0
        assert swarm[0].peers()[again.peer_id]["pages"] == 0


async def test_a_node_that_lost_its_incarnation_goes_above_what_peers_remember(
    autojump_clock: MockClock,
) -> None:
    """The file is gone and the clock jumped back: peers take all it says for old news, until it asks them."""
    async with world(2) as swarm:
        await ask(swarm[1], completion(text(1), policy="local"))
        for _ in range(5):
            swarm[1].engine.crash()
            await trio.sleep(1.0)
        swarm.crash(swarm[1])
        await _until(lambda: swarm[0].state_of(swarm[1]) == "suspect", 10.0)
        swarm._lives.clear()
        again = await swarm.start(1)
        await _until(lambda: swarm[0].state_of(again) == "alive", 60.0)


async def test_a_leaving_node_says_so(autojump_clock: MockClock) -> None:
    """A clean end publishes draining, so that nobody forwards into a closing door."""
    async with world(2) as swarm:
        swarm[1].scope.cancel()
        took = await _until(lambda: swarm[0].state_of(swarm[1]) in {"draining", "suspect"}, 5.0)
        assert took < 0.2


async def test_push_back_goes_out_at_once_and_ends_when_the_queue_is_short(autojump_clock: MockClock) -> None:
    """§3.2: beyond 2 x slots queued, peers pause within a round; below half, they come back."""
    async with world(2, config=PAPER, slots=1, prefill_tokens_per_s=480.0) as swarm:
        entry, target = swarm.members
        await ask(target, completion(text(99), policy="local"))
        await ask(target, completion(text(98), policy="local"))
        await swarm.all_know_all()
        async with trio.open_nursery() as nursery:
            for seed in range(5):
                nursery.start_soon(ask, target, completion(text(seed), policy="local"))
            took = await _until(lambda: entry.state_of(target) == "paused", 5.0)
            assert took < 0.1
            during = await ask(entry, completion(text(99)))
            assert during.reply.route == "local"
            decision = entry.node.decision(during.reply.request_id)
            assert decision is not None
            assert decision["skipped"][0]["peer_id"] == target.peer_id  # type: ignore[index]
        took = await _until(lambda: entry.state_of(target) == "alive", 15.0)
        assert took < 5.0
        assert (await ask(entry, completion(text(98)))).reply.route == "forwarded"


async def test_garbage_is_counted_by_kind_and_changes_nothing(autojump_clock: MockClock) -> None:
    async with world(2) as swarm:
        before = swarm[0].peers()
        for garbage in (b"", b"\xff" * 1000, b"\xa0", b"\x81" * 10_000):
            swarm[0].node.gossip(swarm[1].peer_id, garbage)
            await trio.sleep(0.01)
        assert _status(swarm[0], "dropped", "gossip") == 4
        after = swarm[0].peers()
        assert after[swarm[1].peer_id]["seq"] >= before[swarm[1].peer_id]["seq"]  # type: ignore[operator]
        assert after[swarm[1].peer_id]["state"] == "alive"


async def test_a_node_that_was_frozen_suspects_nobody(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock jumped: everybody seems silent until the next message, which takes a while."""
    async with world(3, delay_s=0.2) as swarm:
        monkeypatch.setattr(autojump_clock, "autojump_threshold", float("inf"))
        autojump_clock.jump(30.0)  # no task ran meanwhile, on any node
        monkeypatch.setattr(autojump_clock, "autojump_threshold", 0.0)
        await trio.lowlevel.checkpoint()
        for _ in range(100):
            await trio.sleep(0.05)
            states = {peer["state"] for member in swarm.members for peer in member.peers().values()}
            assert states == {"alive"}


async def test_nodes_of_another_model_share_the_overlay_and_nothing_else(autojump_clock: MockClock) -> None:
    """A fingerprint splits a swarm silently; `peers` names the field that differs."""
    async with world(2) as swarm:
        other = await swarm.start(page_size=32)
        await _until(lambda: swarm[0].node.peers()["foreign"], 5.0)
        addrs = list(other_addrs(swarm, other))
        assert swarm[0].node.peers()["foreign"] == [
            {"peer_id": other.peer_id, "addrs": addrs, "link": "direct", "differs": ["page_size"]}
        ]
        await trio.sleep(5.0)
        assert other.peer_id not in swarm[0].peers()


def other_addrs(swarm: World, other: Member) -> tuple[str, ...]:
    return swarm[0].overlay.links()[other.peer_id].addrs


async def test_an_idle_swarm_beats_slowly_and_a_busy_one_at_the_poll_interval(
    autojump_clock: MockClock,
) -> None:
    """A snapshot costs by its period, not by the request (situation: 200 requests/s)."""
    config = replace(Config(), routing=RoutingConfig(policy="local"))
    async with world(2, config=config, overhead_s=0.0, slots=64, prefill_tokens_per_s=1e6) as swarm:

        def seq() -> int:
            return int(swarm[1].peers()[swarm[0].peer_id]["seq"])  # type: ignore[call-overload]

        await trio.sleep(5.0)
        start = seq()
        await trio.sleep(20.0)
        assert 8 <= seq() - start <= 11
        start = seq()
        async with trio.open_nursery() as nursery:
            for number in range(2000):
                nursery.start_soon(ask, swarm[0], completion(text(number % 7), max_tokens=1))
                await trio.sleep(0.005)
        assert seq() - start <= 2 * 10 / 0.5


async def test_a_node_that_falls_idle_keeps_the_promise_of_its_last_busy_round(
    autojump_clock: MockClock,
) -> None:
    """Peers suspect whoever is silent for three promised intervals.

    Method: a poll interval far below the idle interval. Without a last beat in time, the silence until the
    first idle one is longer than what the last busy one promised.
    """
    config = replace(Config(), anti_entropy=AntiEntropyConfig(poll_interval_s=0.05))
    async with world(2, config=config) as swarm:
        await ask(swarm[0], completion(text(1), max_tokens=1))
        for _ in range(60):
            await trio.sleep(0.05)
            assert [peer["state"] for peer in swarm[1].peers().values()] == ["alive"]
