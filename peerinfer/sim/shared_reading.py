"""Reading what one node publishes once for all that receive it: the same bytes, one immutable result."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from peerinfer.core.estimate_index import Difference, difference
from peerinfer.core.snapshot import Snapshot, decode_snapshot
from peerinfer.core.types import PageKey

KEPT = 256
"""Messages that are under way at the same time, more or less; a forgotten one is read again."""


class SharedReading:
    """What all nodes of a world share."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, Snapshot] = {}
        self._differences: dict[tuple[int, int], tuple[array[PageKey], Sequence[PageKey], Difference]] = {}

    def decode(self, payload: bytes, *, bytes_max: int) -> Snapshot:
        """A `Decode` (node/anti_entropy.py); see `decode_snapshot`."""
        snapshot = self._decoded.get(payload)  # cheap: bytes keep their hash, and are the same object
        if snapshot is None:
            snapshot = decode_snapshot(payload, bytes_max=bytes_max)
            if len(self._decoded) >= KEPT:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[payload] = snapshot
        return snapshot

    def difference(self, before: array[PageKey], keys: Sequence[PageKey]) -> Difference:
        """A `Differ` (core/estimate_index.py). By identity, which is enough for what is read once: both sides
        are kept with the result, so that no other object can take their place."""
        known = self._differences.get((id(before), id(keys)))
        if known is None:
            known = (before, keys, difference(before, keys))
            if len(self._differences) >= KEPT:
                del self._differences[next(iter(self._differences))]
            self._differences[id(before), id(keys)] = known
        return known[2]
