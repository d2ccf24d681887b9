"""Where prompts go that nodes would serve alike: entry nodes agree without a word, and shares stay even."""

from __future__ import annotations

from collections import Counter

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.types import PeerId
from tests.core.swarm import ME, A, B, C, D, Swarm, chain, prompt

LONG = chain(1, 33)
OTHERS = (A, B, C, D)


def test_nodes_that_have_not_heard_of_each_other_place_a_prefix_on_the_same_one() -> None:
    """Each of five entry nodes decides on forty new prompts by its own view, in which nobody has begun."""
    everyone = (ME, *OTHERS)
    chosen: dict[int, set[PeerId]] = {}
    for me in everyone:
        swarm = Swarm()
        swarm.view.me = me
        for peer in everyone:
            if peer != me:
                swarm.hear(peer)
        for n in range(10, 50):
            chosen.setdefault(n, set()).add(swarm.rank(prompt(chain(n, 31))).targets[0].peer)
    assert all(len(places) == 1 for places in chosen.values())
    shares = Counter(place for places in chosen.values() for place in places)
    assert len(shares) == 5
    assert max(shares.values()) <= 15


def test_what_differs_only_behind_a_common_prefix_meets_by_the_page_behind_it() -> None:
    """All have the header: the subject decides where its prompts go, whatever the question is."""
    header = chain(9, 16)
    swarm = _five_nodes(pages=header)
    subjects = [
        {_first(swarm, (*header, n * 1000, *chain(question, 3))) for question in range(60, 70)}
        for n in range(10)
    ]
    assert all(len(places) == 1 for places in subjects)
    assert len(set.union(*subjects)) > 2


def test_prompts_with_a_common_prefix_that_nobody_has_do_not_all_go_to_one_node() -> None:
    """Its first page names one node for all of them, but what that has been given counts."""
    header, swarm = chain(9, 16), _five_nodes()
    served: Counter[PeerId] = Counter()
    for n in range(20):
        decided = _first(swarm, (*header, *chain(10 + n, 16)))
        swarm.view.forwarded(decided, 520)
        served[decided] += 1
    assert len(served) == 5
    assert max(served.values()) <= 6


def test_nodes_that_have_done_much_more_are_not_agreed_upon() -> None:
    """Only the hash would send a third of the prompts to A and B."""
    swarm = _five_nodes()
    for peer in (A, B):
        swarm.worked(peer, 600)
    assert {_first(swarm, chain(n, 31)) for n in range(10, 60)} == {ME, C, D}


def test_of_equals_only_those_that_hold_as_much_as_any_are_agreed_upon() -> None:
    """B has two pages less to compute than the others, which is little, but more than nothing."""
    swarm = _five_nodes()
    swarm.hear(B, LONG[:2])
    assert _first(swarm, LONG) == B
    swarm.worked(B, 600)
    ranking = swarm.rank(prompt(LONG))
    assert (ranking.targets[0].peer, ranking.reason) == (ME, "equally cached, placed on the least busy node")


def test_prompts_without_a_page_of_their_own_go_to_the_least_busy_node() -> None:
    """Its page is cached everywhere; what is left is too short for a page, and worth placing even so."""
    swarm = Swarm(own=LONG[:1], config=Config(routing=RoutingConfig(forward_margin_s=0.0001)))
    swarm.hear(A, LONG[:1], round_trip_s=0.0001)
    swarm.worked(ME, 500)
    ranking = swarm.rank(prompt(LONG[:1]))
    assert (ranking.targets[0].peer, ranking.reason) == (A, "equally cached, placed on the least busy node")


def _five_nodes(*, pages: tuple[int, ...] = ()) -> Swarm:
    """All idle, and with these pages in their caches."""
    swarm = Swarm(own=pages)
    for peer in OTHERS:
        swarm.hear(peer, pages)
    return swarm


def _first(swarm: Swarm, keys: tuple[int, ...]) -> PeerId:
    return swarm.rank(prompt(keys)).targets[0].peer
