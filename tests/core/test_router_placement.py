"""The policy `cost`: where what nobody has, or everybody, is placed (docs/routing.md)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.router import OwnState
from peerinfer.core.types import Load
from tests.core.swarm import (
    IDLE,
    LONG,
    ME,
    A,
    B,
    C,
    D,
    Swarm,
    chain,
    order,
    prompt,
    serve,
)


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
    served = Counter(serve(swarm, (*header, *chain(n, 16))) for n in range(10, 30))
    assert sorted(served.values()) == [4, 4, 4, 4, 4]


def test_cold_prompts_one_after_the_other_go_round() -> None:
    swarm = _five_idle_nodes()
    served = Counter(serve(swarm, chain(n, 31)) for n in range(10, 30))
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
    assert Counter(serve(swarm, chain(n, 31)) for n in range(10, 30)) == {ME: 20}


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
        serve(swarm, chain(n, 31))
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


def _five_idle_nodes(*, round_trip_s: float = 0.002, agreement: float = 0.1) -> Swarm:
    swarm = Swarm(config=Config(routing=RoutingConfig(placement_agreement=agreement)))
    for peer in (A, B, C, D):
        swarm.hear(peer, round_trip_s=round_trip_s)
    return swarm
