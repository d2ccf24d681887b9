"""The requests that a node is at work on: its clients', and its peers'. Whoever leaves waits for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from peerinfer.core.types import Given, PeerId


class AtWork:
    """Counts requests from their arrival to their end."""

    def __init__(self) -> None:
        self.count = 0
        self._given: dict[PeerId, Given] = {}
        self._found_tokens: Counter[PeerId] = Counter()
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

    @contextmanager
    def one_of(self, peer: PeerId, request: Given) -> Iterator[None]:
        """A peer's request is being worked on within this block."""
        self._given[peer] = self.given(peer).plus(request)
        try:
            with self.one():
                yield
        finally:
            self._given[peer] = self._given[peer].minus(request)
            if not self._given[peer].requests:
                del self._given[peer]
                self._found_tokens.pop(peer, None)

    def given(self, peer: PeerId) -> Given:
        """What the peer has given to this node and is not over."""
        return self._given.get(peer, Given())

    def found(self, peer: PeerId, more_tokens: int) -> None:
        """What a peer has given turned out to need so many tokens more than it had reckoned with."""
        self._found_tokens[peer] += more_tokens

    def here(self, peer: PeerId) -> Given:
        """The same as found here: a prompt that overtook the one before it has their prefix to compute."""
        given = self.given(peer)
        return Given(given.requests, max(0, given.tokens + self._found_tokens[peer]))

    async def wait_none(self) -> None:
        """Returns once there is none."""
        while self.count:
            self._changed = trio.Event()
            await self._changed.wait()
