"""What is known of a server's cache: its own events, or, where there are none, what it was sent.

The rule: events are followed where the server publishes them, and while they can be had nothing else is told.
Where it publishes none, or they cannot be reached, that is said loudly, and the cache is guessed from what
the server answers; the guess ends, and the tree begins anew, with the first event that comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import trio

from peerinfer.core.types import AllBlocksCleared, CacheEvent, EngineInfo
from peerinfer.engine.history_cache import HistoryCache
from peerinfer.engine.kv_events import KvEventStream, RequestWatch
from peerinfer.engine.server_facts import ServerFacts

log = logging.getLogger("peerinfer.engine")

Emit = Callable[[Sequence[CacheEvent]], None]

KNOWN_WITHIN_S = 3.0  # guess
"""A server whose events have not been reached by then is ready without them."""
COVERED_WITHIN_S = 0.05  # design §5: how long a reply may wait for the events of its request


class ServerCache:
    """One life of a server's cache. `run` it while the server is ready."""

    def __init__(
        self, facts: ServerFacts, info: EngineInfo, *, emit: Emit, restarted: Callable[[], None]
    ) -> None:
        """`emit` gets the events; `restarted` is called when the server turns out to be another one."""
        self._emit = emit
        self._restarted = restarted
        self._known = trio.Event()
        self._stream = KvEventStream(facts.events, self) if facts.events else None
        self._history = HistoryCache(
            page_size=info.page_size, capacity_pages=info.capacity_pages, emit=self._guess
        )
        self._guesses = facts.reuses_prefixes
        self.source: Literal["events", "history"] = "events" if facts.events else "history"
        """Who tells at present."""
        if not facts.reuses_prefixes:
            log.warning("cache=none the server keeps no prefixes: requests go by load alone")
        elif not facts.events:
            log.warning("cache=guessed the server publishes no cache events that can be followed")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the cache until cancelled; started once it is known whether there are events."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._history.run)
            if self._stream is not None:
                nursery.start_soon(self._stream.run)
                with trio.move_on_after(KNOWN_WITHIN_S):
                    await self._known.wait()
            task_status.started()

    @contextmanager
    def watch(self, token_ids: Sequence[int] | None) -> Iterator[Watched]:
        """Follow one request, from before it is sent."""
        if self._stream is None:
            yield Watched(self, token_ids, None)
            return
        with self._stream.watch(token_ids) as watch:
            yield Watched(self, token_ids, watch)

    def guess(self, token_ids: Sequence[int], *, sent_at: float, cached_tokens: int | None) -> None:
        """The server has computed a prompt: it probably keeps it. `cached_tokens` is its word, if it says."""
        if self.source == "history" and self._guesses:
            now = trio.current_time()
            self._history.answered(token_ids, sent_at=sent_at, now=now, cached_tokens=cached_tokens)

    # KvEventSink

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        """The stream tells what the cache does."""
        self._trust_events()
        self._emit(events)

    def events_restarted(self) -> None:
        """The stream has found another publisher behind the address."""
        self._restarted()

    def events_reachable(self, reachable: bool, detail: str) -> None:
        """The stream is followed, or is not any more."""
        self._known.set()
        if reachable:
            self._trust_events()
        elif self.source == "events":
            log.warning("cache=guessed from what the server is sent: %s", detail)
            self.source = "history"

    def _trust_events(self) -> None:
        if self.source == "history":
            log.info("cache=events")
            self.source = "events"
            self._history.clear()
            self._emit([AllBlocksCleared()])

    def _guess(self, events: Sequence[CacheEvent]) -> None:
        if self.source == "history":
            self._emit(events)


class Watched:
    """One request at the server."""

    def __init__(
        self, cache: ServerCache, token_ids: Sequence[int] | None, watch: RequestWatch | None
    ) -> None:
        self._cache = cache
        self._token_ids = token_ids
        self._watch = watch
        self._sent_at = trio.current_time()

    async def answered(self, cached_tokens: int | None) -> None:
        """It was answered: wait a moment for its events. None: the server does not say what was cached."""
        if self._watch is not None:
            await self._watch.covered(cached_tokens or 0, within_s=COVERED_WITHIN_S)
        if self._token_ids is not None:
            self._cache.guess(self._token_ids, sent_at=self._sent_at, cached_tokens=cached_tokens)
