"""One match for all peers, held against a model: a set of pages per peer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from peerinfer.core.estimate import Estimate
from peerinfer.core.estimate_index import EstimateIndex, difference

Path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), max_size=7).map(tuple)
"""A prompt, as the branches it takes in a binary tree of pages."""


def keys_of(path: Path) -> list[int]:
    """The keys along a path: each names the whole path up to it."""
    return [int("1" + "".join(map(str, path[: depth + 1])), 2) for depth in range(len(path))]


def tree_of(prompts: list[Path]) -> list[int]:
    """The pages of some prompts, every head closed under parents."""
    return sorted({key for path in prompts for key in keys_of(path)}, key=lambda key: (key.bit_length(), key))


def matched(pages: set[int], prompt: Sequence[int]) -> int:
    """PrefixMatch, page by page."""
    count = 0
    while count < len(prompt) and prompt[count] in pages:
        count += 1
    return count


class IndexAgainstSets(RuleBasedStateMachine):
    """Snapshots, inserts, rounds and trims in any order; the model keeps two sets of pages per peer."""

    peers = st.integers(0, 4)

    @initialize()
    def start(self) -> None:
        self.index = EstimateIndex()
        self.estimates: list[Estimate] = [self.index.open() for _ in range(5)]
        self.pages: list[list[int]] = [[] for _ in range(5)]
        self.inserts: list[set[int]] = [set() for _ in range(5)]

    @rule(peer=peers, prompts=st.lists(paths, max_size=12))
    def replace(self, peer: int, prompts: list[Path]) -> None:
        self.pages[peer] = tree_of(prompts)
        self.index.replace(self.estimates[peer], self.pages[peer])
        assert not self.estimates[peer].trimmed

    @rule(peer=peers, prompt=paths)
    def insert(self, peer: int, prompt: Path) -> None:
        self.index.insert(self.estimates[peer], keys_of(prompt), tree_version=1)
        self.inserts[peer] |= set(keys_of(prompt))

    @rule(peer=peers)
    def cover(self, peer: int) -> None:
        """Version 0 covers no insert, and each is dropped at the next round."""
        self.index.heard(self.estimates[peer], 0, is_round=True, rounds_max=1)
        self.inserts[peer] = set()

    @rule(peer=peers, pages_max=st.integers(0, 20))
    def trim(self, peer: int, pages_max: int) -> None:
        self.index.trim(self.estimates[peer], pages_max)
        assert self.estimates[peer].trimmed or len(self.pages[peer]) <= pages_max
        self.pages[peer] = self.pages[peer][:pages_max]

    @rule(pages_max=st.integers(0, 60))
    def trim_all(self, pages_max: int) -> None:
        """The largest shrink to a common size; nothing is trimmed without need."""
        before = self.index.page_count
        self.index.trim_all(pages_max)
        inserts = sum(len(inserts) for inserts in self.inserts)
        assert self.index.page_count <= max(pages_max, inserts)
        if before <= pages_max:
            assert self.index.page_count == before
        share = max(len(estimate.pages) for estimate in self.estimates)
        for peer, estimate in enumerate(self.estimates):
            assert len(estimate.pages) == len(self.pages[peer]) or len(estimate.pages) == share
            self.pages[peer] = self.pages[peer][: len(estimate.pages)]

    @rule(peer=peers)
    def empty(self, peer: int) -> None:
        self.index.empty(self.estimates[peer])
        self.pages[peer], self.inserts[peer] = [], set()

    @rule(peer=peers)
    def another_peer(self, peer: int) -> None:
        """A forgotten peer's slot goes to a new one, which starts with nothing."""
        slot = self.estimates[peer].slot
        self.index.close(self.estimates[peer])
        self.estimates[peer] = self.index.open()
        assert self.estimates[peer].slot == slot
        self.pages[peer], self.inserts[peer] = [], set()

    @rule(prompt=paths)
    def match(self, prompt: Path) -> None:
        found = self.index.match_prefix(keys_of(prompt))
        for peer, estimate in enumerate(self.estimates):
            told, added = (
                matched(set(self.pages[peer]), keys_of(prompt)),
                matched(self.inserts[peer], keys_of(prompt)),
            )
            assert found[estimate.slot] == max(told, added)

    @invariant()
    def pages_are_counted_and_kept_in_order(self) -> None:
        assert [estimate.pages.tolist() for estimate in self.estimates] == self.pages
        assert [set(estimate.inserts) for estimate in self.estimates] == self.inserts
        assert self.index.page_count == sum(map(len, self.pages)) + sum(map(len, self.inserts))


IndexAgainstSets.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndexAgainstSets = IndexAgainstSets.TestCase


@given(
    st.lists(st.lists(st.integers(1, 12), max_size=12), min_size=1, max_size=5),
    st.lists(st.integers(1, 12), max_size=8),
)
def test_trees_with_gaps_match_something_and_break_nothing(trees: list[list[int]], prompt: list[int]) -> None:
    """A peer may send anything: pages whose parents are missing, or a page twice."""
    index = EstimateIndex()
    estimates = [index.open() for _ in trees]
    for estimate, keys in zip(estimates, trees, strict=True):
        index.replace(estimate, keys)
    for estimate, keys in zip(estimates, trees, strict=True):
        assert matched(set(keys), prompt) <= index.match_prefix(prompt)[estimate.slot] <= len(prompt)
    for estimate in estimates:
        index.close(estimate)
    assert index.page_count == 0
    assert index.match_prefix(prompt) == [0] * len(trees)


@given(st.sets(st.integers(0, 40)), st.lists(st.integers(0, 40), unique=True))
def test_a_difference_leads_from_one_tree_to_the_other(before: set[int], keys: list[int]) -> None:
    pages, added, gone = difference(array("Q", sorted(before)), keys)
    assert pages.tolist() == keys
    assert set(gone) == before - set(keys)
    assert sorted(added) == sorted(set(keys) - before)


def test_a_thousand_peers_are_told_apart() -> None:
    """Each holds a prompt to another depth."""
    index = EstimateIndex()
    prompt = list(range(1, 1001))
    for depth in range(1001):
        index.replace(index.open(), prompt[:depth])
    assert index.match_prefix(prompt) == list(range(1001))
