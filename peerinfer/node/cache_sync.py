"""The own tree follows the engine's cache events exactly; nothing else writes to it.

Theory of operation. Engines name blocks by hashes of their own, and a removal carries nothing but names. So
each name is remembered with the *run* that it is in: consecutive blocks of one page. A block may be a page
or smaller; a page ends with a run that completes it, and is in the tree while all its blocks are on some
medium. A run *has its place* while everything before it is there; else it waits, whatever its length, so
events may come in any order, children before parents too. What waits is counted and not claimed, since a
tree that claims less than the cache holds costs time while one that claims more breaks expectations (design:
never over-claim). Paper: updateTrie, and evictLRUTrie as the engine decides it (Algorithm 1, lines 7-13).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from peerinfer.core.page_keys import PageHasher
from peerinfer.core.radix_tree import HIDDEN_SLACK, RadixTree
from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, PageKey

_NOWHERE = -1
_GPU = frozenset({"GPU"})
_KEPT_SHARE = 0.9  # guess: room is made for so many blocks at once that doing it costs little per block


class _Run:
    """Consecutive blocks: of one page, once their place is known."""

    __slots__ = ("above", "key", "names", "parent", "place", "tokens")

    def __init__(self, parent: int | None, names: tuple[int, ...], tokens: array[int]) -> None:
        self.parent = parent
        self.names = names
        self.tokens = tokens
        self.place = _NOWHERE  # of the first block in its page
        self.above: PageKey | None = None  # the page before
        self.key: PageKey | None = None  # of the page that the last block completes


class CacheSync:
    """Translates an engine's events into its node's tree."""

    def __init__(self, tree: RadixTree, hasher: PageHasher) -> None:
        self.tree = tree
        self.refused_blocks = 0
        """Blocks so far whose size makes no pages."""
        self._hasher = hasher
        self._block_size = hasher.page_size
        self._runs: dict[int, _Run] = {}
        self._below: dict[int, dict[_Run, None]] = {}  # what follows a block, which may itself be unknown
        self._held: dict[int, frozenset[str]] = {}  # the media of blocks that are not just on the GPU
        self._placed = 0

    @property
    def unkeyed_blocks(self) -> int:
        """Blocks that no page can be claimed for: of a wrong size, or after one that is not there."""
        return self.refused_blocks + len(self._runs) - self._placed

    @property
    def blocks_max(self) -> int:
        """Blocks that are remembered: those of as many pages as the tree remembers, itself."""
        return HIDDEN_SLACK * self.tree.capacity_pages * (self._hasher.page_size // self._block_size)

    def __len__(self) -> int:
        """Blocks the engine holds, on any medium."""
        return len(self._runs)

    def apply(self, events: Sequence[CacheEvent], *, now: float) -> None:
        """Bring the tree to where the engine's cache is after these events."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event, now)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.clear()

    def clear(self) -> None:
        """The cache is empty."""
        self._runs.clear()
        self._below.clear()
        self._held.clear()
        self._placed = 0
        self.tree.clear()

    # Stored

    def _store(self, event: BlockStored, now: float) -> None:
        size, names = event.block_size, event.block_hashes
        other = size != self._block_size and bool(self._runs)  # blocks of two sizes make no pages
        if len(event.token_ids) != len(names) * size or size < 1 or self._hasher.page_size % size or other:
            self.refused_blocks += len(names)
            return
        self._block_size = size
        if event.medium != "GPU" or self._held:
            self._hold(names, event.medium)
        tokens = array("I", event.token_ids)
        if self._runs.keys().isdisjoint(names):
            pages = self._add(event.parent_block_hash, names, tokens)
        else:
            pages = self._add_unknown(event.parent_block_hash, names, tokens)
        self._claim(pages, now)
        if len(self._runs) > self.blocks_max:
            self._make_room()

    def _hold(self, names: Iterable[int], medium: str) -> None:
        """These blocks are on this medium, too. What is just on the GPU is not written down."""
        for name in names:
            held = self._held.get(name, _GPU) | {medium} if name in self._runs else frozenset({medium})
            if held == _GPU:
                self._held.pop(name, None)
            else:
                self._held[name] = held

    def _add_unknown(self, parent: int | None, names: tuple[int, ...], tokens: array[int]) -> list[_Run]:
        """Add what is not there yet of a chain; returns all its pages, since they count as used."""
        pages: list[_Run] = []
        size, begin = self._block_size, 0
        chain = (parent, *names)
        for place, name in enumerate(names):
            run = self._runs.get(name)
            if run is not None and self._before(run, name) != chain[place]:
                self._drop([name])  # the name means something else now
                run = None
            if run is None:
                continue
            if begin < place:
                pages += self._add(chain[begin], names[begin:place], tokens[begin * size : place * size])
            begin = place + 1
            if run.key is not None and run.place != _NOWHERE and name == run.names[-1]:
                pages.append(run)
        if begin < len(names):
            pages += self._add(chain[begin], names[begin:], tokens[begin * size :])
        return pages

    def _add(self, parent: int | None, names: tuple[int, ...], tokens: array[int]) -> list[_Run]:
        """Add a chain of new blocks, and what waited for it; returns completed pages, parents first."""
        pages: list[_Run] = []
        chains = [_Run(parent, names, tokens)]
        while chains:
            chain = chains.pop()
            before = None if chain.parent is None else self._runs.get(chain.parent)
            if chain.parent is not None and (before is None or before.place == _NOWHERE):
                self._link(chain)
                continue
            for name in self._below.keys() & chain.names:
                waiting = [run for run in self._below[name] if run.place == _NOWHERE]
                for run in waiting:
                    self._unlink(run)
                chains += waiting
            self._placed += len(chain.names)
            pages += self._cut(chain)
        return pages

    def _cut(self, chain: _Run) -> list[_Run]:
        """Link a chain whose place is known, page by page; returns the pages that it completes."""
        size = self._block_size
        per_page = self._hasher.page_size // size
        place, above, stem = self._after(chain.parent)
        keys = self._hasher.extend(above, stem + chain.tokens)
        pages: list[_Run] = []
        begin, parent = 0, chain.parent
        while begin < len(chain.names):
            end = begin + per_page - place
            run = _Run(parent, chain.names[begin:end], chain.tokens[begin * size : end * size])
            run.place, run.above = place, above
            if len(run.names) == per_page - place:
                above = run.key = keys[len(pages)]
                pages.append(run)
            self._link(run)
            begin, place, parent = end, 0, run.names[-1]
        return pages

    def _after(self, parent: int | None) -> tuple[int, PageKey | None, array[int]]:
        """The place in a page of what follows a block, the page before, and this page's tokens so far."""
        if parent is None:
            return 0, None, array("I")
        run = self._runs[parent]
        blocks = run.names.index(parent) + 1
        if run.key is not None and blocks == len(run.names):
            return 0, run.key, array("I")
        place, above = run.place + blocks, run.above
        stem = run.tokens[: blocks * self._block_size]
        while run.place > 0:
            name = run.parent
            assert name is not None, "a page's first block is not alone in starting it"
            run = self._runs[name]
            stem = run.tokens[: (run.names.index(name) + 1) * self._block_size] + stem
        return place, above, stem

    def _before(self, run: _Run, name: int) -> int | None:
        place = run.names.index(name)
        return run.names[place - 1] if place else run.parent

    def _claim(self, pages: Iterable[_Run], now: float) -> None:
        """Put pages into the tree, chain by chain."""
        chain: list[PageKey] = []
        above: PageKey | None = None
        for page in pages:
            assert page.key is not None
            if chain and page.above != chain[-1]:
                self.tree.insert(chain, parent=above, now=now)
                chain = []
            if not chain:
                above = page.above
            chain.append(page.key)
        self.tree.insert(chain, parent=above, now=now)

    # Removed

    def _remove(self, event: BlockRemoved) -> None:
        gone = []
        for name in event.block_hashes:
            left = self._held.get(name, _GPU) - {event.medium}
            if not left:
                gone.append(name)
            elif name in self._held:
                self._held[name] = left
        self._drop(gone)

    def _drop(self, names: Iterable[int]) -> None:
        """These blocks are gone, and what follows them has no place."""
        touched: dict[_Run, None] = {}
        for name in names:
            self._held.pop(name, None)
            if (run := self._runs.pop(name, None)) is not None:
                touched[run] = None
                self._placed -= run.place != _NOWHERE
        keys: list[PageKey] = []
        for run in reversed(touched):  # children first, as a rule
            self._shrink(run, keys)
        self.tree.remove(keys)

    def _shrink(self, run: _Run, keys: list[PageKey]) -> None:
        """Part a run into what is left of it; `keys` gets those of pages that are no more."""
        self._unlink(run)
        if run.key is not None and run.place != _NOWHERE:
            keys.append(run.key)
        size, begin = self._block_size, 0
        there = [name in self._runs for name in run.names]
        first_gone = there.index(False)
        for end in range(len(there) + 1):
            if end < len(there) and there[end]:
                continue
            if begin < end:
                parent = run.names[begin - 1] if begin else run.parent
                part = _Run(parent, run.names[begin:end], run.tokens[begin * size : end * size])
                if begin == 0:
                    part.place, part.above = run.place, run.above
                elif run.place != _NOWHERE:
                    self._placed -= end - begin
                self._link(part)
            begin = end + 1
        for name in run.names[first_gone:]:
            for below in tuple(self._below.get(name, ())):
                self._displace(below, keys)

    def _displace(self, run: _Run, keys: list[PageKey]) -> None:
        """A run and all that follow it wait now."""
        waiting = [run]
        while waiting:
            run = waiting.pop()
            if run.place == _NOWHERE:
                continue
            run.place = _NOWHERE
            self._placed -= sum(self._runs.get(name) is run for name in run.names)
            if run.key is not None:
                keys.append(run.key)
                run.key = None
            for name in run.names:
                waiting += self._below.get(name, ())

    def _make_room(self) -> None:
        """Forget blocks: first those of no page in the tree, then those that were stored first."""
        spare = len(self._runs) - int(_KEPT_SHARE * self.blocks_max)
        useless = [
            name
            for name, run in self._runs.items()
            if run.place == _NOWHERE or (run.key is not None and run.key not in self.tree)
        ]
        self._drop(useless[:spare])
        spare -= len(useless)
        if spare > 0:
            self._drop([name for name, _ in zip(self._runs, range(spare), strict=False)])

    # Links

    def _link(self, run: _Run) -> None:
        self._runs.update(dict.fromkeys(run.names, run))
        if run.parent is not None:
            self._below.setdefault(run.parent, {})[run] = None

    def _unlink(self, run: _Run) -> None:
        """Names are left to whoever gives them to another run."""
        if run.parent is not None:
            siblings = self._below[run.parent]
            del siblings[run]
            if not siblings:
                del self._below[run.parent]
