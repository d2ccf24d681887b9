"""The engines' prefix cache: a radix tree of whole pages, exact, least recently used first to go.

Algorithm 1, lines 7-13, is spelled out here and only here: `Lease.extend` makes room (lines 7-10), keeps
what `RunInfer` computed (line 12) and enters it in the tree (line 13). The paper makes room before line 11;
here a page costs memory only once it has been computed (the slot that computes it owns its own), so room
is made page by page at the moment when a page is ready, and a cancelled request leaves what it finished.

Rules: a page is matched by its tokens, so a hash collision can never give a wrong answer; what a running
request stands on is never evicted (`Lease`); every change is told at once and in order, as events. One
thread only: the tree is touched by trio's thread alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

Blob = TypeVar("Blob")
"""A page's KV cache, whatever an engine keeps as such."""

MEDIUM = "CPU"


class Page(Generic[Blob]):
    """One page of tokens below its parent, with its KV cache."""

    __slots__ = ("blob", "block_hash", "kids", "leases", "parent", "tokens")

    def __init__(self, tokens: tuple[int, ...], blob: Blob, parent: Page[Blob] | None) -> None:
        self.tokens = tokens
        self.blob = blob
        self.parent = parent
        self.kids: dict[tuple[int, ...], Page[Blob]] = {}
        self.leases = 0
        self.block_hash: int = block_hash(None if parent is None else parent.block_hash, tokens)


