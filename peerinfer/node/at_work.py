"""The requests that a node is at work on: its clients', and its peers'. Whoever leaves waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class AtWork:
    """Counts requests from their arrival to their end."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = trio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request is being worked on within this block."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            self._changed.set()

    async def wait_none(self) -> None:
        """Returns once there is none."""
        while self.count:
            self._changed = trio.Event()
            await self._changed.wait()
