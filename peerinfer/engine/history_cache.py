"""What a server without cache events probably holds: what it was sent, aged out, never more than fits.

Nobody tells what such a server evicts, so its tree is a guess and says so (`EngineInfo.source` is
`history`). A prompt counts as cached from its answer on, for as long as the server has been seen to keep
one: where it reports `cached_tokens`, a miss shortens the time that is believed in and a late hit lengthens
it, so a server that caches nothing is soon believed to hold nothing. The guess is told as the events that an
exact engine would send, under names of its own. Paper: updateTrie and evictLRUTrie, by guess.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import trio

from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent, PageKey

KEPT_S_MAX = 600.0  # guess: what is believed of a server that never reports a miss
KEPT_S_MIN = 1.0  # guess: what a server that always misses is believed to keep; it may begin to cache
SHORTER = 0.8  # guess: after a miss, of the missed prompt's age
LONGER = 1.5  # guess: after a hit that was older than half the believed time
AGEING_INTERVAL_S = 1.0  # guess


class HistoryCache:
    """The pages that a server has probably kept, in the order of their last use."""

    def __init__(
        self,
        *,
        page_size: int,
        capacity_pages: int,
        emit: Callable[[Sequence[CacheEvent]], None],
        kept_s_max: float = KEPT_S_MAX,
    ) -> None:
        self.kept_s = kept_s_max
        """How long after its last use a prompt is believed to be cached."""
        self._kept_s_max = kept_s_max
        self._capacity_pages = capacity_pages
        self._emit = emit
        self._hasher = PageHasher(salt=derive_salt(None), page_size=page_size)
        # The least recently used first, and children before their parents.
        self._used_at: OrderedDict[PageKey, float] = OrderedDict()

    def __len__(self) -> int:
        """Pages believed to be cached."""
        return len(self._used_at)

    def answered(
        self, token_ids: Sequence[int], *, sent_at: float, now: float, cached_tokens: int | None = None
    ) -> None:
        """The server has computed this prompt; `cached_tokens` is what it says it had of it, if it says.

        Give only prompts whose pages tokens alone decide: no adapter, no salt, no images.
        """
        keys = self._hasher.keys(token_ids)[: self._capacity_pages]
        self.expire(now=now)
        if cached_tokens is not None:
            reusable = keys[: (len(token_ids) - 1) // self._hasher.page_size]  # the last token is computed
            self._learn(reusable, cached_tokens // self._hasher.page_size, sent_at)
        known = self._known(keys)
        for key in reversed(keys):
            self._used_at[key] = now
            self._used_at.move_to_end(key)
        events: list[CacheEvent] = []
        gone = [self._used_at.popitem(last=False)[0] for _ in range(len(self) - self._capacity_pages)]
        if gone:
            events.append(BlockRemoved(tuple(gone)))
        if known < len(keys):
            size = self._hasher.page_size
            parent = keys[known - 1] if known else None
            tokens = tuple(token_ids[known * size : len(keys) * size])
            events.append(BlockStored(tuple(keys[known:]), parent, tokens, size))
        if events:
            self._emit(events)

    def expire(self, *, now: float) -> None:
        """Forget what has not been used for as long as the server is believed to keep it."""
        gone = []
        while self._used_at and next(iter(self._used_at.values())) <= now - self.kept_s:
            gone.append(self._used_at.popitem(last=False)[0])
        if gone:
            self._emit([BlockRemoved(tuple(gone))])

    def clear(self) -> None:
        """The server restarted, or its cache was flushed."""
        self._used_at.clear()
        self._emit([AllBlocksCleared()])

    async def run(self) -> None:
        """Age until cancelled."""
        while True:
            await trio.sleep(AGEING_INTERVAL_S)
            self.expire(now=trio.current_time())

    def _known(self, keys: Sequence[PageKey]) -> int:
        return next((place for place, key in enumerate(keys) if key not in self._used_at), len(keys))

    def _learn(self, keys: Sequence[PageKey], cached_pages: int, sent_at: float) -> None:
        """Believe in a shorter time after a miss, in a longer one after a late hit.

        Less than half of what was expected is a miss: a server may reuse in steps larger than a page. What
        was used after this request had been sent proves nothing.
        """
        expected = self._known(keys)
        if not expected:
            return
        missed = 2 * cached_pages < expected
        age_s = sent_at - self._used_at[keys[cached_pages if missed else expected - 1]]
        if age_s < 0:
            return
        if missed:
            self.kept_s = max(KEPT_S_MIN, min(self.kept_s, SHORTER * age_s))
        elif age_s > self.kept_s / 2:
            self.kept_s = min(self._kept_s_max, LONGER * self.kept_s)
