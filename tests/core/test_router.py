"""Where requests go, policy by policy and case by case (Algorithm 1 line 5; paper §3.2, §3.3; docs)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from peerinfer.core.policies import TARGETS_MAX
from peerinfer.core.router import SKIPPED_MAX, Prompt
from peerinfer.core.types import NodeState, PeerId
from tests.core.swarm import (
    LONG,
    ME,
    OTHER,
    A,
    B,
    C,
    D,
    Swarm,
    order,
    prompt,
    queue,
)

UNTOKENISED = Prompt(keys=(), tokens=None)


# longest-prefix: the paper's rule


def test_longest_prefix_goes_to_the_longest_match() -> None:
    swarm = Swarm(own=LONG[:10])
    swarm.hear(A, LONG[:20])
    swarm.hear(B, LONG[:32])
    ranking = swarm.rank(prompt(LONG, extra_tokens=12), policy="longest-prefix")
    assert order(ranking) == [B, A, ME]
    assert ranking.reason == "longest cached prefix: 512 of 540 tokens"


def test_longest_prefix_goes_there_whatever_it_costs() -> None:
    """To the letter: one page more outweighs a second of round trip and ten of queue."""
    swarm = Swarm(own=LONG[:10])
    swarm.hear(A, LONG[:11], round_trip_s=1.0, load=queue(10_000))
    assert order(swarm.rank(prompt(LONG), policy="longest-prefix")) == [A, ME]


def test_longest_prefix_breaks_ties_by_self_then_load_then_id() -> None:
    swarm = Swarm(own=LONG[:10])
    swarm.hear(A, LONG[:10], load=queue(100))
    swarm.hear(C, LONG[:10])
    swarm.hear(B, LONG[:10])
    assert order(swarm.rank(prompt(LONG), policy="longest-prefix")) == [ME, B, C, A]


def test_longest_prefix_serves_here_what_nobody_has() -> None:
    swarm = Swarm()
    swarm.hear(A, OTHER)
    ranking = swarm.rank(prompt(LONG), policy="longest-prefix")
    assert order(ranking) == [ME, A]
    assert ranking.reason == "no cached prefix anywhere"


# Baselines


def test_local_never_forwards() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG)
    ranking = swarm.rank(prompt(LONG), policy="local")
    assert order(ranking) == [ME]
    assert ranking.reason == "routing is off"


def test_round_robin_takes_every_node_in_turn() -> None:
    swarm = Swarm()
    for peer in (B, A):
        swarm.hear(peer)
    orders = [order(swarm.rank(prompt(LONG), policy="round-robin", turn=turn)) for turn in range(4)]
    assert orders == [[ME, A, B], [A, B, ME], [B, ME, A], [ME, A, B]]


def test_random_takes_every_node_by_its_share_of_the_draw() -> None:
    swarm = Swarm()
    for peer in (B, A):
        swarm.hear(peer)
    firsts = [order(swarm.rank(prompt(LONG), policy="random", draw=n / 9))[0] for n in range(9)]
    assert firsts == [ME, ME, ME, A, A, A, B, B, B]


def test_an_unknown_policy_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'best'.*longest-prefix"):
        Swarm().rank(prompt(LONG), policy="best")


# Whoever the client chose


def test_a_target_that_the_client_chose_is_the_only_one() -> None:
    swarm = Swarm(own=LONG)
    swarm.hear(A)
    swarm.hear(B, state=NodeState.DRAINING)
    assert order(swarm.rank(prompt(LONG), target=A)) == [A]
    assert order(swarm.rank(prompt(LONG), target=ME, policy="random")) == [ME]
    assert order(swarm.rank(prompt(LONG), target=B)) == []


# Without a tokeniser


@pytest.mark.parametrize("policy", ["cost", "longest-prefix"])
def test_an_untokenised_prompt_goes_by_load_alone(policy: str) -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, load=queue(500))
    swarm.hear(B)
    ranking = swarm.rank(UNTOKENISED, policy=policy)
    assert (order(ranking), ranking.reason) == ([ME, B, A], "untokenised")
    busy = replace(swarm.own, load=queue(200))
    assert order(swarm.rank(UNTOKENISED, policy=policy, own=busy)) == [B, ME, A]


# Expectations


@pytest.mark.parametrize(
    ("pages", "tokens", "reuse_tokens", "expected"),
    [
        (32, 540, 1, 512),
        (33, 540, 1, 528),
        (33, 528, 1, 512),
        (33, 540, 64, 512),
        (33, 540, 1024, 0),
        (0, 540, 1, 0),
    ],
)
def test_expected_tokens_leave_out_the_last_and_what_cannot_be_reused(
    pages: int, tokens: int, reuse_tokens: int, expected: int
) -> None:
    swarm = Swarm(own=LONG[:pages])
    swarm.hear(A, LONG[:pages], reuse_tokens=reuse_tokens)
    own = replace(swarm.own, reuse_tokens=reuse_tokens)
    ranking = swarm.rank(Prompt(keys=LONG, tokens=tokens), own=own)
    assert [candidate.expected_cached_tokens for candidate in ranking.targets] == [expected, expected]


def test_an_empty_prompt_can_be_ranked() -> None:
    swarm = Swarm()
    swarm.hear(A)
    assert order(swarm.rank(Prompt(keys=(), tokens=0))) == [ME, A]


# Who is asked


def test_unusable_peers_are_skipped_and_the_reason_told() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, next_within_s=0.2)
    swarm.now += 1.5
    swarm.hear(D, LONG, paused_for_s=2.0)
    swarm.hear(C, LONG, state=NodeState.DRAINING)
    swarm.hear(B, LONG, state=NodeState.LOADING)
    ranking = swarm.rank(prompt(LONG))
    assert order(ranking) == [ME]
    skipped = dict(ranking.skipped)
    assert list(skipped) == [A, B, C, D]
    assert (skipped[A], skipped[B], skipped[C]) == ("suspect: last heard of 1.5 s ago", "loading", "draining")
    assert skipped[D].startswith("paused for another ")
    assert skipped[D].endswith(" s")


def test_a_pause_of_less_than_a_second_is_told_in_milliseconds() -> None:
    """`0.0 s` would say that there is none."""
    swarm = Swarm()
    swarm.hear(D, LONG, paused_for_s=0.04)
    ((_, reason),) = swarm.rank(prompt(LONG)).skipped
    assert re.fullmatch(r"paused for another \d\d ms", reason), reason


@pytest.mark.parametrize("policy", ["cost", "longest-prefix", "round-robin", "random"])
def test_a_node_whose_engine_is_not_ready_is_its_own_last_target(policy: str) -> None:
    swarm = Swarm(own=LONG)
    swarm.hear(A)
    loading = replace(swarm.own, ready=False)
    assert order(swarm.rank(prompt(LONG), policy=policy, own=loading)) == [A, ME]
    assert order(swarm.rank(UNTOKENISED, policy=policy, own=loading)) == [A, ME]


def test_the_reason_says_that_the_own_engine_is_not_ready() -> None:
    swarm = Swarm(own=LONG)
    swarm.hear(A, LONG)
    assert swarm.rank(prompt(LONG), own=replace(swarm.own, ready=False)).reason == "own engine is not ready"


@pytest.mark.parametrize("policy", ["cost", "longest-prefix", "local", "round-robin", "random"])
@pytest.mark.parametrize("ready", [True, False])
def test_a_node_alone_has_itself(policy: str, ready: bool) -> None:
    swarm = Swarm()
    assert order(swarm.rank(prompt(LONG), policy=policy, own=replace(swarm.own, ready=ready))) == [ME]


def test_a_decision_of_a_large_swarm_keeps_the_best_and_this_node() -> None:
    """200 better peers than this node, and 100 that are suspect: all are looked at, some are kept."""
    swarm = Swarm()
    for n in range(300):
        swarm.hear(PeerId(f"n{n:03}"), LONG[: 1 + n % 33])
    for n in range(200, 300):
        swarm.view.link_down(PeerId(f"n{n:03}"), now=swarm.now)
    ranking = swarm.rank(prompt(LONG), own=replace(swarm.own, load=queue(5000)))
    assert len(ranking.targets) == TARGETS_MAX
    assert ranking.targets[-1].is_me
    assert ranking.targets[0].matched_pages == 33
    assert len(ranking.skipped) == SKIPPED_MAX
