"""T̂rie_j, what this node believes of one peer's tree (paper §2), and when it stops believing it.

Two parts lie side by side. *Pages* are the owner's word: its last snapshot, ordered by `tree_version`
alone, replaced as a whole. *Inserts* are ours (updateTrieEstimate, Algorithm 1 line 17): the prompts that
the peer has served for us since. They never enter the pages, so an estimate is always some past tree of
its owner plus what we added; and they end with the first message of the owner that covers them, or after
a few of its messages in any case. Pages live in the index of all estimates (core/estimate_index.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence

from peerinfer.core.types import PageKey

NO_VERSION = -1
"""The version of a tree of which nothing was told yet."""
NO_PAGES: array[PageKey] = array("Q")
"""Everybody's at first. Nobody changes an estimate's pages; they are replaced."""


class Estimate:
    """One peer's tree as this node believes it to be."""

    __slots__ = ("_inserts", "_messages", "_named_version", "cut", "pages", "slot", "trimmed", "version")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        """The estimate's bit in the index."""
        self.pages = NO_PAGES
        """The owner's pages, in its order: every head is closed under parents. Written by the index."""
        self.empty()

    def empty(self) -> None:
        """Nothing is known, not even a version; the index takes the pages away."""
        self.version = NO_VERSION
        """The owner's tree version that the pages are of."""
        self.cut = False
        """The owner left out its tree's tail: what is not here is unknown, and counts as absent."""
        self.trimmed = False
        """We dropped the tail ourselves, for want of room."""
        self._named_version = NO_VERSION
        self._messages = 0
        self._inserts: dict[PageKey, tuple[int, int]] = {}

    def lacks(self, tree_version: int) -> bool:
        """Whether a complete snapshot of this version tells more than is known."""
        return tree_version > self.version or (self.trimmed and tree_version == self.version)

    def insert(self, keys: Sequence[PageKey], *, tree_version: int) -> None:
        """The peer served this prompt; its tree has these pages from `tree_version` on."""
        if tree_version <= self._named_version:
            return
        fresh = (tree_version, self._messages)
        for key in keys:
            # The later of each, so that no page is dropped before those that follow it.
            version, message = self._inserts.get(key, fresh)
            self._inserts[key] = (max(version, tree_version), max(message, self._messages))

    def heard(self, tree_version: int, *, is_round: bool, rounds_max: int) -> None:
        """The owner named a version: drop the inserts it covers and, counting rounds, those too old."""
        self._named_version = max(self._named_version, tree_version)
        self._messages += is_round
        if self._inserts:
            self._inserts = {
                key: (version, message)
                for key, (version, message) in self._inserts.items()
                if version > self._named_version and message > self._messages - rounds_max
            }

    def match_inserts(self, keys_backwards: Sequence[PageKey]) -> int:
        """How many of a prompt's pages, given last page first, our own inserts promise."""
        return len(keys_backwards) - bisect_left(keys_backwards, True, key=self._inserts.__contains__)

    @property
    def inserts(self) -> Collection[PageKey]:
        """The pages that we added to the owner's word."""
        return self._inserts.keys()
