"""What a prefill costs others: learnt from decisions, nothing where nobody else comes, part of the cost."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.crowding import BUSY_SHARE_MAX, PRICE_MAX, Crowding, others_s
from peerinfer.core.router import OwnState
from peerinfer.core.types import PeerId
from tests.core.swarm import IDLE, LONG, ME, OTHER, A, B, Swarm, order, prompt, queue


def crowded(*, busy: int, nodes: int = 4, prefill_s: float = 0.1, decisions: int = 500) -> Crowding:
    """What is learnt where so many of the nodes are busy at every decision."""
    crowding = Crowding()
    for _ in range(decisions):
        crowding.note(busy_share=busy / nodes, prefill_s=prefill_s)
    return crowding


def test_nothing_is_paid_before_anything_was_seen_and_where_all_nodes_are_idle() -> None:
    assert Crowding().price_per_s() == 0.0
    assert crowded(busy=0).price_per_s() == 0.0
    assert crowded(busy=2, prefill_s=0.0).price_per_s() == 0.0
    assert others_s(10.0, 1.0, 0.0) == 0.0


def test_price_is_the_queues() -> None:
    """c / (1 - c) / s with a quarter of the nodes busy, and 0.1 s for a request."""
    crowding = crowded(busy=1)
    assert crowding.busy_share == pytest.approx(0.25, rel=0.01)
    assert crowding.prefill_s == pytest.approx(0.1)
    assert crowding.price_per_s() == pytest.approx(1 / 3 / 0.1, rel=0.02)
    assert others_s(0.2, 0.05, crowding.price_per_s()) == pytest.approx(0.2 * 0.15 * 10 / 3, rel=0.02)


def test_price_is_bounded_however_crowded_it_is() -> None:
    share = BUSY_SHARE_MAX
    assert crowded(busy=4).price_per_s() == pytest.approx(share / (1 - share) / 0.1)
    assert others_s(3.0, 100.0, 1e9) == 3.0 * PRICE_MAX


def test_first_few_requests_price_little() -> None:
    assert crowded(busy=4, decisions=1).busy_share < 0.15


def test_what_was_seen_is_forgotten() -> None:
    crowding = crowded(busy=4)
    for _ in range(500):
        crowding.note(busy_share=0.0, prefill_s=0.4)
    assert crowding.busy_share < 0.01
    assert crowding.prefill_s == pytest.approx(0.4, rel=0.01)


def test_price_is_what_others_lose_in_a_queue() -> None:
    """Goal: the formula is the world's, where it is not bounded. Method: one server, 2,000 times 50 random
    arrivals, with and without some more work behind the wait it meets; others' delays against the price."""
    rng = random.Random(7)
    rate, service_s, extra_s = 1.0, 0.1, 0.3
    found: list[float] = []
    lost = []
    for _ in range(2000):
        arrivals, at_s = [], 0.0
        for _ in range(50):
            at_s += rng.expovariate(rate)
            arrivals.append(at_s)
        plain, _ = waits(arrivals, service_s, None)
        late, wait_s = waits(arrivals, service_s, (arrivals[30] + 1e-9, extra_s))
        lost.append((sum(late) - sum(plain), wait_s))
        found += [float(wait > 0.0) for wait in plain]
    crowding = Crowding()
    for _ in range(500):
        crowding.note(busy_share=fmean(found), prefill_s=service_s)
    predicted = [others_s(extra_s, wait_s, crowding.price_per_s()) for _, wait_s in lost]
    assert max(predicted) < PRICE_MAX * extra_s
    assert fmean(loss for loss, _ in lost) == pytest.approx(fmean(predicted), rel=0.15)


def waits(
    arrivals: list[float], service_s: float, extra: tuple[float, float] | None
) -> tuple[list[float], float]:
    """Each arrival's wait in a queue of one server, and that of the extra work."""
    free_s, found, own_wait_s = 0.0, [], 0.0
    for at_s in arrivals:
        if extra is not None and at_s > extra[0]:
            own_wait_s = max(0.0, free_s - extra[0])
            free_s = max(free_s, extra[0]) + extra[1]
            extra = None
        found.append(max(0.0, free_s - at_s))
        free_s = max(free_s, at_s) + service_s
    return found, own_wait_s


CROWDED = Config(routing=RoutingConfig(crowding_weight=1.0))
UNPLACED = Config(routing=replace(CROWDED.routing, cold_round_trip_share_max=0.0))