class PageCache(Generic[Blob]):
    """Cached pages under a budget; `emit` hears of every change while it happens."""

    def __init__(
        self, *, page_size: int, capacity_pages: int, emit: Callable[[Sequence[CacheEvent]], None]
    ) -> None:
        assert page_size > 0
        assert capacity_pages >= 0
        self.page_size = page_size
        self.capacity_pages = capacity_pages
        self.losses = 0
        """Rises whenever pages go."""
        self._emit = emit
        self._heads: dict[tuple[int, ...], Page[Blob]] = {}
        # Least recently used first. A page is used together with all its ancestors, leaf before parent,
        # so the first page that nobody stands on is always a leaf or the ancestor of a leased one.
        self._order: OrderedDict[Page[Blob], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def match_prefix(self, token_ids: Sequence[int]) -> int:
        """Tokens of this prompt that a request would take from the cache now; touches nothing."""
        return len(self._walk(token_ids)) * self.page_size

    def open(self, token_ids: Sequence[int]) -> Lease[Blob]:
        """Hold the longest cached prefix of a prompt; it counts as used now."""
        return Lease(self, self._walk(token_ids))

    def clear(self) -> None:
        """Forget everything; leases that are still open store nothing any more."""
        for page in self._order:
            page.kids = {}
        self._heads = {}
        self._order.clear()
        self.losses += 1
        self._emit([AllBlocksCleared()])

    def prefixes(self) -> Iterator[tuple[int, ...]]:
        """The token sequence from the start through each cached page, in no particular order."""
        for page in self._order:
            tokens = page.tokens
            parent = page.parent
            while parent is not None:
                tokens = parent.tokens + tokens
                parent = parent.parent
            yield tokens

    def check(self) -> None:
        """Assert that tree, order and budget agree."""
        assert len(self._order) <= self.capacity_pages
        rank = {page: place for place, page in enumerate(self._order)}
        seen = list(self._heads.values())
        for page in seen:
            assert page in rank, "a page of the tree is not in the order"
            assert page.parent is None or rank[page.parent] > rank[page], "used more recently than its parent"
            seen.extend(page.kids.values())
        assert len(seen) == len(self._order), "the order holds pages that are not in the tree"

    def _walk(self, token_ids: Sequence[int]) -> list[Page[Blob]]:
        # The last token is always computed, since its logits are what the answer starts from.
        path: list[Page[Blob]] = []
        kids = self._heads
        for tokens in cut(token_ids[: len(token_ids) - 1], self.page_size):
            page = kids.get(tokens)
            if page is None:
                break
            path.append(page)
            kids = page.kids
        return path

    def _touch(self, page: Page[Blob] | None) -> None:
        while page is not None:
            self._order.move_to_end(page)
            page = page.parent

    def _kids_of(self, page: Page[Blob] | None) -> dict[tuple[int, ...], Page[Blob]]:
        return self._heads if page is None else page.kids

    def _make_room(self, pages: int) -> int:
        """How many of so many pages fit, after evicting what can be evicted for them."""
        evicted: list[int] = []
        while pages > self.capacity_pages - len(self._order):  # line 7
            page = self._evict_lru_page()  # line 8
            if page is None:
                break
            evicted.append(page.block_hash)
        if evicted:
            self._emit([BlockRemoved(tuple(evicted), MEDIUM)])
        return min(pages, self.capacity_pages - len(self._order))

    def _evict_lru_page(self) -> Page[Blob] | None:
        page = next((page for page in self._order if not page.kids and not page.leases), None)
        if page is not None:
            del self._kids_of(page.parent)[page.tokens]
            del self._order[page]  # line 9: the page's blob goes with it
            self.losses += 1
        return page

    def _store(
        self, parent: Page[Blob] | None, pages: Sequence[tuple[int, ...]], blobs: Sequence[Blob]
    ) -> Page[Blob]:
        new: list[Page[Blob]] = []
        tip = parent
        for tokens, blob in zip(pages, blobs, strict=True):
            page = Page(tokens, blob, tip)  # line 12
            self._kids_of(tip)[tokens] = page  # line 13
            self._order[page] = None
            new.append(page)
            tip = page
        assert tip is not None
        self._emit(
            [
                BlockStored(
                    block_hashes=tuple(page.block_hash for page in new),
                    parent_block_hash=None if parent is None else parent.block_hash,
                    token_ids=tuple(token for page in new for token in page.tokens),
                    block_size=self.page_size,
                    medium=MEDIUM,
                )
            ]
        )
        return tip


class Lease(Generic[Blob]):
    """A running request's hold on its path through the tree: what it stands on stays.

    A context manager; closing it lets go.
    """

    def __init__(self, cache: PageCache[Blob], path: list[Page[Blob]]) -> None:
        self._cache = cache
        self._tip: Page[Blob] | None = None
        self._detached = False
        self._move_to(path[-1] if path else None)
        cache._touch(self._tip)
        self.blobs = [page.blob for page in path]
        """The KV cache of the prefix that was cached when the lease was opened."""
        self.cached_tokens = len(path) * cache.page_size

    def extend(self, pages: Sequence[tuple[int, ...]], blobs: Sequence[Blob]) -> None:
        """Keep the next pages of this request, as far as there is room for them.

        Pages that another request has stored meanwhile are shared. Once a page found no room nothing after
        it is kept: the tree has no holes.
        """
        if self._detached or (self._tip is not None and self._tip not in self._cache._order):
            return
        cache = self._cache
        known = 0
        for tokens in pages:
            page = cache._kids_of(self._tip).get(tokens)
            if page is None:
                break
            self._move_to(page)
            known += 1
        missing = len(pages) - known
        if missing:
            fitting = cache._make_room(missing)  # lines 7-10
            self._detached = fitting < missing
            if fitting:
                until = known + fitting
                self._move_to(cache._store(self._tip, pages[known:until], blobs[known:until]))  # lines 12, 13
        cache._touch(self._tip)

    def close(self) -> None:
        """Let go; the pages stay cached until they are evicted."""
        self._detached = True
        self._move_to(None)

    def _move_to(self, page: Page[Blob] | None) -> None:
        if self._tip is not None:
            self._tip.leases -= 1
        if page is not None:
            page.leases += 1
        self._tip = page

    def __enter__(self) -> Lease[Blob]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cut(token_ids: Sequence[int], page_size: int) -> list[tuple[int, ...]]:
    """The whole pages of a token sequence."""
    whole = len(token_ids) // page_size * page_size
    return [tuple(token_ids[at : at + page_size]) for at in range(0, whole, page_size)]


def block_hash(parent: int | None, tokens: Sequence[int]) -> int:
    """The engine's own 64-bit name of a page: a hash over the whole prefix that it ends."""
    digest = hashlib.blake2b(digest_size=8, person=b"peerinfer-block")
    digest.update(b"" if parent is None else parent.to_bytes(8, "big"))
    digest.update(struct.pack(f"<{len(tokens)}I", *tokens))
    return int.from_bytes(digest.digest(), "big")
