"""All estimates at once: one PrefixMatch of a prompt against every peer's tree.

Theory of operation. Each peer has a slot, a bit. The index maps a page's key to the bits of those who hold
it, so a page that a thousand peers hold is stored once. Walking down a prompt's chain of keys, owners can
only fall away; where two pages have the same owners, nobody falls away between them. So the match is a
binary search over the chain for all peers together, that descends only where owners differ: some five
lookups for a specialist, and never more than one per page.

A peer's pages are kept a second time as packed 8-byte keys in the owner's order. They tell what a new
snapshot changed, so that it is applied as a difference, and what to drop first when the pool is full. They
are never changed, only replaced. The difference depends on nothing but the two snapshots; a simulation, in
which a thousand nodes take the same step, has it computed once.

Rejected: a dictionary per peer. It matches as fast among four peers, but takes 0.85 ms among 1,000 peers
of 2,000 pages, where this takes 0.15 ms.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import filterfalse
from typing import NamedTuple

from peerinfer.core.estimate import Estimate
from peerinfer.core.types import PageKey

Differ = Callable[["array[PageKey]", Sequence[PageKey]], "Difference"]

PAGE_BYTES = 100  # measured: benchmarks/test_core_b.py; 89 to 98, less where peers hold the same pages
"""What a page of an estimate takes, keys and index together."""


class Difference(NamedTuple):
    """What a tree became."""

    pages: array[PageKey]
    """All of it, packed."""
    added: Collection[PageKey]
    gone: Collection[PageKey]


def difference(before: array[PageKey], keys: Sequence[PageKey]) -> Difference:
    """From the pages that a peer had to those that it has."""
    gone = set(before)
    added = tuple(filterfalse(gone.__contains__, keys))
    gone.difference_update(keys)
    return Difference(array("Q", keys), added, tuple(gone))


class EstimateIndex:
    """Every peer's pages, for matching and within a common bound.

    Args:
        differ: `difference`, or what gives the same.
    """

    def __init__(self, differ: Differ = difference) -> None:
        self._differ = differ
        self.page_count = 0
        """Pages of all estimates together, our own inserts included."""
        self._owners: dict[PageKey, int] = {}
        self._estimates: list[Estimate] = []
        self._free: list[Estimate] = []
        self._inserted: dict[int, Estimate] = {}  # those with inserts, by slot

    def open(self) -> Estimate:
        """An empty estimate for a new peer."""
        if self._free:
            return self._free.pop()
        self._estimates.append(Estimate(len(self._estimates)))
        return self._estimates[-1]

    def close(self, estimate: Estimate) -> None:
        """The peer is forgotten; its slot is another one's next."""
        self.empty(estimate)
        self._free.append(estimate)

    def empty(self, estimate: Estimate) -> None:
        """Nothing is known of the peer's tree any more."""
        self.trim(estimate, 0)
        self.page_count -= len(estimate.inserts)
        self._inserted.pop(estimate.slot, None)
        estimate.empty()

    def replace(self, estimate: Estimate, keys: Sequence[PageKey]) -> None:
        """The peer's pages are exactly these now; the work is for those that changed."""
        bit = 1 << estimate.slot
        pages, added, gone = self._differ(estimate.pages, keys)
        self._update(added, lambda owners: owners | bit)
        self._update(gone, lambda owners: owners & ~bit)
        self.page_count += len(pages) - len(estimate.pages)
        estimate.pages = pages
        estimate.trimmed = False

    def insert(self, estimate: Estimate, keys: Sequence[PageKey], *, tree_version: int) -> None:
        """The peer served this prompt; see `Estimate.insert`."""
        count = len(estimate.inserts)
        estimate.insert(keys, tree_version=tree_version)
        if estimate.inserts:
            self._inserted[estimate.slot] = estimate
        self.page_count += len(estimate.inserts) - count

    def heard(self, estimate: Estimate, tree_version: int, *, is_round: bool, rounds_max: int) -> None:
        """The peer named its tree's version; see `Estimate.heard`."""
        count = len(estimate.inserts)
        estimate.heard(tree_version, is_round=is_round, rounds_max=rounds_max)
        if count and not estimate.inserts:
            del self._inserted[estimate.slot]
        self.page_count += len(estimate.inserts) - count

    def trim(self, estimate: Estimate, pages_max: int) -> None:
        """Drop the tail of the peer's pages beyond so many."""
        tail = estimate.pages[pages_max:]
        if tail:
            bit = 1 << estimate.slot
            self._update(tail, lambda owners: owners & ~bit)
            self.page_count -= len(tail)
            estimate.pages = estimate.pages[:pages_max]
            estimate.trimmed = True

    def match_prefix(self, keys: Sequence[PageKey]) -> list[int]:
        """For each slot, how many of a prompt's pages its peer holds, from the prompt's start."""
        matched = [0] * len(self._estimates)
        if keys and (owners := self._owners.get(keys[0], 0)):
            self._descend(keys, 1, owners, len(keys) + 1, 0, matched)
        if self._inserted:
            backwards = keys[::-1]
            for slot, estimate in self._inserted.items():
                matched[slot] = max(matched[slot], estimate.match_inserts(backwards))
        return matched

    def trim_all(self, pages_max: int) -> None:
        """Trim the largest estimates to a common size, so that all together have at most so many pages."""
        room = pages_max - sum(len(estimate.inserts) for estimate in self._inserted.values())
        sizes = sorted(len(estimate.pages) for estimate in self._estimates)
        share = 0
        for position, size in enumerate(sizes):
            share = max(0, room) // (len(sizes) - position)
            if size > share:
                break
            room -= size
        for estimate in self._estimates:
            self.trim(estimate, share)

    def _update(self, keys: Iterable[PageKey], change: Callable[[int], int]) -> None:
        """Change the owners of these pages. Pages of the same owners go on sharing one number."""
        changed: dict[int, int] = {}
        owners = self._owners
        for key in keys:
            before = owners.get(key, 0)
            after = changed.get(before)
            if after is None:
                after = changed[before] = change(before)
            if after:
                owners[key] = after
            else:
                owners.pop(key, None)

    def _descend(
        self, keys: Sequence[PageKey], low: int, at_low: int, high: int, at_high: int, matched: list[int]
    ) -> None:
        """Who holds page `low` (counted from 1) but not page `high` falls away between them: find where."""
        if high - low == 1:
            fallen = at_low & ~at_high
            while fallen:
                lowest = fallen & -fallen
                matched[lowest.bit_length() - 1] = low
                fallen ^= lowest
            return
        middle = (low + high) // 2
        at_middle = at_low & self._owners.get(keys[middle - 1], 0)
        if at_middle != at_low:
            self._descend(keys, low, at_low, middle, at_middle, matched)
        if at_middle != at_high:
            self._descend(keys, middle, at_middle, high, at_high, matched)