def test_a_second_copy_is_dear_where_others_wait() -> None:
    """This node has the prefix and some work, another one neither: a swarm that is idle otherwise computes it
    there, where half of the nodes are busy it waits here."""
    for busy, first in ((0, A), (2, ME)):
        swarm = Swarm(config=UNPLACED, own=LONG[:16])
        swarm.hear(A)
        swarm.own = OwnState(load=queue(300), ready=True, reuse_tokens=1)
        swarm.view.crowding = crowded(busy=busy)
        assert order(swarm.rank(prompt(LONG)))[0] == first


def test_nobody_waits_for_others_longer_than_here() -> None:
    """Goal: the promise to each client. Method: the holder is busy for as long as computing here takes."""
    swarm = Swarm(config=CROWDED)
    swarm.hear(A, LONG[:32], load=queue(530))
    swarm.view.crowding = crowded(busy=2)
    ranking = swarm.rank(prompt(LONG))
    here, there = (next(each for each in ranking.targets if each.peer == peer) for peer in (ME, A))
    assert there.cost_s < here.cost_s
    assert there.first_token_s > here.first_token_s
    assert order(ranking)[0] == ME


def test_busy_is_who_has_prefill_to_do_of_all_nodes_however_many_there_are() -> None:
    """Not those that have answers to end only; and not of the best few alone, who are the idle ones."""
    swarm = Swarm()
    decoding = replace(IDLE, running=4, slots=4)
    for number in range(60):
        load = (queue(500), decoding, IDLE)[number % 3]
        swarm.hear(PeerId(f"peer-{number:02d}"), load=load)
    assert swarm.rank(prompt(LONG)).busy_share == pytest.approx(20 / 61)
    swarm.own = OwnState(load=queue(5), ready=True, reuse_tokens=1)
    assert swarm.rank(prompt(LONG)).busy_share == pytest.approx(21 / 61)


def test_what_others_pay_is_told_and_is_no_part_of_what_is_expected() -> None:
    swarm = Swarm(config=CROWDED)
    swarm.hear(A, LONG[:32])
    swarm.view.crowding = crowded(busy=2)
    here = next(each for each in swarm.rank(prompt(OTHER)).targets if each.is_me)
    assert here.first_token_s == pytest.approx(here.wait_s + here.prefill_s)
    assert here.others_s == pytest.approx(PRICE_MAX * here.prefill_s)
    assert here.cost_s == pytest.approx(here.first_token_s + here.others_s)


def test_weight_of_zero_leaves_others_out() -> None:
    swarm = Swarm(config=Config(routing=RoutingConfig(crowding_weight=0.0)))
    swarm.hear(A, LONG[:32])
    swarm.view.crowding = crowded(busy=3)
    assert all(each.others_s == 0.0 for each in swarm.rank(prompt(LONG)).targets)


def test_price_of_a_prefix_includes_what_others_pay_and_its_rent_does_not() -> None:
    """Buying makes others wait, too; forwarding costs what it costs."""
    found = []
    for busy in (0, 2):
        swarm = Swarm(config=CROWDED)
        swarm.hear(A, LONG[:32], round_trip_s=0.1)
        swarm.view.crowding = crowded(busy=busy)
        tenancy = swarm.rank(prompt(LONG)).tenancy
        assert tenancy is not None
        found.append(tenancy)
    quiet, busy_too = found
    assert quiet.price_s == pytest.approx(0.512)
    assert busy_too.price_s == pytest.approx((1 + PRICE_MAX) * quiet.price_s, rel=0.15)
    assert busy_too.rent_s == pytest.approx(quiet.rent_s, abs=1e-6)


def test_node_that_is_busy_itself_gives_work_away_the_sooner() -> None:
    swarm = Swarm(config=CROWDED)
    swarm.hear(A, load=IDLE)
    swarm.hear(B, load=IDLE)
    swarm.own = OwnState(load=replace(IDLE, queued_prefill_tokens=3), ready=True, reuse_tokens=1)
    swarm.view.crowding = crowded(busy=0)
    quiet = {each.peer: each.cost_s for each in swarm.rank(prompt(OTHER)).targets}
    swarm.view.crowding = crowded(busy=2, prefill_s=10.0)
    full = {each.peer: each.cost_s for each in swarm.rank(prompt(OTHER)).targets}
    assert full[ME] - full[A] > quiet[ME] - quiet[A]
