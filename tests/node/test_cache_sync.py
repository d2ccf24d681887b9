"""The own tree after any sequence of cache events equals what the engine holds."""

from __future__ import annotations

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
    sync = _sync()
    tokens = list(range(8))
    other_size = BlockStored(block_hashes=(7,), parent_block_hash=None, token_ids=(1, 2), block_size=2)
    torn = BlockStored(block_hashes=(8, 9), parent_block_hash=None, token_ids=(1, 2, 3, 4), block_size=PAGE)
    sync.apply([_stored(tokens, first=1), other_size, torn, BlockRemoved((12345,))], now=0.0)
    assert sync.unkeyed_blocks == 4
    assert len(sync.tree) == 0


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
