"""A fingerprint of a simulated history: two runs are one history if and only if it is the same."""

from __future__ import annotations

import hashlib
import struct

from peerinfer.core.types import PeerId
from peerinfer.sim.spec import Outcome

_time = struct.Struct("<d").pack


class Digest:
    """What arrived where and when, what it said, and what each request came to, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def arrived(self, at: float, receiver: PeerId) -> None:
        """Something happened at a node."""
        self._hash.update(_time(at) + receiver.encode())

    def said(self, payload: bytes) -> None:
        """What a message said."""
        self._hash.update(payload)

    def ended(self, outcome: Outcome) -> None:
        """A request is over."""
        self._hash.update(repr(outcome).encode())

    def hex(self) -> str:
        """So far."""
        return self._hash.hexdigest()
