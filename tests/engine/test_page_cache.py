"""The prefix cache of our own engines: Algorithm 1, lines 7-13."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from peerinfer.engine.page_cache import Lease, PageCache, block_hash, cut

PAGE = 2


def make(capacity_pages: int) -> tuple[PageCache[str], list[CacheEvent]]:
    events: list[CacheEvent] = []
    return PageCache(page_size=PAGE, capacity_pages=capacity_pages, emit=events.extend), events


def keep(cache: PageCache[str], tokens: Sequence[int], *, close: bool = True) -> Lease[str]:
    """What an engine does for a prompt: match, compute the rest, keep it."""
    lease = cache.open(tokens)
    pages = cut(tokens, PAGE)[lease.cached_tokens // PAGE :]
    lease.extend(pages, [f"kv of {page}" for page in pages])
    if close:
        lease.close()
    return lease


def test_the_last_token_is_always_computed() -> None:
    cache, _ = make(10)
    keep(cache, [1, 2, 3, 4])
    assert cache.match_prefix([1, 2, 3, 4]) == 2
    assert cache.match_prefix([1, 2, 3, 4, 5]) == 4
    assert cache.match_prefix([]) == 0


def test_a_lease_carries_the_blobs_of_its_prefix() -> None:
    cache, _ = make(10)
    keep(cache, [1, 2, 3, 4])
    assert keep(cache, [1, 2, 3, 4, 5]).blobs == ["kv of (1, 2)", "kv of (3, 4)"]


def test_consecutive_pages_are_told_as_one_event_below_their_parent() -> None:
    cache, events = make(10)
    keep(cache, [1, 2])
    keep(cache, [1, 2, 3, 4, 5, 6, 7])
    parent = block_hash(None, (1, 2))
    first, second = block_hash(parent, (3, 4)), block_hash(block_hash(parent, (3, 4)), (5, 6))
    assert events == [
        BlockStored((parent,), None, (1, 2), PAGE, "CPU"),
        BlockStored((first, second), parent, (3, 4, 5, 6), PAGE, "CPU"),
    ]


def test_the_least_recently_used_leaf_goes_first_and_is_told_before_what_replaces_it() -> None:
    cache, events = make(3)
    keep(cache, [1, 2, 3, 4])
    keep(cache, [5, 6])
    keep(cache, [1, 2, 9])
    del events[:]
    keep(cache, [7, 8])
    head = block_hash(None, (1, 2))
    assert events == [
        BlockRemoved((block_hash(head, (3, 4)),), "CPU"),
        BlockStored((block_hash(None, (7, 8)),), None, (7, 8), PAGE, "CPU"),
    ]
    keep(cache, [9, 9])
    assert cache.match_prefix([1, 2, 0]) == PAGE, "used after (5, 6)"
    assert cache.match_prefix([5, 6, 0]) == 0


def test_what_a_running_request_stands_on_stays() -> None:
    cache, _ = make(2)
    lease = keep(cache, [1, 2, 3, 4], close=False)
    keep(cache, [5, 6])
    assert cache.match_prefix([1, 2, 3, 4, 0]) == 4
    lease.close()
    keep(cache, [5, 6])
    assert cache.match_prefix([5, 6, 0]) == PAGE


def test_a_prompt_longer_than_the_cache_keeps_its_head() -> None:
    """And nothing behind the gap, also when there is room again: the tree has no holes."""
    cache, _ = make(2)
    lease = keep(cache, [1, 2, 3, 4, 5, 6], close=False)
    assert cache.match_prefix([1, 2, 3, 4, 5, 6, 0]) == 4
    cache.capacity_pages = 10
    lease.extend([(7, 8)], ["kv"])
    assert len(cache) == 2


def test_pages_that_another_request_stored_meanwhile_are_shared() -> None:
    cache, events = make(10)
    slow, quick = cache.open([1, 2, 3, 4]), cache.open([1, 2, 3, 4])
    for lease in (quick, slow):
        lease.extend([(1, 2), (3, 4)], ["a", "b"])
        lease.close()
    assert len(cache) == 2
    assert len(events) == 1


def test_after_clearing_an_open_lease_stores_nothing() -> None:
    cache, events = make(10)
    lease = keep(cache, [1, 2], close=False)
    cache.clear()
    lease.extend([(3, 4)], ["kv"])
    lease.close()
    assert len(cache) == 0
    assert events[-1] == AllBlocksCleared()


def test_losses_rise_whenever_pages_go_and_only_then() -> None:
    cache, _ = make(1)
    keep(cache, [1, 2])
    cache.match_prefix([1, 2, 5])
    cache.open([1, 2, 5]).close()
    assert cache.losses == 0
    keep(cache, [3, 4])
    assert cache.losses == 1
    cache.clear()
    assert cache.losses == 2


class CacheMachine(RuleBasedStateMachine):
    """Any interleaving of requests: budget, order, pins and events hold.

    Method: a set of page names is fed by the events alone; it must equal the cache, whose prefixes must be
    closed under parents, and every open lease must still match what it stands on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, int | None] = {}
        self.cache: PageCache[str] = PageCache(page_size=PAGE, capacity_pages=5, emit=self.hear)
        self.open: list[tuple[list[int], Lease[str], int]] = []

    def hear(self, events: Sequence[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    assert event.parent_block_hash is None or event.parent_block_hash in self.names
                    parent = event.parent_block_hash
                    for name in event.block_hashes:
                        assert name not in self.names, "stored twice"
                        self.names[name] = parent
                        parent = name
                case BlockRemoved():
                    for name in event.block_hashes:
                        del self.names[name]
                        assert name not in self.names.values(), "a parent went before its child"
                case AllBlocksCleared():
                    self.names.clear()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def begin(self, tokens: list[int]) -> None:
        lease = self.cache.open(tokens)
        self.open.append((tokens, lease, lease.cached_tokens // PAGE))

    @rule(which=st.integers(0, 9), pages=st.integers(1, 3))
    def compute(self, which: int, pages: int) -> None:
        if self.open:
            tokens, lease, done = self.open[which % len(self.open)]
            new = cut(tokens, PAGE)[done : done + pages]
            lease.extend(new, ["kv"] * len(new))
            self.open[which % len(self.open)] = (tokens, lease, done + len(new))

    @rule(which=st.integers(0, 9))
    def finish(self, which: int) -> None:
        if self.open:
            self.open.pop(which % len(self.open))[1].close()

    @rule()
    def clear(self) -> None:
        for _, lease, _ in self.open:
            lease.close()
        self.open.clear()
        self.cache.clear()

    @invariant()
    def everything_agrees(self) -> None:
        self.cache.check()
        prefixes = set(self.cache.prefixes())
        assert len(prefixes) == len(self.cache) == len(self.names)
        assert all(prefix[:-PAGE] in prefixes or len(prefix) == PAGE for prefix in prefixes)
        for tokens, lease, _ in self.open:
            assert self.cache.match_prefix(tokens) >= lease.cached_tokens


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
