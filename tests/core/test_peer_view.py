"""What a node believes of its peers: trees, restarts, inserts, load; example by example (§3.4, §3.5)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from peerinfer.core.peer import ROUND_TRIPS_KEPT
from peerinfer.core.peer_view import Applied, PeerStatus
from peerinfer.core.types import Given, Load, NodeState
from tests.core.swarm import BASE, IDLE, LONG, ME, A, B, C, Swarm, chain, matches, message, new_view, prompt

ONE, TWO = chain(1, 4), chain(2, 4)
BUSY = replace(IDLE, queued=3)


# Trees


def test_a_snapshot_makes_its_sender_a_peer_with_that_tree() -> None:
    swarm = Swarm()
    assert swarm.hear(A, ONE, tree_version=7, pages=4) is Applied.APPLIED
    assert swarm.view.estimated_pages(A) == list(ONE)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.peer, record.tree_version, record.pages, record.known_pages) == (A, 7, 4, 4)
    assert matches(swarm, (*ONE, 99)) == {A: 4}


def test_a_new_tree_replaces_the_old_one_as_a_whole() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE)
    swarm.hear(A, TWO)
    assert swarm.view.estimated_pages(A) == list(TWO)
    assert matches(swarm, ONE) == {A: 0}


def test_a_cut_tree_matches_what_it_brought() -> None:
    swarm = Swarm()
    assert swarm.hear(A, ONE[:2], cut=True, pages=4) is Applied.APPLIED
    record = swarm.view.get(A)
    assert record is not None
    assert (record.pages, record.known_pages) == (4, 2)
    assert matches(swarm, ONE) == {A: 2}


def test_a_heartbeat_with_the_known_version_confirms_the_tree() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, tree_version=7)
    swarm.now += 1.0
    assert swarm.hear(A, None, tree_version=7, pages=4) is Applied.HEARTBEAT
    record = swarm.view.get(A)
    assert record is not None
    assert record.confirmed_at == record.heard_at == swarm.now


def test_a_heartbeat_with_an_unknown_version_asks_for_a_pull_and_keeps_the_old_tree() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, tree_version=7)
    swarm.now += 1.0
    assert swarm.hear(A, None, tree_version=8, load=BUSY) is Applied.NEEDS_PULL
    record = swarm.view.get(A)
    assert record is not None
    assert (record.tree_version, record.load, record.confirmed_at) == (7, BUSY, swarm.now - 1.0)


def test_a_heartbeat_of_a_stranger_makes_it_a_peer_whose_tree_is_to_be_pulled() -> None:
    swarm = Swarm()
    assert swarm.hear(A, None, tree_version=0) is Applied.NEEDS_PULL
    record = swarm.view.get(A)
    assert record is not None
    assert (record.tree_version, record.confirmed_at) == (-1, None)


def test_a_pulled_snapshot_brings_the_tree_though_its_seq_is_known() -> None:
    """A pull is answered with the state of the moment and the seq of the last publish."""
    swarm = Swarm()
    swarm.hear(A, None, seq=5, tree_version=8)
    pulled = message(ONE, seq=5, tree_version=9)
    assert swarm.view.apply_snapshot(A, pulled, now=swarm.now) is Applied.APPLIED
    assert swarm.view.apply_snapshot(A, pulled, now=swarm.now) is Applied.STALE
    assert swarm.view.estimated_pages(A) == list(ONE)


def test_an_old_message_with_an_old_tree_changes_nothing() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, seq=5, tree_version=8)
    before = swarm.view.get(A)
    old = message(TWO, seq=4, tree_version=7, load=BUSY, paused_for_s=5.0)
    assert swarm.view.apply_snapshot(A, old, now=swarm.now + 1.0) is Applied.STALE
    assert swarm.view.apply_snapshot(A, replace(old, keys=None), now=swarm.now + 1.0) is Applied.STALE
    assert swarm.view.get(A) == before


def test_a_late_message_may_still_bring_the_newest_tree_but_not_its_load() -> None:
    swarm = Swarm()
    swarm.hear(A, None, seq=6, tree_version=8)
    late = message(ONE, seq=5, tree_version=8, load=BUSY, paused_for_s=5.0)
    assert swarm.view.apply_snapshot(A, late, now=swarm.now) is Applied.APPLIED
    record = swarm.view.get(A)
    assert record is not None
    assert (record.seq, record.load, record.paused_until) == (6, IDLE, -inf)


def test_own_messages_that_come_back_make_no_peer() -> None:
    view = new_view()
    assert view.apply_snapshot(ME, BASE, now=0.0) is Applied.STALE
    assert len(view) == 0


# Incarnations


def test_a_restarted_peer_starts_with_an_empty_estimate() -> None:
    """Its first message may be a heartbeat, and its counters start again."""
    swarm = Swarm()
    swarm.hear(A, ONE, seq=50, tree_version=70, paused_for_s=9.0)
    swarm.view.update_estimate(A, TWO, incarnation=1, tree_version=80, now=swarm.now)
    assert swarm.hear(A, None, incarnation=2, seq=1, tree_version=3) is Applied.NEEDS_PULL
    assert swarm.view.estimated_pages(A) == []
    assert swarm.view.inserted_pages(A) == frozenset()
    assert swarm.view.state(A, now=swarm.now) is PeerStatus.ALIVE
    assert swarm.hear(A, TWO, incarnation=2, seq=2, tree_version=3) is Applied.APPLIED


def test_a_message_of_an_earlier_incarnation_is_stale() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, incarnation=2)
    assert swarm.hear(A, TWO, incarnation=1, seq=99, tree_version=99) is Applied.STALE
    assert swarm.view.estimated_pages(A) == list(ONE)


def test_a_reply_tells_of_a_restart_too() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, incarnation=1)
    swarm.view.observe_load(A, BUSY, incarnation=2, seq=0, now=swarm.now)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.incarnation, record.load, record.known_pages) == (2, BUSY, 0)
    swarm.view.observe_load(A, IDLE, incarnation=1, seq=99, now=swarm.now)
    assert swarm.view.get(A) == record


# Optimistic inserts (line 17)


def test_an_insert_is_matched_beside_the_tree_of_its_owner_and_never_in_it() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, tree_version=1)
    swarm.view.update_estimate(A, TWO, incarnation=1, tree_version=2, now=swarm.now)
    assert (matches(swarm, ONE), matches(swarm, TWO)) == ({A: 4}, {A: 4})
    assert swarm.view.estimated_pages(A) == list(ONE)
    assert swarm.view.inserted_pages(A) == set(TWO)


def test_an_insert_yields_to_the_first_tree_that_covers_it() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, tree_version=1)
    swarm.view.update_estimate(A, TWO, incarnation=1, tree_version=2, now=swarm.now)
    swarm.hear(A, ONE, tree_version=2)
    assert matches(swarm, TWO) == {A: 0}


def test_an_insert_that_the_known_tree_covers_is_not_made() -> None:
    """The reply came after the snapshot that its tree version is in."""
    swarm = Swarm()
    swarm.hear(A, ONE, tree_version=2)
    swarm.view.update_estimate(A, TWO, incarnation=1, tree_version=2, now=swarm.now)
    assert matches(swarm, TWO) == {A: 0}


def test_an_insert_for_another_life_of_the_peer_is_not_made() -> None:
    swarm = Swarm()
    swarm.hear(A, ONE, incarnation=2)
    swarm.view.update_estimate(A, TWO, incarnation=1, tree_version=9, now=swarm.now)
    swarm.view.update_estimate(B, TWO, incarnation=1, tree_version=9, now=swarm.now)
    assert matches(swarm, TWO) == {A: 0}


# Load and round trips


def test_the_load_of_a_reply_counts_though_its_seq_is_that_of_the_last_message() -> None:
    swarm = Swarm()
    swarm.hear(A, seq=5)
    swarm.now += 1.0
    swarm.view.observe_load(A, BUSY, incarnation=1, seq=5, now=swarm.now)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.load, record.heard_at) == (BUSY, swarm.now)


def test_a_reply_that_was_overtaken_by_a_message_is_old_news() -> None:
    swarm = Swarm()
    swarm.hear(A, seq=5)
    swarm.view.observe_load(A, BUSY, incarnation=1, seq=4, now=swarm.now)
    swarm.view.observe_load(B, BUSY, incarnation=1, seq=4, now=swarm.now)
    record = swarm.view.get(A)
    assert record is not None
    assert record.load == IDLE
    assert swarm.view.get(B) is None


def test_a_message_that_a_reply_overtook_still_brings_what_replies_do_not_carry() -> None:
    swarm = Swarm()
    swarm.hear(A, seq=4)
    swarm.view.observe_load(A, BUSY, incarnation=1, seq=5, now=swarm.now)
    swarm.hear(A, seq=5, tree_version=4, state=NodeState.DRAINING)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.load, record.state) == (BUSY, NodeState.DRAINING)


def test_the_round_trip_is_the_least_of_the_last_few() -> None:
    """One from while everybody started is soon forgotten; a path that became longer is believed in time."""
    swarm = Swarm()
    swarm.hear(A, round_trip_s=0.3)
    swarm.view.observe_round_trip(B, 0.2)
    found = []
    for sample in (0.002, 0.05, *[0.1] * ROUND_TRIPS_KEPT):
        swarm.view.observe_round_trip(A, sample)
        record = swarm.view.get(A)
        assert record is not None
        found.append(record.round_trip_s)
    assert (found[0], found[1], found[-1]) == (0.002, 0.002, 0.1)


def test_what_is_forwarded_counts_at_once_and_until_it_is_settled() -> None:
    swarm = Swarm()
    swarm.hear(A)
    for peer in (A, B, ME):
        swarm.view.forwarded(peer, 500)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.unsettled_tokens, swarm.view.own_unsettled_tokens) == (500, 500)
    for peer in (A, B, ME):
        swarm.view.settled(peer, 500)
        swarm.view.settled(peer, 500)
    record = swarm.view.get(A)
    assert record is not None
    assert (record.unsettled_tokens, swarm.view.own_unsettled_tokens) == (0, 0)


def test_a_reply_tells_what_of_ours_its_load_counts_even_if_a_snapshot_overtook_it() -> None:
    swarm = Swarm()
    swarm.hear(A)
    for _ in range(3):
        swarm.view.forwarded(A, 100, [1, 2])
    assert swarm.view.given(A) == Given(3, 300)
    swarm.hear(A, load=Load(queued_prefill_tokens=200))
    swarm.view.observe_load(A, Load(), incarnation=1, seq=0, now=swarm.now, yours=Given(2, 200))
    record = swarm.view.get(A)
    assert record is not None
    assert (record.unsettled_tokens, record.load.queued_prefill_tokens) == (100, 200)
    for _ in range(3):
        swarm.view.ended(A, 100, [1, 2], was_settled=False)
    swarm.view.ended(B, 100, was_settled=False)
    assert (swarm.view.given(A), swarm.view.given(B)) == (Given(), Given())


def test_a_wait_that_was_reckoned_with_a_guessed_rate_is_reckoned_anew_once_a_rate_is_measured() -> None:
    """Of two answers, the first has work and no rate yet, the second has the first rate of all."""
    swarm = Swarm()
    swarm.own = replace(swarm.own, load=Load())
    swarm.hear(A, load=Load(queued_prefill_tokens=1000))
    swarm.view.measured_here(swarm.own.load)
    before = next(each for each in swarm.rank(prompt(LONG)).targets if each.peer == A)
    swarm.hear(B, load=Load(prefill_tokens_per_s=5000.0))
    swarm.view.measured_here(swarm.own.load)
    after = next(each for each in swarm.rank(prompt(LONG)).targets if each.peer == A)
    assert after.wait_s < before.wait_s / 4


def test_the_typical_rate_is_the_median_of_what_peers_measured() -> None:
    swarm = Swarm()
    assert swarm.view.typical_prefill_tokens_per_s() == 0.0
    for peer, rate in ((A, 0.0), (B, 200.0), (C, 300.0)):
        swarm.hear(peer, load=Load(prefill_tokens_per_s=rate))
    assert swarm.view.typical_prefill_tokens_per_s() == 200.0
