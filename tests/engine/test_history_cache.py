"""The guess about a server that tells no cache events: it ages, is bounded, and follows what is reported."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import CacheEvent
from peerinfer.engine.history_cache import KEPT_S_MAX, KEPT_S_MIN, HistoryCache
from peerinfer.node.cache_sync import CacheSync

PAGE = 4


class Believed:
    """A history, and the tree that a node builds from its events."""

    def __init__(self, *, capacity_pages: int = 100, kept_s_max: float = KEPT_S_MAX) -> None:
        self.now = 0.0
        self._hasher = PageHasher(salt=derive_salt(b"another salt than the history's"), page_size=PAGE)
        self.sync = CacheSync(RadixTree(capacity_pages=1000), self._hasher)
        self.history = HistoryCache(
            page_size=PAGE, capacity_pages=capacity_pages, emit=self._apply, kept_s_max=kept_s_max
        )

    def _apply(self, events: Sequence[CacheEvent]) -> None:
        assert events
        self.sync.apply(events, now=self.now)
        assert self.sync.unkeyed_blocks == 0

    def match(self, tokens: Sequence[int]) -> int:
        return self.sync.tree.match_prefix(self._hasher.keys(tokens))

    def answered(self, tokens: Sequence[int], *, at: float, cached_tokens: int | None = None) -> None:
        self.now = at
        self.history.answered(tokens, sent_at=at, now=at, cached_tokens=cached_tokens)
        assert len(self.sync.tree) == len(self.history)


def prompt(number: int, pages: int) -> list[int]:
    return [number * 100 + place for place in range(pages * PAGE)]


def test_a_prompt_is_believed_to_be_cached_once_answered() -> None:
    believed = Believed()
    believed.answered([*prompt(1, 3), 7], at=1)
    assert believed.match(prompt(1, 4)) == 3
    believed.answered(prompt(1, 5), at=2)
    assert believed.match(prompt(1, 5)) == 5


def test_it_is_believed_for_so_long_after_its_last_use() -> None:
    """A prompt's beginning counts as used with every prompt that goes on from it."""
    believed = Believed(kept_s_max=60)
    believed.answered(prompt(1, 4), at=0)
    believed.answered(prompt(1, 2), at=30)
    believed.history.expire(now=59.9)
    assert believed.match(prompt(1, 4)) == 4
    believed.history.expire(now=60)
    assert believed.match(prompt(1, 4)) == 2
    believed.history.expire(now=90)
    assert len(believed.history) == len(believed.sync.tree) == len(believed.sync) == 0


def test_no_more_is_believed_than_fits() -> None:
    """The least recently used goes first, from its end; a prompt that is too long is kept in part."""
    believed = Believed(capacity_pages=6)
    believed.answered(prompt(1, 3), at=0)
    believed.answered(prompt(2, 2), at=1)
    believed.answered(prompt(3, 3), at=2)
    assert [believed.match(prompt(number, 3)) for number in (1, 2, 3)] == [1, 2, 3]
    believed.answered(prompt(4, 9), at=3)
    assert [believed.match(prompt(number, 9)) for number in (1, 2, 3, 4)] == [0, 0, 0, 6]


def test_a_reported_miss_shortens_the_time_that_is_believed_in() -> None:
    believed = Believed()
    believed.answered(prompt(1, 4), at=0, cached_tokens=0)
    assert believed.history.kept_s == KEPT_S_MAX
    believed.answered(prompt(2, 4), at=10)
    believed.answered([*prompt(1, 4), 1], at=100, cached_tokens=0)
    assert believed.history.kept_s == 80
    believed.answered([*prompt(3, 4), 1], at=101)
    assert believed.match(prompt(2, 4)) == 0, "it is as old as what was missed"


def test_a_late_hit_lengthens_it_again() -> None:
    believed = Believed()
    believed.answered([*prompt(1, 4), 1], at=0)
    believed.answered([*prompt(1, 4), 1], at=100, cached_tokens=0)
    believed.answered([*prompt(1, 4), 1], at=110, cached_tokens=4 * PAGE)
    assert believed.history.kept_s == 80, "an early hit proves nothing"
    believed.answered([*prompt(1, 4), 1], at=160, cached_tokens=4 * PAGE)
    assert believed.history.kept_s == 120
    for hit in range(20):
        age_s = 0.9 * believed.history.kept_s
        believed.answered([*prompt(1, 4), 1], at=believed.now + age_s, cached_tokens=4 * PAGE)
        assert believed.history.kept_s <= KEPT_S_MAX, f"hit {hit}"
    assert believed.history.kept_s == KEPT_S_MAX


def test_a_server_that_caches_nothing_is_soon_believed_to_hold_nothing() -> None:
    believed = Believed()
    for at in range(0, 50, 5):
        believed.answered([*prompt(1, 4), 1], at=at, cached_tokens=0)
    believed.history.expire(now=believed.now + 5)
    assert len(believed.history) == 0
    believed.answered([*prompt(1, 4), 1], at=100, cached_tokens=0)
    believed.answered([*prompt(1, 4), 1], at=100.1, cached_tokens=0)
    assert believed.history.kept_s == KEPT_S_MIN


def test_a_server_that_reuses_in_large_steps_has_missed_nothing() -> None:
    believed = Believed()
    believed.answered([*prompt(1, 7), 1], at=0)
    believed.answered([*prompt(1, 7), 1], at=10, cached_tokens=4 * PAGE)
    assert believed.history.kept_s == KEPT_S_MAX


def test_requests_under_way_together_prove_nothing() -> None:
    """Method: the second was sent before the first had been computed, so it could not be cached."""
    believed = Believed()
    believed.history.answered([*prompt(1, 4), 1], sent_at=0, now=2, cached_tokens=0)
    believed.history.answered([*prompt(1, 4), 1], sent_at=1, now=3, cached_tokens=0)
    assert believed.history.kept_s == KEPT_S_MAX


def test_a_restarted_server_holds_nothing() -> None:
    believed = Believed()
    believed.answered(prompt(1, 4), at=0)
    believed.history.clear()
    assert len(believed.history) == len(believed.sync) == 0


async def test_it_ages_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    believed = Believed(kept_s_max=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(believed.history.run)
        believed.answered(prompt(1, 4), at=trio.current_time())
        await trio.sleep(4.5)
        assert believed.match(prompt(1, 4)) == 4
        await trio.sleep(1.5)
        assert believed.match(prompt(1, 4)) == 0
        nursery.cancel_scope.cancel()


prompts = st.lists(st.integers(0, 1), max_size=5 * PAGE)
reports = st.none() | st.integers(0, 6 * PAGE)


@given(st.lists(st.tuples(prompts, st.floats(0, 100), reports), max_size=30))
def test_the_tree_is_the_history_whatever_is_answered(
    steps: list[tuple[list[int], float, int | None]],
) -> None:
    """Bounded, closed under prefixes, and with nothing that has not been answered."""
    believed = Believed(capacity_pages=8)
    for tokens, pause_s, cached_tokens in steps:
        believed.answered(tokens, at=believed.now + pause_s, cached_tokens=cached_tokens)
        assert len(believed.history) <= 8
        assert believed.match(tokens) == min(len(tokens) // PAGE, 8)
        believed.sync.tree.check()
