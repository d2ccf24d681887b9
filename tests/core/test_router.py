"""Where requests go, policy by policy and case by case (Algorithm 1 line 5; paper §3.2, §3.3; docs)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.policies import TARGETS_MAX
from peerinfer.core.router import SKIPPED_MAX, OwnState, Prompt, Ranking
from peerinfer.core.types import Load, NodeState, PeerId
from tests.core.swarm import IDLE, ME, A, B, C, D, Swarm, chain, message, prompt

LONG = chain(1, 33)
OTHER = chain(2, 33)
UNTOKENISED = Prompt(keys=(), tokens=None)


def order(ranking: Ranking) -> list[str]:
    return [candidate.peer for candidate in ranking.targets]


def queue(tokens: int) -> Load:
    """An engine with so much prefill ahead: a millisecond per token."""
    return replace(IDLE, queued_prefill_tokens=tokens)


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


# cost


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
    assert [_serve(swarm, LONG) for _ in range(4)] == [A, A, ME, ME]


def test_a_prefix_behind_a_long_round_trip_is_computed_here_at_once() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG, round_trip_s=0.3)
    ranking = swarm.rank(prompt(LONG))
    assert (order(ranking), ranking.reason) == ([ME, A], "bought: from now on the prefix is here")


def test_without_a_ledger_what_is_cheaper_now_is_taken_for_ever() -> None:
    swarm = Swarm(rents=False)
    swarm.hear(A, LONG, round_trip_s=0.3)
    assert {_serve(swarm, LONG) for _ in range(10)} == {A}


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


def test_nodes_behind_a_long_round_trip_do_not_take_part_in_placement() -> None:
    """Where the peer's cache makes up for the round trip exactly, it is not as good as this node: the
    prefill at stake there is small against the round trip."""
    swarm = Swarm()
    swarm.hear(A, LONG[:30], round_trip_s=0.48)
    swarm.worked(ME, 1000)
    assert order(swarm.rank(prompt(LONG))) == [ME, A]


def test_a_header_that_everybody_has_decides_nothing() -> None:
    """The paper's argmax would send every prompt with it to one node."""
    header = chain(9, 16)
    swarm = Swarm(own=header)
    for peer in (A, B, C, D):
        swarm.hear(peer, header)
    served = Counter(_serve(swarm, (*header, *chain(n, 16))) for n in range(10, 30))
    assert sorted(served.values()) == [4, 4, 4, 4, 4]


def test_cold_prompts_one_after_the_other_go_round() -> None:
    swarm = _five_idle_nodes()
    served = Counter(_serve(swarm, chain(n, 31)) for n in range(10, 30))
    assert sorted(served.values()) == [4, 4, 4, 4, 4]


def test_a_cold_prompt_stays_unless_moving_it_makes_two_nodes_evener() -> None:
    """Else all nodes would move what comes at once to the same one, that they all believe to be idle."""
    swarm = _five_idle_nodes(agreement=0.0)
    swarm.worked(ME, 500)
    ranking = swarm.rank(prompt(LONG))
    assert (order(ranking)[0], ranking.reason) == (ME, "cold, placed on the least busy node")
    swarm.worked(ME, 50)
    assert order(swarm.rank(prompt(LONG)))[0] == A


def test_cold_prompts_stay_where_the_round_trip_is_not_small_against_their_prefill() -> None:
    swarm = _five_idle_nodes(round_trip_s=0.06)
    assert Counter(_serve(swarm, chain(n, 31)) for n in range(10, 30)) == {ME: 20}


def test_sixteen_concurrent_cold_prompts_at_one_entry_are_shared_by_five_nodes() -> None:
    """500 tokens each; nobody answers, and no message comes, before all of them are decided."""
    swarm = _five_idle_nodes()
    served: Counter[str] = Counter()
    for n in range(16):
        decided = swarm.rank(prompt(chain(10 + n, 31), extra_tokens=4)).targets[0]
        swarm.view.forwarded(decided.peer, 500)
        served[decided.peer] += 1
    assert len(served) == 5
    assert all(1 <= count <= 6 for count in served.values())


def test_64_concurrent_prompts_of_one_prefix_do_not_all_wait_for_the_one_node_that_has_it() -> None:
    """Each has 450 tokens in common and 90 of its own. No node may end later than one alone would."""
    prefix = chain(9, 28)
    swarm = _five_idle_nodes()
    swarm.hear(A, prefix)
    work_s: Counter[str] = Counter()
    for n in range(64):
        asked = prompt((*prefix, *chain(10 + n, 5)))
        decided = swarm.rank(asked).targets[0]
        uncached = 33 * 16 + 8 - decided.expected_cached_tokens - decided.in_flight_tokens
        swarm.view.forwarded(decided.peer, uncached, asked.keys)
        work_s[decided.peer] += uncached / 1000.0
    assert len(work_s) == 5, "others compute the prefix, too, as soon as that is faster than to wait"
    assert sum(work_s.values()) == pytest.approx(64 * 0.088 + 4 * 0.448), "each but the first finds it there"
    assert max(work_s.values()) < 1.15 * sum(work_s.values()) / 5


def test_concurrent_cold_prompts_are_shared_even_when_a_round_trip_is_long() -> None:
    """Then waiting here costs more than the round trip, and cost alone shares them out."""
    swarm = _five_idle_nodes(round_trip_s=0.2)
    served: Counter[str] = Counter()
    for n in range(16):
        decided = swarm.rank(prompt(chain(10 + n, 31), extra_tokens=4)).targets[0]
        swarm.view.forwarded(decided.peer, 500)
        served[decided.peer] += 1
    assert len(served) == 5
    assert all(1 <= count <= 6 for count in served.values())


