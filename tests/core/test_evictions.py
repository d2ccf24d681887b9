"""What is measured at a cache's lower end: how long pages lie unused, and how many are missed later."""

from __future__ import annotations

from math import inf

import pytest

from peerinfer.core.evictions import HALF_LIFE_CACHES, SMOOTHING, Evictions
from peerinfer.core.radix_tree import RadixTree
from tests.core.swarm import chain


def test_nothing_is_known_before_the_first_page_goes() -> None:
    evictions = Evictions(pages_max=10)
    assert (evictions.residence_s, evictions.missed_share) == (inf, 0.0)


def test_the_residence_is_a_moving_mean_of_the_times_unused() -> None:
    evictions = Evictions(pages_max=10)
    evictions.left(1, unused_s=10.0)
    assert evictions.residence_s == 10.0
    evictions.left(2, unused_s=20.0)
    assert evictions.residence_s == pytest.approx(10.0 + SMOOTHING * 10.0)


def test_a_page_that_comes_back_was_missed_once() -> None:
    evictions = Evictions(pages_max=10)
    for key in range(4):
        evictions.left(key, unused_s=1.0)
    for key in (1, 1, 99):
        evictions.came(key)
    assert evictions.missed_share == 0.25


def test_what_went_more_than_a_cache_ago_is_not_missed() -> None:
    """A bound on memory, too: no more keys are remembered than the cache holds."""
    evictions = Evictions(pages_max=3)
    for key in (1, 2, 3, 2, 4):
        evictions.left(key, unused_s=1.0)
    evictions.came(1)
    assert evictions.missed_share == 0.0
    evictions.came(2)
    assert evictions.missed_share == 0.2


def test_what_was_measured_long_ago_fades() -> None:
    evictions = Evictions(pages_max=1)
    evictions.left(1, unused_s=1.0)
    evictions.came(1)
    for key in range(2, 2 + 4 * HALF_LIFE_CACHES):
        evictions.left(key, unused_s=1.0)
    assert 0.0 < evictions.missed_share < 0.1


def test_a_tree_tells_how_long_what_it_evicts_was_unused() -> None:
    tree = RadixTree(capacity_pages=4)
    tree.insert(chain(1, 2), now=10.0)
    tree.insert(chain(2, 2), now=12.0)
    tree.touch(chain(1, 2), now=15.0)
    tree.insert(chain(3, 1), now=20.0)
    assert tree.evictions.residence_s == 8.0
    tree.insert(chain(2, 2), now=21.0)
    assert tree.evictions.missed_share == 0.5, "one of the two pages that went has come back"


def test_a_page_that_the_engine_says_is_gone_counts_like_an_evicted_one() -> None:
    tree = RadixTree(capacity_pages=4)
    tree.insert(chain(1, 2), now=10.0)
    tree.touch(chain(2, 1), now=13.0)
    tree.remove(chain(1, 2)[1:])
    assert tree.evictions.residence_s == 3.0
