"""How often a request has come to an engine: an answer that broke off may go on where it began.

SGLang refuses a name that it knows, and knows one until it has noticed that its client left, so a second
attempt needs another.
"""

from __future__ import annotations

from collections import OrderedDict

KEPT_MAX = 4096  # guess: longer than a server takes to forget
"""Requests that are remembered; the oldest go."""


class Attempts:
    """The last requests of one engine."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._counts: OrderedDict[str, int] = OrderedDict()

    def before(self, request_id: str) -> int:
        """How often it came before; it has come once more now."""
        count = self._counts.pop(request_id, 0)
        self._counts[request_id] = count + 1
        if len(self._counts) > self._kept_max:
            self._counts.popitem(last=False)
        return count
