"""The radix tree against a set of prefixes, whatever the order of events, and against a plain LRU list."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from peerinfer.core.radix_tree import RadixTree

# Every page that can occur, as its path: few enough that events hit the same pages again and again.
PATHS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0)]
KEYS = {path: 7919 * (number + 1) for number, path in enumerate(PATHS)}
MEDIA = ("GPU", "CPU")

paths = st.sampled_from(PATHS)
media = st.sampled_from(MEDIA)
few_paths = st.lists(paths, max_size=3)


def prefixes(path: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [path[:depth] for depth in range(1, len(path) + 1)]


def chain(path: tuple[int, ...]) -> list[int]:
    """A prompt's keys, from its start."""
    return [KEYS[prefix] for prefix in prefixes(path)]


def assert_every_head_is_closed(ordered: list[int]) -> None:
    place = {key: index for index, key in enumerate(ordered)}
    for path, key in KEYS.items():
        if key in place and len(path) > 1:
            assert place[KEYS[path[:-1]]] < place[key]


class ArbitraryEvents(RuleBasedStateMachine):
    """Goal: whatever the order of events, the tree shows exactly the pages whose every prefix is held.

    Method: the model keeps the media of each page and closes the set by definition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(capacity_pages=1000)
        self.media: defaultdict[tuple[int, ...], set[str]] = defaultdict(set)
        self.now = 0.0
        self.seen = (self.tree.version, frozenset[tuple[int, ...]]())

    def visible(self) -> frozenset[tuple[int, ...]]:
        return frozenset(path for path in PATHS if all(self.media[prefix] for prefix in prefixes(path)))

    @rule(path=paths, length=st.integers(1, 5), medium=media, step=st.sampled_from([0.0, 1.0]))
    def store(self, path: tuple[int, ...], length: int, medium: str, step: float) -> None:
        self.now += step
        above = path[: max(0, len(path) - length)]
        stored = prefixes(path)[len(above) :]
        self.tree.insert(
            [KEYS[page] for page in stored],
            parent=KEYS[above] if above else None,
            now=self.now,
            medium=medium,
        )
        for page in stored:
            self.media[page].add(medium)

    @rule(removed=few_paths, medium=media)
    def remove(self, removed: list[tuple[int, ...]], medium: str) -> None:
        self.tree.remove([KEYS[page] for page in removed], medium=medium)
        for page in removed:
            self.media[page].discard(medium)

    @rule(path=paths)
    def touch(self, path: tuple[int, ...]) -> None:
        self.now += 1.0
        self.tree.touch(chain(path), now=self.now)
        used = chain(path)[: self.tree.match_prefix(chain(path))]
        assert self.tree.ordered_keys()[: len(used)] == used

    @precondition(lambda self: len(self.tree) > 8)  # else most runs would be over before they began
    @rule()
    def clear(self) -> None:
        self.tree.clear()
        self.media.clear()

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        visible = self.visible()
        assert len(self.tree) == len(visible)
        ordered = self.tree.ordered_keys()
        assert sorted(ordered) == sorted(KEYS[path] for path in visible)
        assert_every_head_is_closed(ordered)
        for path in PATHS:
            assert (KEYS[path] in self.tree) == (path in visible)
            matched = sum(prefix in visible for prefix in prefixes(path))
            assert self.tree.match_prefix(chain(path)) == matched
        version, before = self.seen
        assert (self.tree.version > version) == (visible != before)
        self.seen = (self.tree.version, visible)

    @invariant()
    def is_sound(self) -> None:
        self.tree.check()


class EngineCache(RuleBasedStateMachine):
    """Goal: as an engine's cache (Algorithm 1, lines 7-13) the tree is an exact, bounded LRU.

    Method: the model is a dictionary of last uses; a page's use is a use of all its prefixes.
    """

    CAPACITY = 6

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(capacity_pages=self.CAPACITY)
        self.used: dict[tuple[int, ...], float] = {}
        self.now = 0.0

    def oldest_leaf(self) -> tuple[int, ...] | None:
        parents = {path[:-1] for path in self.used}
        leaves = [path for path in self.used if path not in parents]
        return min(leaves, key=lambda leaf: self.used[leaf], default=None)

    @rule(path=paths)
    def insert(self, path: tuple[int, ...]) -> None:
        self.now += 1.0
        self.tree.insert(chain(path), now=self.now)
        self.used |= dict.fromkeys(prefixes(path), self.now)
        while len(self.used) > self.CAPACITY:
            del self.used[self.oldest_leaf() or ()]

    @rule(path=paths)
    def touch(self, path: tuple[int, ...]) -> None:
        self.now += 1.0
        self.tree.touch(chain(path), now=self.now)
        self.used |= {prefix: self.now for prefix in prefixes(path) if prefix in self.used}

    @rule()
    def evict(self) -> None:
        leaf = self.oldest_leaf()
        assert self.tree.evict_lru() == (None if leaf is None else KEYS[leaf])
        if leaf is not None:
            del self.used[leaf]

    @invariant()
    def holds_what_the_model_holds_in_its_order(self) -> None:
        self.tree.check()
        by_use = sorted(self.used, key=lambda path: (-self.used[path], len(path)))
        assert self.tree.ordered_keys() == [KEYS[path] for path in by_use]


class TooMuch(RuleBasedStateMachine):
    """Goal: the bounds and the links hold for any events in a tree that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(capacity_pages=3)

    @rule(path=paths, length=st.integers(1, 5), medium=media, now=st.floats(0, 10))
    def store(self, path: tuple[int, ...], length: int, medium: str, now: float) -> None:
        above = path[: max(0, len(path) - length)]
        parent = KEYS[above] if above else None
        self.tree.insert(chain(path)[len(above) :], parent=parent, now=now, medium=medium)

    @rule(removed=few_paths, medium=media)
    def remove(self, removed: list[tuple[int, ...]], medium: str) -> None:
        self.tree.remove([KEYS[page] for page in removed], medium=medium)

    @rule()
    def evict(self) -> None:
        before = len(self.tree)
        evicted = self.tree.evict_lru()
        assert evicted is None or evicted not in self.tree
        assert before - 1 <= len(self.tree) <= before

    @invariant()
    def is_sound(self) -> None:
        self.tree.check()
        assert_every_head_is_closed(self.tree.ordered_keys())


STEPS = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestArbitraryEvents = ArbitraryEvents.TestCase
TestArbitraryEvents.settings = STEPS
TestEngineCache = EngineCache.TestCase
TestEngineCache.settings = STEPS
TestTooMuch = TooMuch.TestCase
TestTooMuch.settings = STEPS
