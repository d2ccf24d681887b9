"""Decoding what one node publishes once for all that receive it: the same bytes, one immutable result."""

from __future__ import annotations

from peerinfer.core.snapshot import Snapshot, decode_snapshot

KEPT = 256
"""Messages that are under way at the same time, more or less; a forgotten one is decoded again."""


class SharedDecode:
    """A `Decode` (node/anti_entropy.py) that all nodes of a world share."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Snapshot] = {}

    def __call__(self, payload: bytes, *, bytes_max: int) -> Snapshot:
        """See `decode_snapshot`."""
        snapshot = self._kept.get(payload)  # cheap: bytes keep their hash, and are the same object
        if snapshot is None:
            snapshot = decode_snapshot(payload, bytes_max=bytes_max)
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[payload] = snapshot
        return snapshot
