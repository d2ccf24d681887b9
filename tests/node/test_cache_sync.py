"""The own tree after any sequence of cache events equals what the engine holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from peerinfer.node.cache_sync import CacheSync

PAGE = 4


def _sync() -> CacheSync:
    return CacheSync(RadixTree(capacity_pages=1000), PageHasher(salt=derive_salt(None), page_size=PAGE))


def _keys(tokens: list[int]) -> list[int]:
    return PageHasher(salt=derive_salt(None), page_size=PAGE).keys(tokens)


def _stored(tokens: list[int], *, first: int = 0, medium: str = "GPU") -> BlockStored:
    """The event for the pages of a prompt from page `first` on; a block is named by its prefix's hash."""
    names = [hash(tuple(tokens[: end * PAGE])) for end in range(1, len(tokens) // PAGE + 1)]
    return BlockStored(
        block_hashes=tuple(names[first:]),
        parent_block_hash=names[first - 1] if first else None,
        token_ids=tuple(tokens[first * PAGE : len(names) * PAGE]),
        block_size=PAGE,
        medium=medium,
    )


def _small(tokens: list[int], *, first: int = 0, size: int = 1, last: int | None = None) -> BlockStored:
    """The event for a prompt's blocks of `size` tokens from number `first` on."""
    names = [hash((size, *tokens[: end * size])) for end in range(1, len(tokens) // size + 1)][:last]
    return BlockStored(
        block_hashes=tuple(names[first:]),
        parent_block_hash=names[first - 1] if first else None,
        token_ids=tuple(tokens[first * size : len(names) * size]),
        block_size=size,
    )


def test_a_stored_chain_is_matched_by_the_keys_of_its_tokens() -> None:
    sync = _sync()
    tokens = list(range(13))
    sync.apply([_stored(tokens)], now=0.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 3


def test_a_later_event_continues_below_its_parent() -> None:
    sync = _sync()
    tokens = list(range(16))
    sync.apply([_stored(tokens[:8]), _stored(tokens, first=2)], now=0.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 4


def test_a_block_is_gone_when_the_last_medium_dropped_it() -> None:
    sync = _sync()
    tokens = list(range(4))
    name = _stored(tokens).block_hashes
    sync.apply([_stored(tokens), _stored(tokens, medium="CPU"), BlockRemoved(name)], now=0.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 1
    sync.apply([BlockRemoved(name, medium="CPU")], now=1.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 0
    assert len(sync) == 0


def test_blocks_that_cannot_be_keyed_are_counted_and_never_claimed() -> None:
    """Their parent is unknown, their size divides no page or is another one, or their tokens are too few."""
    sync = _sync()
    tokens = list(range(8))
    other_size = BlockStored(block_hashes=(7,), parent_block_hash=None, token_ids=(1, 2), block_size=2)
    torn = BlockStored(block_hashes=(8, 9), parent_block_hash=None, token_ids=(1, 2, 3, 4), block_size=PAGE)
    sync.apply([_stored(tokens, first=1), other_size, torn, BlockRemoved((12345,))], now=0.0)
    assert sync.unkeyed_blocks == 4
    assert len(sync.tree) == 0
    no_page = BlockStored(block_hashes=(10,), parent_block_hash=None, token_ids=(1, 2, 3), block_size=3)
    sync.apply([no_page], now=0.0)
    assert sync.unkeyed_blocks == 5


def test_children_are_claimed_as_soon_as_their_parents_come() -> None:
    """And no longer than those are there."""
    sync = _sync()
    tokens = list(range(16))
    first, rest = _stored(tokens[:4]), _stored(tokens, first=1)
    sync.apply([_stored(tokens, first=3), rest], now=0.0)
    assert (len(sync), len(sync.tree), sync.unkeyed_blocks) == (3, 0, 3)
    sync.apply([first], now=1.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 4
    sync.apply([BlockRemoved(first.block_hashes)], now=2.0)
    assert (len(sync), len(sync.tree), sync.unkeyed_blocks) == (3, 0, 3)
    sync.apply([first], now=3.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 4
    assert sync.unkeyed_blocks == 0


def test_a_name_that_moves_takes_nothing_along() -> None:
    """Method: a block is said to follow another one than before; what followed it stays unclaimed."""
    sync = _sync()
    tokens = list(range(12))
    sync.apply([_stored(tokens)], now=0.0)
    moved = _stored(tokens, first=1).block_hashes[0]
    sync.apply([BlockStored((moved,), None, tuple(tokens[4:8]), PAGE)], now=1.0)
    assert sync.tree.match_prefix(_keys(tokens)) == 1
    assert sync.tree.match_prefix(_keys(tokens[4:8])) == 1


def test_blocks_of_one_token_make_pages() -> None:
    """A branch in the middle of a page shares its beginning; a page goes with any of its tokens."""
    sync = _sync()
    sync.apply([_small([1, 2, 3, 4, 5, 6]), _small([1, 2, 3, 4, 5, 7, 8, 9], first=5)], now=0.0)
    assert set(sync.tree.ordered_keys()) == {*_keys([1, 2, 3, 4, 5, 7, 8, 9])}
    sync.apply([_small([1, 2, 3, 4, 5, 6, 8, 9], first=6)], now=0.0)
    assert len(sync.tree) == 3
    sync.apply([BlockRemoved(_small([1, 2, 3, 4, 5]).block_hashes[4:])], now=1.0)
    assert set(sync.tree.ordered_keys()) == {*_keys([1, 2, 3, 4])}
    sync.apply([_small([1, 2, 3, 4, 5], first=4)], now=2.0)
    assert len(sync.tree) == 3


def test_no_more_blocks_are_remembered_than_the_tree_could_hold() -> None:
    """What is claimed nowhere goes first. Method: blocks that wait for ever, then more pages than fit."""
    sync = CacheSync(RadixTree(capacity_pages=10), PageHasher(salt=derive_salt(None), page_size=PAGE))
    kept = _stored([7] * PAGE)
    sync.apply([kept], now=0.0)
    for number in range(100):
        orphan = BlockStored((1000 + number,), 999, (1,) * PAGE, PAGE)
        sync.apply([orphan], now=0.0)
        assert len(sync) <= sync.blocks_max == 20
    assert sync.tree.match_prefix(_keys([7] * PAGE)) == 1
    for number in range(100):
        sync.apply([_stored([number] * 2 * PAGE)], now=1.0 + number)
        assert len(sync) <= sync.blocks_max
        assert sync.tree.match_prefix(_keys([number] * 2 * PAGE)) == 2
        sync.tree.check()


def test_clearing_empties_tree_and_names() -> None:
    sync = _sync()
    sync.apply([_stored(list(range(8))), AllBlocksCleared()], now=0.0)
    assert (len(sync), len(sync.tree)) == (0, 0)


prompts = st.lists(st.integers(0, 1), min_size=PAGE, max_size=4 * PAGE)


@given(st.lists(st.tuples(prompts, st.booleans()), max_size=30))
def test_the_tree_equals_the_engines_cache_after_any_events(steps: list[tuple[list[int], bool]]) -> None:
    """Method: a model engine that stores whole prompts and evicts whole subtrees, as engines do."""
    sync = _sync()
    held: set[tuple[int, ...]] = set()
    for tokens, store in steps:
        pages = [tuple(tokens[: end * PAGE]) for end in range(1, len(tokens) // PAGE + 1)]
        events: list[CacheEvent]
        if store:
            first = next((i for i, page in enumerate(pages) if page not in held), len(pages))
            events = [_stored(tokens, first=first)] if first < len(pages) else []
            held |= set(pages)
        else:
            gone = {page for page in held if page[: len(pages[-1])] == pages[-1]}
            events = [BlockRemoved(tuple(hash(page) for page in sorted(gone)))]
            held -= gone
        sync.apply(events, now=0.0)
        assert set(sync.tree.ordered_keys()) == {_keys(list(page))[-1] for page in held}


media = st.sampled_from(["GPU", "CPU"])
stretches = st.tuples(prompts, st.integers(0, 15), st.integers(0, 16), st.booleans(), media)


@pytest.mark.parametrize("size", [1, 2, 4])
@given(steps=st.lists(stretches, max_size=30))
def test_what_is_claimed_is_all_there_after_events_in_any_order(
    size: int, steps: list[tuple[list[int], int, int, bool, str]]
) -> None:
    """Blocks smaller than a page; any stretch of any prompt comes or goes, on two media.

    Method: a model that knows each block's media. A page is claimed if every block up to its end is held.
    """
    sync = _sync()
    held: dict[tuple[int, ...], set[str]] = {}
    for tokens, first, length, store, medium in steps:
        event = _small(tokens, first=min(first, len(tokens) // size), size=size, last=first + length)
        blocks = [tuple(tokens[: (first + end) * size]) for end in range(1, len(event.block_hashes) + 1)]
        if store:
            sync.apply([replace(event, medium=medium)], now=0.0)
            for block in blocks:
                held.setdefault(block, set()).add(medium)
        else:
            sync.apply([BlockRemoved(event.block_hashes, medium)], now=0.0)
            for block in blocks:
                held.get(block, set()).discard(medium)
        there = {block for block, on in held.items() if on}
        placed = {
            block for block in there if all(block[:end] in there for end in range(size, len(block), size))
        }
        assert len(sync) == len(there)
        assert sync.unkeyed_blocks == len(there) - len(placed)
        pages = {block for block in placed if len(block) % PAGE == 0}
        assert set(sync.tree.ordered_keys()) == {_keys(list(page))[-1] for page in pages}
    sync.tree.check()
