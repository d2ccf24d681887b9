"""The policy `cost`: whether a prompt is forwarded, and when its prefix is bought instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.frames import ASKED_PAGES_MAX
from peerinfer.core.router import OwnState, Prompt
from peerinfer.core.types import Holding
from tests.core.swarm import (
    IDLE,
    LONG,
    ME,
    OTHER,
    PAGE,
    A,
    B,
    Swarm,
    chain,
    message,
    order,
    prompt,
    queue,
    serve,
)


def test_a_peer_with_the_prefix_serves_when_that_saves_time() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG[:32])
    ranking = swarm.rank(prompt(LONG, extra_tokens=12))
    best = ranking.targets[0]
    assert (best.peer, best.expected_cached_tokens, best.matched_pages) == (A, 512, 32)
    assert (best.rtt_s, best.wait_s, best.snapshot_age_s) == (0.002, 0.0, 0.0)
    assert best.cost_s == pytest.approx(0.002 + 0.028, abs=1e-3)
    assert ranking.reason == "peer saves 0.51 s"


def test_a_prompt_is_not_forwarded_when_the_round_trip_costs_more_than_the_prefill() -> None:
    """The paper's table at 200 ms: routed 0.785 s, alone 0.323 s. The cost policy must not lose."""
    swarm = Swarm()
    swarm.hear(A, LONG[:20], round_trip_s=0.4)
    assert order(swarm.rank(prompt(LONG[:20]))) == [ME, A]


def test_a_saving_below_the_margin_is_not_worth_a_forward() -> None:
    swarm = Swarm(config=Config(routing=RoutingConfig(forward_margin_s=0.3)))
    swarm.hear(A, LONG[:18])
    ranking = swarm.rank(prompt(LONG[:20]))
    assert order(ranking) == [ME, A]
    assert ranking.reason == "no peer is cheaper by the margin"


def test_a_long_queue_at_the_specialist_outweighs_its_cache() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, load=queue(600))
    swarm.hear(B, LONG[:20])
    assert order(swarm.rank(prompt(LONG))) == [B, ME, A]


def test_what_was_forwarded_a_moment_ago_counts_before_the_peer_tells() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG[:32])
    swarm.view.forwarded(A, 600)
    assert order(swarm.rank(prompt(LONG))) == [ME, A]
    swarm.view.settled(A, 600)
    assert order(swarm.rank(prompt(LONG))) == [A, ME]


def test_what_was_decided_to_be_served_here_counts_before_the_engine_tells() -> None:
    swarm = Swarm(own=LONG)
    swarm.hear(A, LONG)
    swarm.view.forwarded(ME, 600)
    assert order(swarm.rank(prompt(LONG))) == [A, ME]


def test_what_is_in_flight_to_a_node_will_be_cached_there_when_its_turn_comes() -> None:
    """Its wait has the prefill of it, so the next request with the same prefix must not count it again."""
    swarm = Swarm()
    swarm.hear(A)
    asked = prompt(LONG)
    before = {each.peer: each for each in swarm.rank(asked).targets}
    for node in (A, ME):
        swarm.view.forwarded(node, 641, LONG[:20])
        option = next(each for each in swarm.rank(asked).targets if each.peer == node)
        assert (option.expected_cached_tokens, option.in_flight_tokens) == (0, 320)
        assert option.prefill_s == pytest.approx(before[node].prefill_s - 0.32)
        assert all(each.in_flight_tokens == 0 for each in swarm.rank(prompt(chain(5, 9))).targets)
        swarm.view.ended(node, 641, LONG[:20], was_settled=False)
        again = next(each for each in swarm.rank(asked).targets if each.peer == node)
        assert again == before[node]


def test_what_an_asked_peer_says_it_has_goes_before_what_is_known_of_it() -> None:
    """Whether it has more by now, or less; and what it computes for others is worth a wait, too."""
    swarm = Swarm()
    swarm.hear(A, LONG[:10])
    swarm.hear(B)
    told = {A: Holding(4, 4), B: Holding(8, 20)}
    by_peer = {each.peer: each for each in swarm.rank(prompt(LONG), told=told).targets}
    assert (by_peer[A].matched_pages, by_peer[A].expected_cached_tokens) == (4, 64)
    assert (by_peer[A].in_flight_tokens, by_peer[ME].matched_pages) == (0, 0)
    assert (by_peer[B].expected_cached_tokens, by_peer[B].in_flight_tokens) == (128, 192)
    assert order(swarm.rank(prompt(LONG), told=told))[0] == B
    assert order(swarm.rank(prompt(LONG)))[0] == A


