"""What happens at a node, told to whoever listens at the moment: `/peerinfer/v1/events`.

A listener that is slower than the events loses the newest ones and is told how many; it never slows the node.
Nothing is kept for who is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trio

WAITING_MAX = 256  # guess: a burst of requests that end together; about 1 kB each
LISTENERS_MAX = 16  # guess: dashboards and scripts of one node's owner

Event = Mapping[str, object]


class TooManyListenersError(Exception):
    """There is no room for one more."""


@dataclass(slots=True, eq=False)
class Listener:
    """One that listens."""

    _send: trio.MemorySendChannel[Event]
    _receive: trio.MemoryReceiveChannel[Event]
    _lost: int = 0

    def tell(self, event: Event) -> None:
        """Have it wait for the listener, if there is room."""
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self._lost += 1

    async def next(self) -> Event:
        """The next event; `lost`, with a count, where some are missing after those that were read."""
        if self._lost and not self._receive.statistics().current_buffer_used:
            lost, self._lost = self._lost, 0
            return {"event": "lost", "count": lost}
        return await self._receive.receive()


class Events:
    """Tells all who listen."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def tell(self, event: str, fields: Callable[[], Event]) -> None:
        """Something happened; `fields` is called if somebody listens."""
        if self._listeners:
            told = {"event": event, **fields()}
            for listener in self._listeners:
                listener.tell(told)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Listen while the block runs. Raises `TooManyListenersError`."""
        if len(self._listeners) >= LISTENERS_MAX:
            raise TooManyListenersError
        listener = Listener(*trio.open_memory_channel[Event](WAITING_MAX))
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
