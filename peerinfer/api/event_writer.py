"""A stream's events on their way to the client: those that come together go out together.

A send costs more than an event (measured: docs/performance.md), and an engine under load brings several at
once. So events are collected, and a task of its own sends what there is whenever whoever brings them waits
for more: an event that comes alone is not held back, a hundred that come at once are one send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

COLLECTED_BYTES_MAX = 256 * 1024  # guess
"""Beyond this whoever brings events waits for the client: what is collected for a slow one is bounded."""


class EventWriter:
    """Collects and sends; `run` does the sending."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._collected: list[bytes] = []
        self._size = 0
        self._more = trio.Event()
        self._sent = trio.Event()
        self._sent.set()
        """Set while nothing is being sent."""

    async def write(self, event: bytes) -> None:
        """Take an event; it is sent as soon as this task waits for something."""
        while self._size > COLLECTED_BYTES_MAX:
            await self._sent.wait()
            await trio.lowlevel.checkpoint()
        self._collected.append(event)
        self._size += len(event)
        self._more.set()

    async def run(self) -> None:
        """Send what is collected, until cancelled."""
        while True:
            if not self._more.is_set():  # else waiting takes a turn of the loop
                await self._more.wait()
            self._more, self._sent = trio.Event(), trio.Event()
            try:
                if events := self._take():
                    await self._send(events)
            finally:
                self._sent.set()

    async def rest(self) -> bytes:
        """What was not sent, once nothing is on its way; whoever asks has to send it."""
        if not self._sent.is_set():
            await self._sent.wait()
        return self._take()

    def _take(self) -> bytes:
        events = b"".join(self._collected)
        self._collected.clear()
        self._size = 0
        return events
