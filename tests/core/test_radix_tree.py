"""The radix tree by examples; test_radix_tree_model.py holds it to a model."""

from __future__ import annotations

import pytest

from peerinfer.core.radix_tree import HIDDEN_SLACK, RadixTree

A = [11, 12, 13]
B = [11, 22, 23]


def tree(*chains: list[int], capacity_pages: int = 100) -> RadixTree:
    """A tree into which the chains were inserted at 1.0, 2.0, …"""
    made = RadixTree(capacity_pages=capacity_pages)
    for now, chain in enumerate(chains, start=1):
        made.insert(chain, now=float(now))
        made.check()
    return made


def test_an_inserted_chain_is_matched_up_to_where_a_prompt_leaves_it() -> None:
    pages = tree(A)
    assert pages.match_prefix(A) == 3
    assert pages.match_prefix([11, 12, 99, 98]) == 2
    assert pages.match_prefix([99, 98, 97]) == 0
    assert pages.match_prefix([]) == 0
    assert len(pages) == 3
    assert 13 in pages
    assert 99 not in pages


def test_matching_changes_nothing() -> None:
    """Goal: reads do not write: neither version nor order."""
    pages = tree(A, B)
    before = (pages.version, pages.ordered_keys())
    pages.match_prefix(A)
    assert (pages.version, pages.ordered_keys()) == before


def test_a_page_stays_while_any_medium_holds_it() -> None:
    pages = tree(A)
    pages.insert(A, now=2.0, medium="CPU")
    version = pages.version
    pages.remove(A, medium="GPU")
    assert pages.match_prefix(A) == 3
    assert pages.version == version
    pages.remove(A, medium="DISK")
    assert pages.match_prefix(A) == 3
    pages.remove(A, medium="CPU")
    assert len(pages) == 0


def test_what_is_below_a_removed_page_is_hidden_until_it_returns() -> None:
    pages = tree(A, B)
    pages.remove([11])
    pages.check()
    assert len(pages) == 0
    assert pages.match_prefix(A) == 0
    assert pages.ordered_keys() == []
    assert 12 not in pages
    pages.insert([11], now=3.0)
    pages.check()
    assert pages.match_prefix(A) == pages.match_prefix(B) == 3


def test_a_gap_below_a_gap_stays_one() -> None:
    pages = tree(A)
    pages.remove([12])
    pages.remove([11])
    pages.insert([11], now=2.0)
    pages.check()
    assert pages.match_prefix(A) == 1
    pages.insert([12], parent=11, now=3.0)
    assert pages.match_prefix(A) == 3


def test_children_may_come_before_their_parents() -> None:
    pages = tree()
    pages.insert([13], parent=12, now=1.0)
    assert len(pages) == 0
    pages.insert([12], parent=11, now=2.0)
    assert len(pages) == 0
    pages.check()
    pages.insert([11], now=3.0)
    pages.check()
    assert pages.match_prefix(A) == 3


def test_removing_what_is_unknown_changes_nothing() -> None:
    pages = tree(A)
    version = pages.version
    pages.remove([99, 98])
    pages.insert([], parent=77, now=9.0)
    pages.check()
    assert pages.version == version
    assert pages.match_prefix(A) == 3


def test_removing_root_first_or_leaf_first_forgets_alike() -> None:
    """Goal: an engine may list a removed leaf's pages in any order; nothing is left behind."""
    for order in (A, A[::-1], [12, 11, 13]):
        pages = tree(A)
        pages.remove(order)
        pages.check()
        assert pages.evict_lru() is None


def test_the_version_rises_with_visible_changes_alone() -> None:
    pages = tree()
    versions = [pages.version]

    def rose() -> bool:
        versions.append(pages.version)
        return versions[-1] > versions[-2]

    pages.insert(A, now=1.0)
    assert rose()
    pages.insert(A, now=2.0)
    pages.touch(A, now=3.0)
    pages.insert([52], parent=51, now=3.0)
    assert not rose()
    pages.remove([13])
    assert rose()
    pages.remove([52])
    assert not rose()
    pages.evict_lru()
    assert rose()
    pages.clear()
    assert rose()
    pages.clear()
    assert not rose()


def test_ordered_keys_are_last_used_first_and_parents_first() -> None:
    pages = tree(A, B)
    assert pages.ordered_keys() == [11, 22, 23, 12, 13]
    pages.touch(A, now=3.0)
    assert pages.ordered_keys() == [11, 12, 13, 22, 23]


def test_chains_used_at_the_same_time_are_ordered_by_depth() -> None:
    """Goal: a tree rebuilt at one moment loses its deep tails when cut, not whole prompts."""
    pages = RadixTree(capacity_pages=100)
    pages.insert(A, now=1.0)
    pages.insert(B, now=1.0)
    order = pages.ordered_keys()
    assert order[0] == 11
    assert set(order[1:3]) == {12, 22}


