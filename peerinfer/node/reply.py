"""What goes into a node and what comes out of it, as the HTTP face sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal

from peerinfer.core.types import Chunk, End, Endpoint, PeerId

Route = Literal["local", "forwarded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A client's request."""

    id: str
    endpoint: Endpoint
    raw: bytes
    """The body as it came; this is what travels to a peer."""
    body: Mapping[str, object]
    """The same, parsed."""
    policy: str | None = None
    """Overrides the node's policy for this request."""
    target: PeerId | None = None
    """Overrides routing altogether: serve it there, and nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that has begun: its first chunk is there."""

    request_id: str
    served_by: PeerId
    """Who sent the first token."""
    route: Route
    expected_cached_tokens: int
    chunks: AsyncIterator[Chunk | End]
    """Chunks, then one `End`; raises `RequestError` if the answer breaks off."""
