"""The pages that a cache holds, as the radix tree Trie_i of paper §2.

Theory of operation. A page's key names a whole prefix (core/page_keys.py), so the tree is a set of keys
plus, for each, the link to its parent. A page is *present* while any medium holds it, and *visible* if
it and all its ancestors are present: only then can a prompt use it. Visible pages are a dictionary of
their own, closed under parents, so that a match is a binary search over the prompt's keys. The others
wait in `_hidden`: present pages below a gap, and absent pages that a present one hangs below (its gap).
They become visible when the gap closes, so events may come in any order, children before parents too.

Use spreads upwards: a page was last used no earlier than anything below it. Hence the least recently
used page is a leaf, and sorting by last use, then depth, puts every parent before its children. The
dictionary of visible pages is kept in that order, backwards: who uses a prompt moves its pages to the end,
the deepest first, so that telling the order costs no sorting. Only what this does not put in order (several
prompts used at one moment, a gap that closes over what was there) is sorted when it is asked for.
Leaves wait for eviction in a heap whose entries may be older than the truth: a leaf that was used since
is queued again when it comes up, so that using a page costs the heap nothing.

The paper's primitives: PrefixMatch = `match_prefix`, updateTrie = `insert`, evictLRUTrie = `evict_lru`,
sendTrie sends `ordered_keys`. A node's own tree follows its engine's events.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from peerinfer.core.evictions import Evictions
from peerinfer.core.types import PageKey

HIDDEN_SLACK = 2
"""Visible and hidden pages together are at most this many times `capacity_pages`."""
_HIDDEN = -1  # the depth of a page that is not visible
_STALE_SLACK = 64  # so many stale entries of the heap are not worth tidying up


class _Page:
    """A page and its links; children are a doubly linked list, since most pages have just one."""

    __slots__ = ("child", "depth", "key", "last_used", "media", "parent", "sibling_after", "sibling_before")

    def __init__(self, key: PageKey, last_used: float) -> None:
        self.key = key
        self.last_used = last_used
        self.media = 0  # one bit for each medium that holds it; 0 is absent
        self.depth = _HIDDEN  # pages from the start of a prompt; the root has 0
        self.parent: _Page | None = None
        self.child: _Page | None = None
        self.sibling_before: _Page | None = None
        self.sibling_after: _Page | None = None

    def children(self) -> Iterator[_Page]:
        child = self.child
        while child is not None:
            yield child
            child = child.sibling_after

    def upwards(self) -> Iterator[_Page]:
        page: _Page | None = self
        while page is not None:
            yield page
            page = page.parent


class RadixTree:
    """A bounded set of cached prefixes with last use; reads change nothing, times never go backwards."""

    def __init__(self, *, capacity_pages: int) -> None:
        if capacity_pages < 1:
            raise ValueError(f"capacity_pages is {capacity_pages}; a tree holds at least one page")
        self.capacity_pages = capacity_pages
        self.version = 0
        """Rises with every change of the visible pages, and never falls."""
        self.evictions = Evictions(pages_max=capacity_pages)
        self._media: dict[str, int] = {}
        self._now = -math.inf
        """The latest use; what goes is as old as it was last used before that."""
        self._visible: dict[PageKey, _Page]
        """In the order of use, last used last and parents after their children, unless it is unsorted."""
        self._unsorted: bool
        self._empty()

    # Reads

    def match_prefix(self, keys: Sequence[PageKey]) -> int:
        """How many of a prompt's pages are here, from its start (PrefixMatch). Changes nothing."""
        visible = self._visible
        known, unknown = 0, len(keys)
        while known < unknown:
            middle = (known + unknown) // 2
            if keys[middle] in visible:
                known = middle + 1
            else:
                unknown = middle
        return known

    def ordered_keys(self) -> list[PageKey]:
        """The visible pages, last used first, then the shallower; so every head is closed under parents."""
        if self._unsorted:
            pages = sorted(self._visible.values(), key=attrgetter("depth"), reverse=True)
            pages.sort(key=attrgetter("last_used"))
            self._visible = {page.key: page for page in pages}
            self._unsorted = False
        return list(reversed(self._visible))

    def __len__(self) -> int:
        """Visible pages."""
        return len(self._visible)

    def __contains__(self, key: PageKey) -> bool:
        """Whether a page is visible."""
        return key in self._visible

    # Changes

    def insert(
        self, keys: Sequence[PageKey], *, parent: PageKey | None = None, now: float, medium: str = "GPU"
    ) -> None:
        """A medium holds this chain of pages below `parent` now; None is a prompt's start (updateTrie).

        They and their ancestors count as used at `now`. Beyond the capacity the least recently used go.
        Raises ValueError if a page is said to follow another page than before, or one that follows it.
        """
        if not keys:
            return
        self._now = max(self._now, now)
        bit = self._media.setdefault(medium, 1 << len(self._media))
        above = self._root if parent is None else self._find(parent) or self._new(parent, now)
        fresh, changed = False, False
        try:
            for key in keys:
                page = self._place(key, above, now)
                fresh = page.child is None and not page.media
                page.media |= bit
                if page.depth == _HIDDEN and above.depth != _HIDDEN:
                    self._reveal(page)
                    self.evictions.came(key)
                    changed = True
                above = page
        finally:
            self._use(above, now)
            self._move_to_end(above, now)
            self.version += changed
            if fresh:
                self._queue(above)
            self._prune(above)  # a parent that nothing was put below
        while len(self._visible) > self.capacity_pages or self._pages() > HIDDEN_SLACK * self.capacity_pages:
            self.evict_lru()

    def remove(self, keys: Iterable[PageKey], *, medium: str = "GPU") -> None:
        """A medium does not hold these pages any more; unknown ones are ignored.

        What is below a page that is gone from all media is hidden until the page returns.
        """
        bit = self._media.get(medium, 0)
        changed = False
        for key in keys:
            page = self._find(key)
            if page is not None and page.media & bit:
                page.media &= ~bit
                if not page.media:
                    changed |= self._vacate(page)
        self.version += changed

    def clear(self) -> None:
        """Nothing is cached any more, on any medium."""
        self.version += bool(self._visible)
        self._empty()

    def touch(self, keys: Sequence[PageKey], *, now: float) -> None:
        """Mark what is here of a prompt as used."""
        self._now = max(self._now, now)
        matched = self.match_prefix(keys)
        if matched and (last := self._visible[keys[matched - 1]]).last_used < now:
            self._use(last, now)
            self._move_to_end(last, now)

    def evict_lru(self) -> PageKey | None:
        """Remove one least recently used leaf from all media and return it (evictLRUTrie).

        None means that there is no page left. Hidden pages are evicted alike: they take room, too.
        """
        while self._leaves:
            last_used, key = heapq.heappop(self._leaves)
            page = self._find(key)
            if page is None or page.child is not None:
                continue
            if page.last_used > last_used:
                heapq.heappush(self._leaves, (page.last_used, key))
                continue
            page.media = 0
            self.version += self._vacate(page)
            return key
        return None

    # Pages and their links

    def _empty(self) -> None:
        self._root = _Page(-1, math.inf)
        self._root.depth = 0
        self._visible = {}
        self._unsorted = False
        self._moved_at = -math.inf
        self._hidden: dict[PageKey, _Page] = {}
        self._leaves: list[tuple[float, PageKey]] = []  # each present leaf is in it, maybe as used earlier

    def _pages(self) -> int:
        return len(self._visible) + len(self._hidden)

    def _find(self, key: PageKey) -> _Page | None:
        return self._visible.get(key) or self._hidden.get(key)

    def _new(self, key: PageKey, now: float) -> _Page:
        page = self._hidden[key] = _Page(key, now)
        return page

    def _place(self, key: PageKey, above: _Page, now: float) -> _Page:
        """The page of a key, linked below `above`."""
        page = self._find(key)
        if page is None:
            page = self._new(key, now)
        elif page.parent is above:
            return page
        elif page.parent is not None or any(page is ancestor for ancestor in above.upwards()):
            raise ValueError("a page has one parent, and is not among its own ancestors")
        else:
            self._unsorted = True  # its use is one of what is above now
        self._link(page, above)
        return page

    def _link(self, page: _Page, parent: _Page) -> None:
        page.parent = parent
        page.sibling_after = parent.child
        if parent.child is not None:
            parent.child.sibling_before = page
        parent.child = page
        self._use(parent, page.last_used)

    def _unlink(self, page: _Page, parent: _Page) -> None:
        before, after = page.sibling_before, page.sibling_after
        if before is None:
            parent.child = after
        else:
            before.sibling_after = after
        if after is not None:
            after.sibling_before = before

    def _use(self, page: _Page | None, now: float) -> None:
        """A page and what is above it was used; stops where that is known already (the root always is)."""
        while page is not None and page.last_used < now:
            page.last_used = now
            page = page.parent

    def _move_to_end(self, page: _Page, now: float) -> None:
        """A page and what is above it was used now, so it comes last in the order, parents after children."""
        self._unsorted |= now <= self._moved_at
        self._moved_at = max(self._moved_at, now)
        visible = self._visible
        for used in page.upwards():
            if visible.pop(used.key, None):
                visible[used.key] = used

    def _reveal(self, page: _Page) -> None:
        """A page and what is present below it without a gap becomes visible; its parent is."""
        waiting = [page]
        while waiting:
            page = waiting.pop()
            assert page.parent is not None
            page.depth = page.parent.depth + 1
            self._visible[page.key] = self._hidden.pop(page.key)
            below = [child for child in page.children() if child.media]
            self._unsorted |= bool(below)
            waiting += below

    def _hide(self, page: _Page) -> None:
        """A page and everything visible below it is not visible any more."""
        waiting = [page]
        while waiting:
            page = waiting.pop()
            page.depth = _HIDDEN
            self._hidden[page.key] = self._visible.pop(page.key)
            waiting += [child for child in page.children() if child.depth != _HIDDEN]

    def _vacate(self, page: _Page) -> bool:
        """No medium holds this page any more; returns whether it was visible."""
        was_visible = page.depth != _HIDDEN
        if was_visible:
            self.evictions.left(page.key, unused_s=self._now - page.last_used)
            self._hide(page)
        self._prune(page)
        return was_visible

    def _prune(self, page: _Page | None) -> None:
        """Forget a page that is absent and has nothing below it, and its ancestors likewise."""
        while page is not None and page.child is None and not page.media and page is not self._root:
            del self._hidden[page.key]
            parent = page.parent
            if parent is not None:
                self._unlink(page, parent)
                if parent.child is None and parent.media:
                    self._queue(parent)
            page = parent

    def _queue(self, leaf: _Page) -> None:
        heapq.heappush(self._leaves, (leaf.last_used, leaf.key))
        if len(self._leaves) > 2 * self._pages() + _STALE_SLACK:
            everyone = (*self._visible.values(), *self._hidden.values())
            self._leaves = [(page.last_used, page.key) for page in everyone if page.child is None]
            heapq.heapify(self._leaves)

    # Integrity

    def check(self) -> None:
        """Raise AssertionError unless every rule that this module's docstring states holds."""
        assert len(self._visible) <= self.capacity_pages
        assert self._pages() <= HIDDEN_SLACK * self.capacity_pages
        assert not self._visible.keys() & self._hidden.keys()
        queued: dict[PageKey, float] = {}
        for last_used, key in self._leaves:
            queued[key] = min(last_used, queued.get(key, math.inf))
        order = [(page.last_used, -page.depth) for page in self._visible.values()]
        assert self._unsorted or order == sorted(order), "in the order of use, parents after their children"
        linked = sum(1 for _ in self._root.children())
        for key, page in (*self._visible.items(), *self._hidden.items()):
            assert page.key == key
            assert (page.depth != _HIDDEN) == (key in self._visible)
            should_show = bool(page.media) and page.parent is not None and page.parent.depth != _HIDDEN
            assert (page.depth != _HIDDEN) == should_show, "visible is: present, and so are all above"
            assert page.media or page.child is not None, "an absent page is kept for what is below it"
            assert page.child is not None or queued[key] <= page.last_used, "a leaf can be evicted"
            before = None
            for child in page.children():
                linked += 1
                assert child.parent is page
                assert child.sibling_before is before
                assert child.last_used <= page.last_used
                assert child.depth in (_HIDDEN, page.depth + 1)
                before = child
        orphans = sum(page.parent is None for page in self._hidden.values())
        assert linked + orphans == self._pages(), "every page hangs below its parent, or waits for it"