def test_what_was_used_later_stays_before_what_is_touched_late() -> None:
    """Goal: the order follows the times, not the calls. Method: uses that are told in the wrong order."""
    pages = tree(A, [31])
    pages.touch(A, now=9.0)
    pages.touch([31], now=5.0)
    pages.touch(A, now=5.0)
    assert pages.ordered_keys() == [11, 12, 13, 31]
    pages.insert([41], now=7.0)
    assert pages.ordered_keys() == [11, 12, 13, 41, 31]
    pages.check()


def test_what_a_closed_gap_reveals_is_as_old_as_its_own_use() -> None:
    """Goal: pages that wait below a gap do not look fresh when it closes."""
    pages = tree(A, B, [31])
    pages.remove([11])
    pages.touch([31], now=5.0)
    pages.insert([11], now=6.0)
    assert pages.ordered_keys() == [11, 31, 22, 23, 12, 13]
    pages.check()


def test_touching_marks_what_is_there_of_a_prompt() -> None:
    pages = tree(A, B)
    pages.touch([11, 12, 99], now=5.0)
    assert pages.ordered_keys() == [11, 12, 22, 23, 13]
    pages.touch([98, 97], now=6.0)
    assert pages.ordered_keys() == [11, 12, 22, 23, 13]


def test_a_used_leaf_keeps_its_ancestors_fresh() -> None:
    """Goal: inserting below a parent uses the parent, so that no head of the order has a gap."""
    pages = tree(A, [31])
    pages.insert([14], parent=13, now=3.0)
    assert pages.ordered_keys() == [11, 12, 13, 14, 31]


def test_evicting_takes_the_least_recently_used_leaf() -> None:
    """Goal: evictLRUTrie, until nothing is left."""
    pages = tree(A, B)
    pages.touch(A, now=3.0)
    evicted = []
    while (key := pages.evict_lru()) is not None:
        evicted.append(key)
        pages.check()
    assert evicted == [23, 22, 13, 12, 11]


def test_beyond_its_capacity_a_tree_loses_the_least_recently_used_pages() -> None:
    pages = tree(A, B, capacity_pages=4)
    assert pages.ordered_keys() == [11, 22, 23, 12]
    pages.insert([41, 42, 43, 44, 45, 46], now=9.0)
    pages.check()
    assert pages.ordered_keys() == [41, 42, 43, 44]


def test_hidden_pages_are_bounded_too() -> None:
    """Goal: an engine whose parents never come cannot fill the memory."""
    pages = tree(capacity_pages=10)
    for orphan in range(100, 200):
        pages.insert([orphan], parent=orphan + 1000, now=float(orphan))
        pages.check()
    kept = 0
    while pages.evict_lru() is not None:
        kept += 1
    assert kept == HIDDEN_SLACK * 10 // 2  # each orphan has an absent parent beside it


def test_the_leaves_that_wait_for_eviction_do_not_pile_up() -> None:
    """Goal: an engine that removes its pages itself for days leaves no stale entries behind."""
    pages = tree([1, 2, 3], capacity_pages=10)
    for round_ in range(1000):
        pages.insert([100 + round_], parent=1, now=float(round_))
        pages.remove([100 + round_])
    pages.check()
    assert len(pages._leaves) < 100
    assert [pages.evict_lru() for _ in range(4)] == [3, 2, 1, None]


def test_a_page_is_queued_for_eviction_again_after_it_was_used() -> None:
    pages = tree([1], [2])
    pages.touch([1], now=5.0)
    assert [pages.evict_lru(), pages.evict_lru()] == [2, 1]


@pytest.mark.parametrize(
    ("keys", "parent"),
    [
        ([13], 11),
        ([12], None),
        ([77, 13], None),
        ([71, 70], 72),
        ([70], 71),
        ([71], 71),
        ([75], 75),
        ([13], 79),
    ],
)
def test_a_page_that_would_follow_two_pages_or_itself_is_refused(keys: list[int], parent: int | None) -> None:
    """Goal: keys that contradict each other (our bug, or a collision) cannot tie the tree into a knot."""
    pages = tree(A)
    pages.insert([71], parent=70, now=2.0)
    with pytest.raises(ValueError, match="one parent"):
        pages.insert(keys, parent=parent, now=3.0)
    pages.check()
    assert pages.match_prefix(A) == 3
    while pages.evict_lru() is not None:
        pages.check()
    assert len(pages) == 0


def test_a_tree_holds_at_least_one_page() -> None:
    with pytest.raises(ValueError, match="capacity_pages"):
        RadixTree(capacity_pages=0)


def test_check_notices_a_broken_tree() -> None:
    pages = tree(A)
    pages._visible[12].media = 0
    with pytest.raises(AssertionError):
        pages.check()
