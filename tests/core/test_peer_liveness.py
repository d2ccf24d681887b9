"""Whom this node may forward to, when that changes, and how peers come and go (paper §3.2, §3.3)."""

from __future__ import annotations

import pytest

from peerinfer.config import AntiEntropyConfig, Config
from peerinfer.core.breaker import OPEN_S_MAX
from peerinfer.core.peer_view import Applied, Change, PeerStatus
from peerinfer.core.types import NodeState
from tests.core.swarm import ME, A, B, C, Swarm, chain, message, new_view, prompt

ONE = chain(1, 4)


def test_silence_makes_a_peer_suspect_and_a_message_ends_it() -> None:
    swarm = Swarm()
    swarm.hear(A, next_within_s=0.5)
    states = [swarm.view.state(A, now=swarm.now + after) for after in (0.0, 1.4, 1.5)]
    assert states == [PeerStatus.ALIVE, PeerStatus.ALIVE, PeerStatus.SUSPECT]
    swarm.now += 2.0
    swarm.hear(A, next_within_s=0.5)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE


def test_a_duplicate_of_an_old_message_is_no_sign_of_life() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, seq=3, tree_version=3)
    swarm.view.apply_snapshot(A, message(ONE, seq=3, tree_version=3), now=swarm.now + 60.0)
    assert swarm.view.state(A, now=swarm.now + 60.0) is PeerStatus.SUSPECT


def test_a_broken_link_is_a_hint_at_once_until_the_peer_is_heard() -> None:
    swarm = Swarm()
    swarm.hear(A)
    for peer in (A, B):
        swarm.view.link_down(peer, now=swarm.now)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.SUSPECT
    swarm.hear(A)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE
    assert swarm.view.get(B) is None


def test_nothing_is_forwarded_to_a_peer_that_is_heard_through_others_only() -> None:
    """Goal: a stale round trip is no way there. Method: its link breaks, its word still comes, it is back."""
    swarm = Swarm()
    swarm.hear(A, ONE)
    swarm.view.link_down(A, now=swarm.now)
    swarm.view.apply_snapshot(A, message(ONE, seq=9, tree_version=9), now=swarm.now)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE
    ranking = swarm.rank(prompt(ONE))
    assert [each.peer for each in ranking.targets] == [ME]
    assert ranking.skipped == ((A, "its round trip is not measured yet"),)
    swarm.view.observe_round_trip(A, 0.002)
    assert {each.peer for each in swarm.rank(prompt(ONE)).targets} == {ME, A}


def test_whoever_was_frozen_suspects_nobody_for_it_but_keeps_old_suspicions() -> None:
    swarm = Swarm()
    swarm.hear(B, next_within_s=0.5)
    swarm.now += 5.0
    swarm.hear(A, next_within_s=0.5)
    swarm.view.expire(now=swarm.now)
    swarm.now += 60.0
    swarm.view.restart_clocks(now=swarm.now)
    states = {peer: swarm.view.state(peer, now=swarm.now) for peer in (A, B)}
    assert states == {A: PeerStatus.ALIVE, B: PeerStatus.SUSPECT}


def test_an_unknown_peer_is_suspect() -> None:
    assert new_view().state(A, now=0.0) is PeerStatus.SUSPECT


@pytest.mark.parametrize(
    ("state", "then"), [(NodeState.DRAINING, PeerStatus.LEFT), (NodeState.LOADING, PeerStatus.SUSPECT)]
)
def test_a_peer_is_what_it_says_unless_it_is_silent(state: NodeState, then: PeerStatus) -> None:
    swarm = Swarm()
    swarm.hear(A, state=state)
    assert swarm.view.state(A, now=swarm.now) == state.value
    assert swarm.view.state(A, now=swarm.now + 60.0) is then


def test_a_peer_that_said_goodbye_has_left_with_its_link_and_is_soon_forgotten() -> None:
    """Goal: whoever left in good order does not look like one that crashed, for five minutes. Method: two
    links break, of which one was announced; then the first comes back before it is forgotten."""
    swarm = Swarm()
    for peer, state in ((A, NodeState.DRAINING), (B, NodeState.ALIVE)):
        swarm.hear(peer, state=state)
        swarm.view.link_down(peer, now=swarm.now)
    left_s = AntiEntropyConfig().forget_left_after_s
    told = [
        [(change.peer, str(change.status)) for change in swarm.view.expire(now=swarm.now + after)]
        for after in (0.0, left_s - 0.1, left_s)
    ]
    assert told == [[(A, "left"), (B, "suspect")], [], [(A, "forgotten")]]
    swarm.hear(A, incarnation=9)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE


def test_our_own_freeze_brings_nobody_back_who_left() -> None:
    swarm = Swarm()
    swarm.hear(A, state=NodeState.DRAINING, next_within_s=0.5)
    swarm.now += 5.0
    swarm.view.expire(now=swarm.now)
    swarm.view.restart_clocks(now=swarm.now)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.LEFT


def test_changes_are_told_once_and_by_peer_id() -> None:
    swarm = Swarm()
    swarm.hear(B)
    swarm.hear(A, state=NodeState.LOADING)
    assert swarm.view.expire(now=swarm.now) == [
        Change(peer=A, status=PeerStatus.LOADING, before=None, silence_s=0.0),
        Change(peer=B, status=PeerStatus.ALIVE, before=None, silence_s=0.0),
    ]
    assert swarm.view.expire(now=swarm.now) == []
    swarm.now += 1.0
    swarm.hear(A)
    assert swarm.view.expire(now=swarm.now + 2.5) == [
        Change(peer=A, status=PeerStatus.ALIVE, before=PeerStatus.LOADING, silence_s=2.5),
        Change(peer=B, status=PeerStatus.SUSPECT, before=PeerStatus.ALIVE, silence_s=3.5),
    ]


