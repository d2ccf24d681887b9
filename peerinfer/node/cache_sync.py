"""The own tree follows the engine's cache events exactly; nothing else writes to it.

Engines name blocks by hashes of their own, and a removal carries nothing but hashes. So a block is
remembered by its hash: the page key that its tokens gave it, and the media that hold it. A block whose
parent is unknown cannot be keyed; it is counted and left out, since a tree that claims less than the
cache holds costs time while one that claims more breaks expectations (design: never over-claim).
Paper: updateTrie, and evictLRUTrie as the engine decides it (Algorithm 1, lines 7-13).
"""

from __future__ import annotations

from collections.abc import Sequence

from peerinfer.core.page_keys import PageHasher
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, PageKey


class CacheSync:
    """Translates an engine's events into its node's tree."""

    def __init__(self, tree: RadixTree, hasher: PageHasher) -> None:
        self.tree = tree
        self.unkeyed_blocks = 0
        """Blocks that could not be keyed: unknown parent or another block size. Should stay 0."""
        self._hasher = hasher
        self._blocks: dict[int, tuple[PageKey, frozenset[str]]] = {}

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
        self._blocks.clear()
        self.tree.clear()

    def __len__(self) -> int:
        """Blocks the engine holds, on any medium."""
        return len(self._blocks)

    def _store(self, event: BlockStored, now: float) -> None:
        parent = None
        if event.parent_block_hash is not None:
            known = self._blocks.get(event.parent_block_hash)
            parent = known[0] if known else None
        orphan = event.parent_block_hash is not None and parent is None
        whole = len(event.token_ids) == len(event.block_hashes) * event.block_size
        if orphan or not whole or event.block_size != self._hasher.page_size:
            self.unkeyed_blocks += len(event.block_hashes)
            return
        keys = self._hasher.extend(parent, event.token_ids)
        for block_hash, key in zip(event.block_hashes, keys, strict=True):
            media = self._blocks[block_hash][1] if block_hash in self._blocks else frozenset()
            self._blocks[block_hash] = (key, media | {event.medium})
        self.tree.insert(keys, parent=parent, now=now, medium=event.medium)

    def _remove(self, event: BlockRemoved) -> None:
        keys = []
        for block_hash in event.block_hashes:
            known = self._blocks.get(block_hash)
            if known is None:
                continue
            key, media = known
            keys.append(key)
            if left := media - {event.medium}:
                self._blocks[block_hash] = (key, left)
            else:
                del self._blocks[block_hash]
        self.tree.remove(keys, medium=event.medium)
