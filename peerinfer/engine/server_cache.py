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

from peerinfer.core.types import AllBlocksCleared, CacheEvent
from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.kv_events import KvEventStream, RequestWatch

log = logging.getLogger("peerinfer.engine")

Emit = Callable[[Sequence[CacheEvent]], None]

KNOWN_WITHIN_S = 3.0
"""A server whose events have not been reached by then is ready without them."""


class ServerCache:
    """One life of a server's cache. `run` it while the server is ready."""

    def __init__(self, endpoints: KvEndpoints | None, *, emit: Emit, restarted: Callable[[], None]) -> None:
        """`emit` gets the events; `restarted` is called when the server turns out to be another one."""
        self.source: Literal["events", "history"] = "events" if endpoints else "history"
        self._emit = emit
        self._restarted = restarted
        self._known = trio.Event()
        self._stream = KvEventStream(endpoints, self) if endpoints else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the cache until cancelled; started once it is known whether there are events."""
        if self._stream is None:
            log.warning("cache=guessed the server publishes no cache events")
            task_status.started()
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stream.run)
            with trio.move_on_after(KNOWN_WITHIN_S):
                await self._known.wait()
            task_status.started()

    @contextmanager
    def watch(self, token_ids: Sequence[int] | None) -> Iterator[RequestWatch | None]:
        """Follow one request, from before it is sent."""
        if self._stream is None:
            yield None
            return
        with self._stream.watch(token_ids) as watch:
            yield watch

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
            self._emit([AllBlocksCleared()])
