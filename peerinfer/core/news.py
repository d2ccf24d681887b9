"""What a node learns of a peer, as it is told to others: by a message of the peer's, or by its silence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from peerinfer.core.peer import PeerStatus
from peerinfer.core.types import PeerId


class Applied(Enum):
    """What a snapshot changed."""

    APPLIED = "applied"
    """The peer's tree is this one now."""
    HEARTBEAT = "heartbeat"
    """The tree is the one that is held already; load, push-back and liveness are taken over."""
    STALE = "stale"
    """Nothing: all of it is older than what is known, or a duplicate."""
    NEEDS_PULL = "needs_pull"
    """It names a tree that is not held and did not bring it; the rest is taken over if it is news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A peer became something else to us."""

    peer: PeerId
    status: PeerStatus | Literal["forgotten"]
    before: PeerStatus | None
    """None for a new peer."""
    silence_s: float
    """Since the last sign of life."""
