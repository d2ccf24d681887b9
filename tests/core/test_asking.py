"""Whom to ask for the true wait, and how long a target may have a request wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peerinfer.config import RoutingConfig
from peerinfer.core.asking import RECENT_S, WAIT_TIMES, margin_s, wait_at_most_s, worth_asking
from peerinfer.core.policies import Candidate
from tests.core.swarm import ME, A, B, C, D

CONFIG = RoutingConfig(ask_above_round_trips=10.0)


def candidate(peer: str, *, wait_s: float = 0.0, prefill_s: float = 1.0, busy: float = 0.0) -> Candidate:
    """A node 10 ms away that has been busy for this share of the time."""
    rtt_s = 0.0 if peer == ME else 0.01
    cost_s = rtt_s + wait_s + prefill_s
    age_s = None if peer == ME else 0.1
    recent_s = busy * RECENT_S
    return Candidate(cost_s, peer != ME, wait_s, peer, 0, 0, prefill_s, rtt_s, age_s, recent_s, 0.0)  # type: ignore[arg-type]


def asked(
    *targets: Candidate, was_refused: bool = False, cached: int = 900, config: RoutingConfig = CONFIG
) -> tuple[str, ...]:
    """Of 1,000 tokens, these are cached at all of them."""
    held = [each._replace(expected_cached_tokens=cached) for each in targets]
    return worth_asking(held, config, prompt_tokens=1000, was_refused=was_refused)


def test_idle_nodes_are_not_asked() -> None:
    assert asked(candidate(A), candidate(ME)) == ()


def test_the_best_peers_are_asked_where_a_long_wait_was_told() -> None:
    peers = [candidate(peer, wait_s=0.2) for peer in (A, B, ME, C, D)]
    assert asked(*peers) == (A, B, C)


def test_they_are_asked_where_the_best_was_busy_lately_and_much_is_at_stake() -> None:
    assert asked(candidate(A, busy=0.5), candidate(B)) == (A, B)
    assert asked(candidate(A, busy=0.5, prefill_s=0.1), candidate(B)) == ()


def test_they_are_asked_where_most_of_the_prompt_is_new_and_much_is_at_stake() -> None:
    """Somebody else may just have sent it somewhere."""
    assert asked(candidate(ME), candidate(A), candidate(B), cached=400) == (A, B)
    assert asked(candidate(ME), candidate(A), cached=600) == ()
    assert asked(candidate(ME, prefill_s=0.1), candidate(A, prefill_s=0.1), cached=400) == ()
    coming = candidate(ME)._replace(in_flight_tokens=600)
    assert asked(coming, candidate(A), cached=0) == ()


def test_they_are_asked_after_a_refusal_in_any_case() -> None:
    assert asked(candidate(ME), candidate(A), was_refused=True) == (A,)


def test_nobody_is_asked_where_there_is_no_peer_or_asking_is_off() -> None:
    assert asked(candidate(ME, wait_s=9.0), was_refused=True) == ()
    off = replace(CONFIG, ask_peers_max=0)
    assert asked(candidate(A, wait_s=9.0), was_refused=True, config=off) == ()


def test_a_target_may_have_a_request_wait_until_the_next_best_would_be_faster() -> None:
    best, second, third = candidate(A, prefill_s=0.2), candidate(ME), candidate(B, wait_s=2.0)
    assert wait_at_most_s(best, (best, second, third)) == pytest.approx(0.8)


def test_what_was_expected_and_a_round_trip_is_granted_in_any_case() -> None:
    """Such as to a node that was chosen for being the least busy of equals."""
    chosen, cheaper = candidate(A, wait_s=0.1), candidate(ME)
    assert wait_at_most_s(chosen, (chosen, cheaper)) == pytest.approx(WAIT_TIMES * 0.1 + 0.01)


def test_the_only_target_may_take_its_time() -> None:
    only = candidate(A)
    assert wait_at_most_s(only, (only,)) is None


def test_with_every_refusal_it_takes_more_to_leave_this_node() -> None:
    ranking = [candidate(A), candidate(ME, prefill_s=0.4)]
    assert margin_s(CONFIG, ranking, refused=0) == CONFIG.forward_margin_s
    assert margin_s(CONFIG, ranking, refused=2) == pytest.approx(CONFIG.forward_margin_s + 0.4)
    assert margin_s(CONFIG, ranking[:1], refused=2) == CONFIG.forward_margin_s, "this node cannot serve"
