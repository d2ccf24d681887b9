"""What a request's own events are, and what its answer proves about the engine's cache.

A reply and the events of its request come over different connections, so a reply may be first. Whoever
wants to name the cache as it is after the request waits until the prompt's last block has been stored.

An answer that took so many tokens from the cache shows that their blocks were there, also when the stream
began too late to see them stored. They are told as stored, under the names that the engine gives them, so
that a later removal finds them; but only what no event has removed since the request began, however the
answer and the events were overtaking each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

REMOVALS_KEPT = 65536
"""Removed blocks that are remembered for requests in flight; beyond it an answer teaches nothing."""


class Watch:
    """One request, from before it is sent to the engine."""

    def __init__(self, ledger: BlockLedger, names: tuple[int, ...] | None) -> None:
        self._ledger = ledger
        self._names = names
        self._began = ledger.removals
        self._epoch = ledger.epoch
        self._stored = trio.Event()

    @property
    def last_name(self) -> int | None:
        """What the engine calls the prompt's last whole block; None where that is not known."""
        return self._names[-1] if self._names else None

    def saw_last(self) -> None:
        """The last block was stored; where its name is not known, any was."""
        self._stored.set()

    async def stored(self, *, within_s: float) -> bool:
        """Whether the prompt's blocks have been told; waits at most so long."""
        if not self._stored.is_set():
            with trio.move_on_after(within_s):
                await self._stored.wait()
        return self._stored.is_set()

    def proven(self, cached_blocks: int) -> tuple[int, ...]:
        """The names of blocks that the engine holds, since it used so many and has removed none of these."""
        ledger = self._ledger
        removals = ledger.removals - self._began
        if self._epoch != ledger.epoch or removals > len(ledger.removed):
            return ()
        gone = set(list(ledger.removed)[len(ledger.removed) - removals :])
        used = (self._names or ())[:cached_blocks]
        return used[: next((place for place, name in enumerate(used) if name in gone), len(used))]


class BlockLedger:
    """The requests in flight, and the last removals."""

    def __init__(self) -> None:
        self.removed: deque[int] = deque(maxlen=REMOVALS_KEPT)
        self.removals = 0
        self.epoch = 0
        """Rises when everything was removed."""
        self._watches: dict[int | None, set[Watch]] = {}

    @contextmanager
    def watch(self, names: tuple[int, ...] | None) -> Iterator[Watch]:
        """Follow a request by the names of its prompt's blocks; None where they cannot be told."""
        watch = Watch(self, names)
        watches = self._watches.setdefault(watch.last_name, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(watch.last_name, None)

    def note(self, events: Sequence[CacheEvent]) -> None:
        """These events were told."""
        for event in events:
            match event:
                case BlockStored() if self._watches:
                    for name in (None, *event.block_hashes):
                        for watch in self._watches.get(name, ()):
                            watch.saw_last()
                case BlockRemoved():
                    self.removed += event.block_hashes
                    self.removals += len(event.block_hashes)
                case AllBlocksCleared():
                    self.epoch += 1
