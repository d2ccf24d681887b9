"""What holds for every decision, whatever the swarm, the prompt and the policy."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from peerinfer.config import RoutingConfig
from peerinfer.core.peer_view import PeerStatus, PeerView
from peerinfer.core.policies import POLICIES
from peerinfer.core.router import OwnState, Prompt, Ranking, rank
from peerinfer.core.types import Load, NodeState, PeerId
from tests.core.swarm import ME, message, new_view

NOW = 1000.0
PROMPT = tuple(range(1, 21))

loads = st.builds(
    Load,
    running=st.integers(0, 4),
    queued=st.integers(0, 4),
    queued_prefill_tokens=st.integers(0, 2000),
    prefill_tokens_per_s=st.sampled_from([0.0, 200.0, 1000.0]),
    decode_tokens_per_s=st.sampled_from([0.0, 30.0]),
    slots=st.integers(1, 4),
)


@dataclass(frozen=True)
class Neighbour:
    """A peer as drawn: what it said last, and what this node noticed of it."""

    peer: PeerId
    pages: int
    inserted_pages: int
    silence_s: float
    link_lost: bool
    round_trip_s: float | None
    paused_for_s: float
    unanswered: bool
    forwarded_tokens: int
    state: NodeState
    reuse_tokens: int
    load: Load


neighbours = st.builds(
    Neighbour,
    peer=st.integers(0, 99).map(lambda n: PeerId(f"n{n:02}")),
    pages=st.integers(0, 20),
    inserted_pages=st.sampled_from([0, 0, 0, 5, 20]),
    silence_s=st.sampled_from([0.0, 0.0, 0.0, 2.9, 3.0, 50.0]),
    link_lost=st.sampled_from([False, False, False, True]),
    round_trip_s=st.sampled_from([None, 0.0, 0.001, 0.05, 0.3]),
    paused_for_s=st.sampled_from([0.0, 0.0, 0.0, 8.0]),
    unanswered=st.sampled_from([False, False, False, True]),
    forwarded_tokens=st.sampled_from([0, 0, 500]),
    state=st.sampled_from(
        [NodeState.ALIVE, NodeState.ALIVE, NodeState.ALIVE, NodeState.LOADING, NodeState.DRAINING]
    ),
    reuse_tokens=st.sampled_from([1, 16, 64]),
    load=loads,
)
swarms = st.lists(neighbours, max_size=8, unique_by=lambda neighbour: neighbour.peer)
prompts = st.one_of(
    st.just(Prompt(keys=(), tokens=None)),
    st.builds(
        lambda pages, extra: Prompt(keys=PROMPT[:pages], tokens=pages * 16 + extra),
        st.integers(0, 20),
        st.integers(0, 15),
    ),
)
owns = st.builds(OwnState, load=loads, ready=st.booleans(), reuse_tokens=st.sampled_from([1, 64]))


def view_of(swarm: list[Neighbour], *, own_pages: int) -> PeerView:
    """A view that has heard these peers, in this order."""
    view = new_view(own=PROMPT[:own_pages])
    for told in swarm:
        heard_at = NOW - told.silence_s
        snapshot = message(
            PROMPT[: told.pages],
            load=told.load,
            paused_for_s=told.paused_for_s,
            state=told.state,
            reuse_tokens=told.reuse_tokens,
        )
        view.apply_snapshot(told.peer, snapshot, now=heard_at)
        inserted = PROMPT[: told.inserted_pages]
        view.update_estimate(told.peer, inserted, incarnation=1, tree_version=2, now=heard_at)
        if told.round_trip_s is not None:
            view.observe_round_trip(told.peer, told.round_trip_s)
        if told.link_lost:
            view.link_down(told.peer, now=heard_at)
        if told.unanswered:
            view.unanswered(told.peer, wait_s=5.0, now=NOW)
    for told in sorted(swarm, key=lambda told: told.peer):
        view.forwarded(told.peer, told.forwarded_tokens)
    return view


def decide(
    view: PeerView, prompt: Prompt, own: OwnState, policy: str, turn: int = 3, draw: float = 0.7
) -> Ranking:
    return rank(view, prompt, own, policy=policy, config=RoutingConfig(), now=NOW, turn=turn, draw=draw)


policies = st.sampled_from(sorted(POLICIES))


@given(
    swarms,
    st.integers(0, 20),
    prompts,
    owns,
    policies,
    st.integers(0, 10**6),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_targets_are_this_node_and_usable_peers_each_once(
    swarm: list[Neighbour], own_pages: int, prompt: Prompt, own: OwnState, policy: str, turn: int, draw: float
) -> None:
    view = view_of(swarm, own_pages=own_pages)
    ranking = decide(view, prompt, own, policy, turn, draw)
    targets = [candidate.peer for candidate in ranking.targets]
    alive = {told.peer for told in swarm if view.state(told.peer, now=NOW) is PeerStatus.ALIVE}
    measured_only = policy == "cost" and own.ready
    usable = {told.peer for told in swarm if not measured_only or told.round_trip_s is not None} & alive
    assert targets.count(ME) == 1
    assert len(set(targets)) == len(targets)
    assert set(targets) == {ME} | (usable if policy != "local" else set())
    assert [peer for peer, _ in ranking.skipped] == sorted({told.peer for told in swarm} - usable)
    for peer, reason in ranking.skipped:
        told_reason = "its" if peer in alive else view.state(peer, now=NOW)
        assert reason.split()[0].rstrip(":") == told_reason
    assert own.ready or targets[-1] == ME
    assert [candidate.is_me for candidate in ranking.targets] == [peer == ME for peer in targets]


@given(swarms, st.integers(0, 20), prompts, owns, policies, st.randoms(use_true_random=False))
def test_a_decision_can_be_repeated_and_does_not_depend_on_the_order_of_peers(
    swarm: list[Neighbour], own_pages: int, prompt: Prompt, own: OwnState, policy: str, random: object
) -> None:
    """Reading changes nothing either: the same view decides the same twice."""
    shuffled = list(swarm)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    view, other = view_of(swarm, own_pages=own_pages), view_of(shuffled, own_pages=own_pages)
    first = decide(view, prompt, own, policy)
    assert first == decide(view, prompt, own, policy) == decide(other, prompt, own, policy)


@given(swarms, st.integers(0, 20), st.integers(1, 20), owns)
def test_longest_prefix_takes_the_longest_of_all_usable_trees(
    swarm: list[Neighbour], own_pages: int, pages: int, own: OwnState
) -> None:
    """Against line 5 spelled out: the argmax over own tree and estimates; self wins ties."""
    view = view_of(swarm, own_pages=own_pages)
    ranking = decide(view, Prompt(keys=PROMPT[:pages], tokens=pages * 16 + 1), own, "longest-prefix")
    usable = [told for told in swarm if view.state(told.peer, now=NOW) is PeerStatus.ALIVE]
    matched = {told.peer: min(pages, max(told.pages, told.inserted_pages)) for told in usable}
    if own.ready or not usable:
        matched[ME] = min(pages, own_pages)
    first = ranking.targets[0]
    assert first.matched_pages == matched[first.peer] == max(matched.values())
    assert first.is_me or matched.get(ME, -1) < first.matched_pages


@given(swarms, st.integers(0, 20), prompts, owns, policies)
def test_expectations_are_what_an_engine_can_reuse(
    swarm: list[Neighbour], own_pages: int, prompt: Prompt, own: OwnState, policy: str
) -> None:
    reuse = {told.peer: told.reuse_tokens for told in swarm} | {ME: own.reuse_tokens}
    for candidate in decide(view_of(swarm, own_pages=own_pages), prompt, own, policy).targets:
        expected = candidate.expected_cached_tokens
        assert 0 <= expected <= max(0, (prompt.tokens or 0) - 1)
        assert expected <= candidate.matched_pages * 16
        assert expected % reuse[candidate.peer] == 0
        assert candidate.cost_s >= candidate.rtt_s + candidate.wait_s >= 0.0


@given(swarms, st.integers(0, 20), prompts, owns)
def test_cost_never_forwards_at_more_than_a_small_share_of_the_prefill(
    swarm: list[Neighbour], own_pages: int, prompt: Prompt, own: OwnState
) -> None:
    """Promise 2, never slower than alone: spreading may cost a tenth of the prefill at most."""
    ranking = decide(view_of(swarm, own_pages=own_pages), prompt, own, "cost")
    if not own.ready:
        return
    first = ranking.targets[0]
    mine = next(candidate for candidate in ranking.targets if candidate.is_me)
    least_prefill_s = min(candidate.prefill_s for candidate in ranking.targets)
    assert first.cost_s <= mine.cost_s + 0.1 * max(least_prefill_s, mine.prefill_s)