def test_of_a_very_long_prompt_the_pages_that_were_not_asked_for_are_not_taken_for_missing() -> None:
    """Goal: who has all of it is not passed over for having been asked. Method: a prompt of twice as many
    pages as are asked for, all of which one peer has; it says so of those, and then that it has lost some."""
    swarm = Swarm()
    pages = tuple(range(1, 2 * ASKED_PAGES_MAX + 1))
    long = Prompt(keys=pages, tokens=len(pages) * PAGE + 1)
    swarm.hear(A, pages)
    all_asked = Holding(ASKED_PAGES_MAX, ASKED_PAGES_MAX)
    for told, expected in ((all_asked, len(pages)), (Holding(9, 9), 9)):
        (option,) = (each for each in swarm.rank(long, told={A: told}).targets if each.peer == A)
        assert (option.matched_pages, option.in_flight_tokens) == (expected, 0)
    swarm.hear(B)
    (option,) = (each for each in swarm.rank(long, told={B: all_asked}).targets if each.peer == B)
    assert option.matched_pages == ASKED_PAGES_MAX, "more than was known"


def test_nothing_is_forwarded_over_a_link_that_was_never_measured() -> None:
    """It may be two seconds long. Unless nobody here can serve, or the client or the policy wants it."""
    swarm = Swarm()
    swarm.view.apply_snapshot(A, message(LONG, seq=1), now=swarm.now)
    ranking = swarm.rank(prompt(LONG))
    assert order(ranking) == [ME]
    assert ranking.skipped == ((A, "its round trip is not measured yet"),)
    assert order(swarm.rank(prompt(LONG), policy="longest-prefix")) == [A, ME]
    assert order(swarm.rank(prompt(LONG), target=A)) == [A]
    loading = OwnState(load=IDLE, ready=False, reuse_tokens=1)
    assert order(swarm.rank(prompt(LONG), own=loading))[0] == A
    swarm.view.observe_round_trip(A, 0.002)
    assert order(swarm.rank(prompt(LONG)))[0] == A


def test_a_slower_peer_is_chosen_only_for_what_its_cache_is_worth_there() -> None:
    """At a fifth of the rate, the last 60 tokens take as long as 300 here."""
    swarm = Swarm(rents=False)
    slow = replace(IDLE, prefill_tokens_per_s=200.0)
    swarm.hear(A, LONG[:15], load=slow)
    assert order(swarm.rank(prompt(LONG[:18], extra_tokens=8)))[0] == A, "240 tokens of 296 are cached"
    assert order(swarm.rank(prompt(LONG[:20], extra_tokens=8)))[0] == ME, "240 tokens of 328 are cached"


def test_a_told_wait_shrinks_while_nothing_new_is_heard() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, load=queue(600))
    swarm.now += 0.5
    best = swarm.rank(prompt(LONG)).targets[0]
    assert (best.peer, best.wait_s) == (A, pytest.approx(0.1))
    swarm.now += 0.4
    assert swarm.rank(prompt(LONG)).targets[0].wait_s == 0.0


def test_a_load_is_as_old_as_its_way_here() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, round_trip_s=0.2)
    swarm.hear(A, LONG, load=queue(600))
    waits = {target.peer: target.wait_s for target in swarm.rank(prompt(LONG)).targets}
    assert waits[A] == pytest.approx(0.5)


def test_a_peer_that_has_the_prefix_is_paid_rent_until_buying_is_cheaper() -> None:
    """528 tokens cost 0.528 s here, or a round trip of 0.3 s there, each time; then they are here."""
    swarm = Swarm(config=Config(routing=RoutingConfig(rent_prior_uses=0.0)))
    swarm.hear(A, LONG, round_trip_s=0.3)
    assert [serve(swarm, LONG) for _ in range(4)] == [A, A, ME, ME]


def test_a_prefix_behind_a_long_round_trip_is_computed_here_at_once() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, round_trip_s=0.3)
    ranking = swarm.rank(prompt(LONG))
    assert (order(ranking), ranking.reason) == ([ME, A], "bought: from now on the prefix is here")


def test_without_a_ledger_what_is_cheaper_now_is_taken_for_ever() -> None:
    swarm = Swarm(rents=False)
    swarm.hear(A, LONG, round_trip_s=0.3)
    assert {serve(swarm, LONG) for _ in range(10)} == {A}


def test_there_is_nothing_to_rent_where_serving_here_is_cheaper_in_any_case() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG[:16], round_trip_s=0.3)
    assert swarm.rank(prompt(LONG)).tenancy is None


def test_nothing_is_bought_while_this_node_is_so_busy_that_forwarding_costs_nothing() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, round_trip_s=0.3)
    ranking = swarm.rank(prompt(LONG), own=replace(swarm.own, load=queue(1000)))
    assert (order(ranking), ranking.tenancy) == ([A, ME], None)


def test_what_must_be_evicted_adds_to_the_price_as_far_as_it_is_missed() -> None:
    swarm = Swarm(own=OTHER)
    swarm.hear(A, LONG, round_trip_s=0.01)
    plain = swarm.rank(prompt(LONG)).tenancy
    swarm.view.own.remove(OTHER[:-3:-1])
    swarm.view.own.insert(OTHER[:-1], now=swarm.now)
    dear = swarm.rank(prompt(LONG)).tenancy
    swarm.config = Config(routing=RoutingConfig(rent_prices_evictions=False))
    assert plain is not None
    assert dear is not None
    assert dear.price_s == pytest.approx(1.5 * plain.price_s)
    assert swarm.rank(prompt(LONG)).tenancy == plain
