"""The requests that one node has been given by us and has not ended: what they add to what is known of it.

Two things must count from the decision on, since word from there is a round trip away. *Work* (requests, and
tokens to compute), until the load that the node tells counts it. And *pages*, until the request ends: what
the node is going to compute for one request will be cached when the turn comes to the next, so of a burst
with a common prefix only the first one counts it. Pages in flight are no part of an estimate
(core/estimate.py), which is what the peer has told or has served; they are there as long as the request,
however it ends.

A load that is told counts some of our requests and not yet others, which are still on their way, and replies
overtake each other. So a reply says how much of what we have given is in: the difference to all that we have
given is not, and nothing is counted twice. How far the node has got with a request makes no difference, as
long as both sides count it until it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from peerinfer.core.types import Given, PageKey


class InFlight:
    """Requests on their way to one node or at it. Its one writer is the view."""

    __slots__ = ("_arrived", "_holders", "given")

    def __init__(self) -> None:
        self.given = Given()
        """All of them."""
        self._arrived = Given()
        self._holders: dict[PageKey, int] = {}
        """How many requests each page is in flight for; closed under parents."""

    @property
    def unsettled(self) -> Given:
        """What the node's own word does not count yet."""
        return self.given.minus(self._arrived)

    @property
    def has_pages(self) -> bool:
        """Whether there is anything to match."""
        return bool(self._holders)

    def sent(self, more: Given, keys: Sequence[PageKey]) -> None:
        """A request goes there."""
        self.given = self.given.plus(more)
        for key in keys:
            self._holders[key] = self._holders.get(key, 0) + 1

    def arrived(self, more: Given) -> None:
        """The load that the node tells counts this, too."""
        self._arrived = self._arrived.plus(more)

    def arrived_in_all(self, counted: Given) -> None:
        """The load that the node has just told counts so much of what we have given."""
        self._arrived = counted

    def ended(self, less: Given, keys: Sequence[PageKey], *, had_arrived: bool) -> None:
        """A request is over; `had_arrived`: the load that was told last counted it."""
        self.given = self.given.minus(less)
        if had_arrived:
            self._arrived = self._arrived.minus(less)
        if not self.given.requests:
            self.given = self._arrived = Given()  # whatever was wrong, it ends here
        for key in keys:
            left = self._holders.pop(key, 1) - 1  # nothing, where the peer was forgotten in between
            if left:
                self._holders[key] = left

    def match_prefix(self, keys: Sequence[PageKey], cached: int) -> int:
        """How many of a prompt's pages are cached or in flight, where the first `cached` are cached."""
        holders = self._holders
        if cached >= len(keys) or keys[cached] not in holders:
            return cached
        return bisect_left(keys, True, lo=cached + 1, key=lambda key: key not in holders)