def test_a_newcomer_gets_its_share_and_not_all_for_having_done_nothing_yet() -> None:
    """It has measured no rate, which must not make it look fast; the others prefill 200 tokens/s."""
    swarm = Swarm()
    slow = replace(IDLE, prefill_tokens_per_s=200.0)
    swarm.own = replace(swarm.own, load=slow)
    swarm.view.measured_here(slow)
    for peer in (A, B, C):
        swarm.hear(peer, load=slow)
    for n in range(10, 50):
        _serve(swarm, chain(n, 31))
    swarm.hear(D, load=Load(slots=4))
    served: Counter[str] = Counter()
    for n in range(50, 66):
        decided = swarm.rank(prompt(chain(n, 31), extra_tokens=4)).targets[0]
        swarm.view.forwarded(decided.peer, 500)
        served[decided.peer] += 1
    assert 1 <= served[D] <= 6


def test_a_node_that_has_measured_nothing_takes_itself_for_as_fast_as_its_peers() -> None:
    swarm = Swarm()
    for peer in (A, B):
        swarm.hear(peer, load=replace(IDLE, prefill_tokens_per_s=100.0))
    unmeasured = OwnState(load=Load(), ready=True, reuse_tokens=1)
    ranking = swarm.rank(prompt(LONG[:10], extra_tokens=0), own=unmeasured)
    costs = {candidate.peer: candidate.cost_s for candidate in ranking.targets}
    assert costs[ME] == pytest.approx(1.6)


def test_the_prior_rate_is_used_while_nobody_has_measured_any() -> None:
    swarm = Swarm()
    swarm.hear(A, load=Load())
    ranking = swarm.rank(prompt(LONG[:10]), own=OwnState(load=Load(), ready=True, reuse_tokens=1))
    assert [candidate.cost_s for candidate in ranking.targets if candidate.is_me] == [pytest.approx(0.168)]


def test_equal_holders_of_a_prefix_take_turns() -> None:
    swarm = Swarm()
    for peer in (A, B):
        swarm.hear(peer, LONG[:16])
    served = []
    for n in range(10, 14):
        ranking = swarm.rank(prompt((*LONG[:16], *chain(n, 16))))
        served.append(ranking.targets[0].peer)
        swarm.worked(ranking.targets[0].peer, 264)
    assert sorted(served) == [A, A, B, B]
    assert ranking.reason == "equally cached, placed by its first new page"


def test_a_prompt_that_is_cached_here_stays_here() -> None:
    """Nothing is to be gained by spreading the last few tokens of a known prompt."""
    swarm = Swarm(own=LONG)
    swarm.hear(A, LONG, round_trip_s=0.0005)
    swarm.worked(ME, 5000)
    assert order(swarm.rank(prompt(LONG))) == [ME, A]


def test_work_that_other_entry_nodes_gave_counts_as_well() -> None:
    """What a node has computed lately is its own word: A was busy for somebody else."""
    swarm = Swarm()
    for peer in (A, B):
        swarm.hear(peer)
    swarm.worked(ME, 1000)
    swarm.worked(A, 500)
    assert swarm.rank(prompt(chain(10, 31))).targets[0].peer == B


def test_a_somewhat_slower_node_takes_its_turn_unless_serving_here_is_faster() -> None:
    """A takes 1.4 times as long: it gets cold prompts from nodes as slow, and none from fast ones."""
    slower = replace(IDLE, prefill_tokens_per_s=1000.0 / 1.4)
    swarm = Swarm()
    swarm.hear(A, load=slower)
    swarm.hear(B)
    swarm.worked(B, 1300)
    swarm.worked(ME, 2500)
    assert swarm.rank(prompt(chain(10, 31))).targets[0].peer == B
    swarm.own = replace(swarm.own, load=replace(slower, recent_prefill_tokens=2500))
    assert swarm.rank(prompt(chain(10, 31))).targets[0].peer == A


def test_a_target_that_the_client_chose_is_the_only_one() -> None:
    swarm = Swarm(own=LONG)
    swarm.hear(A)
    swarm.hear(B, state=NodeState.DRAINING)
    assert order(swarm.rank(prompt(LONG), target=A)) == [A]
    assert order(swarm.rank(prompt(LONG), target=ME, policy="random")) == [ME]
    assert order(swarm.rank(prompt(LONG), target=B)) == []


def _five_idle_nodes(*, round_trip_s: float = 0.002, agreement: float = 0.1) -> Swarm:
    swarm = Swarm(config=Config(routing=RoutingConfig(placement_agreement=agreement)))
    for peer in (A, B, C, D):
        swarm.hear(peer, round_trip_s=round_trip_s)
    return swarm


def _serve(swarm: Swarm, keys: tuple[int, ...]) -> PeerId:
    """Decide on one request and see it through before the next."""
    ranking = swarm.rank(prompt(keys))
    decided = ranking.targets[0]
    if swarm.rents is not None and ranking.tenancy is not None:
        residence_s = swarm.view.own.evictions.residence_s
        swarm.rents.note(ranking.tenancy, served_here=decided.is_me, residence_s=residence_s, now=swarm.now)
    if decided.is_me:
        swarm.view.own.insert(keys, now=swarm.now)
    uncached = len(keys) * 16 + 8 - decided.expected_cached_tokens
    swarm.worked(decided.peer, uncached)
    return decided.peer


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