# Forgetting


def test_a_silent_peer_is_forgotten_and_nothing_old_brings_it_back() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, incarnation=3, seq=7, tree_version=9)
    swarm.view.forwarded(A, 500)
    swarm.view.expire(now=swarm.now)
    assert swarm.view.expire(now=swarm.now + 300.0) == [
        Change(peer=A, status="forgotten", before=PeerStatus.ALIVE, silence_s=300.0)
    ]
    assert (len(swarm.view), swarm.view.peers(), swarm.view.known_incarnation(A)) == (0, [], 3)
    for incarnation, seq in ((3, 7), (3, 2), (2, 99)):
        old = message(ONE, incarnation=incarnation, seq=seq, tree_version=99)
        assert swarm.view.apply_snapshot(A, old, now=swarm.now + 301.0) is Applied.STALE
    assert len(swarm.view) == 0
    assert swarm.view.estimated_pages(A) == []
    assert swarm.view.inserted_pages(A) == frozenset()


@pytest.mark.parametrize(("incarnation", "seq"), [(3, 8), (4, 1)])
def test_a_forgotten_peer_that_speaks_again_is_a_peer_again(incarnation: int, seq: int) -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, incarnation=3, seq=7, tree_version=9)
    swarm.view.expire(now=swarm.now + 300.0)
    news = message(None, incarnation=incarnation, seq=seq, tree_version=9)
    assert swarm.view.apply_snapshot(A, news, now=swarm.now + 301.0) is Applied.NEEDS_PULL
    assert swarm.view.known_incarnation(A) == incarnation


def test_the_marks_of_forgotten_peers_are_bounded() -> None:
    swarm = Swarm(config=Config(anti_entropy=AntiEntropyConfig(peers_max=2)))
    for peer in (A, B, C):
        swarm.hear(peer, incarnation=5)
        swarm.view.expire(now=swarm.now + 300.0)
    assert [swarm.view.known_incarnation(peer) for peer in (A, B, C)] == [0, 5, 5]


def test_a_full_view_forgets_the_longest_silent_peer_for_a_new_one() -> None:
    swarm = Swarm(config=Config(anti_entropy=AntiEntropyConfig(peers_max=2)))
    for peer in (B, A, C):
        swarm.now += 0.1
        swarm.hear(peer)
    assert [record.peer for record in swarm.view.peers()] == [A, C]
    assert [(change.peer, change.status) for change in swarm.view.expire(now=swarm.now)] == [
        (A, "alive"),
        (B, "forgotten"),
        (C, "alive"),
    ]


# Push-back


def test_a_pause_counts_from_receipt_and_ends_within_its_jitter() -> None:
    swarm = Swarm()
    swarm.hear(A, next_within_s=60.0, paused_for_s=5.0)
    states = [swarm.view.state(A, now=swarm.now + after) for after in (0.0, 3.9, 6.1)]
    assert states == [PeerStatus.PAUSED, PeerStatus.PAUSED, PeerStatus.ALIVE]


def test_a_newer_message_without_a_pause_lifts_it_at_once() -> None:
    swarm = Swarm()
    swarm.hear(A, paused_for_s=5.0)
    swarm.hear(A)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE


def test_a_refusal_holds_until_the_peer_says_otherwise() -> None:
    swarm = Swarm()
    swarm.hear(A, next_within_s=60.0)
    for peer in (A, B):
        swarm.view.refused(peer, wait_s=2.0, now=swarm.now)
    states = [swarm.view.state(A, now=swarm.now + after) for after in (0.0, 1.9, 2.0)]
    assert states == [PeerStatus.PAUSED, PeerStatus.PAUSED, PeerStatus.ALIVE]
    swarm.view.refused(A, wait_s=2.0, now=swarm.now)
    swarm.hear(A)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE


def test_a_peer_that_does_not_answer_is_left_alone_whatever_its_messages_say() -> None:
    swarm = Swarm()
    swarm.hear(A, next_within_s=60.0)
    for peer in (A, B):
        swarm.view.unanswered(peer, wait_s=10.0, now=swarm.now)
    swarm.hear(A, next_within_s=60.0)
    states = [swarm.view.state(A, now=swarm.now + after) for after in (0.0, 9.9, 10.0)]
    assert states == [PeerStatus.PAUSED, PeerStatus.PAUSED, PeerStatus.ALIVE]
    record = swarm.view.get(A)
    assert record is not None
    assert record.paused_until == swarm.now + 10.0


def test_a_peer_that_fails_again_and_again_is_left_alone_for_longer_until_it_serves() -> None:
    swarm = Swarm()
    swarm.hear(A, next_within_s=600.0)
    waits = []
    for _ in range(40):
        swarm.view.unanswered(A, wait_s=1.0, now=swarm.now)
        record = swarm.view.get(A)
        assert record is not None
        waits.append(record.paused_until - swarm.now)
        swarm.now = record.paused_until
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == OPEN_S_MAX
    swarm.hear(A, next_within_s=600.0)
    swarm.view.unanswered(A, wait_s=1.0, now=swarm.now)
    for peer in (A, A, B):
        swarm.view.answered(peer)
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE
    swarm.view.unanswered(A, wait_s=1.0, now=swarm.now)
    assert swarm.view.state(A, now=swarm.now + 1.0) is PeerStatus.ALIVE
    for peer in (A, A, B):
        swarm.view.tried(peer, within_s=5.0, now=swarm.now + 1.0)
    states = [swarm.view.state(A, now=swarm.now + after) for after in (5.9, 6.0)]
    assert states == [PeerStatus.PAUSED, PeerStatus.ALIVE], "one tries, the others stay away"
