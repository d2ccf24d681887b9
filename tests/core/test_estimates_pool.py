"""All estimates share one bounded pool: who goes first, and what comes back."""

from __future__ import annotations

from peerinfer.config import AntiEntropyConfig, Config
from peerinfer.core.estimate_index import PAGE_BYTES
from peerinfer.core.peer_view import Applied
from tests.core.swarm import A, B, C, Swarm, chain, matches


def pool_of(pages: int) -> Config:
    return Config(anti_entropy=AntiEntropyConfig(estimates_bytes_max=pages * PAGE_BYTES))


def known_pages(swarm: Swarm) -> dict[str, int]:
    return {record.peer: record.known_pages for record in swarm.view.peers()}


def test_the_pool_first_drops_the_estimates_that_can_never_pay() -> None:
    """100 pages of 16 tokens save 1.6 s at most, which a round trip of 2 s eats up."""
    swarm = Swarm(config=pool_of(250))
    swarm.hear(A, chain(1, 100), round_trip_s=2.0)
    swarm.hear(B, chain(2, 100))
    swarm.hear(C, chain(3, 100))
    assert known_pages(swarm) == {A: 0, B: 100, C: 100}


def test_a_suspect_peer_s_estimate_goes_before_any_other() -> None:
    swarm = Swarm(config=pool_of(250))
    swarm.hear(B, chain(2, 100))
    swarm.hear(A, chain(1, 100), round_trip_s=2.0)
    swarm.view.link_down(B, now=swarm.now)
    swarm.hear(C, chain(3, 100))
    assert known_pages(swarm) == {A: 100, B: 0, C: 100}


def test_the_pool_then_trims_the_tails_of_the_largest() -> None:
    swarm = Swarm(config=pool_of(200))
    swarm.hear(A, chain(1, 120))
    swarm.hear(B, chain(2, 20))
    swarm.hear(C, chain(3, 110))
    assert known_pages(swarm) == {A: 90, B: 20, C: 90}
    assert matches(swarm, chain(1, 120)) == {A: 90, B: 0, C: 0}


def test_a_trimmed_tree_is_not_pulled_again_but_taken_whole_when_it_comes_and_fits() -> None:
    swarm = Swarm(config=pool_of(150))
    swarm.hear(A, chain(1, 100), tree_version=1)
    swarm.hear(B, chain(2, 100), tree_version=1)
    assert known_pages(swarm) == {A: 75, B: 75}
    assert swarm.hear(A, None, tree_version=1) is Applied.HEARTBEAT
    swarm.hear(B, (), tree_version=2)
    assert swarm.hear(A, chain(1, 100), tree_version=1) is Applied.APPLIED
    assert known_pages(swarm) == {A: 100, B: 0}


def test_inserts_take_their_part_of_the_pool() -> None:
    swarm = Swarm(config=pool_of(100))
    swarm.hear(A, chain(1, 80))
    swarm.view.update_estimate(A, chain(2, 40), incarnation=1, tree_version=9, now=swarm.now)
    assert known_pages(swarm) == {A: 60}


def test_estimates_stay_within_the_pool_even_if_inserts_fill_it() -> None:
    swarm = Swarm(config=pool_of(10))
    swarm.hear(A, chain(1, 5))
    swarm.view.update_estimate(A, chain(2, 40), incarnation=1, tree_version=9, now=swarm.now)
    assert known_pages(swarm) == {A: 0}
