"""What a node needs of the world: an engine, a tokeniser and an overlay.

The adapters are in `engine/`, `overlay/` and `sim/`; every one of them passes the suites in
`tests/contract/`. All calls are made from the trio thread, and the sinks' plain functions are called
there too, synchronously: they must not block, and what they change is visible when they return.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from peerinfer.core.frames import Ask, Frame, Request
from peerinfer.core.types import (
    CacheEvent,
    Chunk,
    End,
    Endpoint,
    EngineInfo,
    EngineState,
    InferRequest,
    Load,
    PeerId,
)


class EngineSink(Protocol):
    """Where an engine reports."""

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        """The engine's cache changed, in this order."""

    def engine_state(self, state: EngineState, detail: str) -> None:
        """The engine's state changed; `detail` is for people. Leaving READY means the cache is gone."""


class Engine(Protocol):
    """One LLM engine: runInfer, and everything that Algorithm 1 does to its KV cache (lines 7-13)."""

    @property
    def info(self) -> EngineInfo:
        """What is fixed before the engine starts."""

    def run(self, sink: EngineSink) -> AbstractAsyncContextManager[None]:
        """Start, without waiting for the model to load: `sink.engine_state` tells. Leaving stops it."""

    def run_infer(self, request: InferRequest) -> AbstractAsyncContextManager[AsyncIterator[Chunk | End]]:
        """Answer a request: an iterator of chunks, then one `End`. Leaving early cancels the work at once.

        All cache events of the request have reached the sink before `End` is yielded. Iterating raises
        `RequestError` for what this engine cannot do (before the first chunk), `EngineError` when it fails.
        """

    def load(self) -> Load:
        """The work at hand, right at this moment."""


class EngineError(Exception):
    """The engine failed; the request may be served elsewhere."""


class EngineAwayError(EngineError):
    """The engine cannot be reached: it never saw the request."""


class Tokenizer(Protocol):
    """The prompt's tokens, exactly as the engine will see them."""

    async def encode(self, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, ...] | None:
        """The tokens of a body's prompt; raises `RequestError` for a body that has none.

        None where they cannot be told (an image, several prompts): then load alone decides.
        """


class PeerLostError(Exception):
    """The peer cannot be reached, or the stream to it broke before the exchange was over."""


class Call(Protocol):
    """One exchange of frames with one peer."""

    @property
    def peer(self) -> PeerId:
        """The other side."""

    async def send(self, frame: Frame) -> None:
        """Send a frame. Raises `PeerLostError`. Safe to cancel: a frame is sent whole or not at all."""

    async def receive(self) -> Frame:
        """The next frame of this exchange. Raises `PeerLostError`. Safe to cancel: no frame is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connected peer."""

    addrs: tuple[str, ...]
    """Multiaddrs under which it was reached or that it announced, without `/p2p/…`."""
    relayed: bool = False
    """All its connections go through a third peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a node stands in the network, for people."""

    unreached: Mapping[str, str]
    """Addresses that it was told to join through and whose peers are not linked, and why, as tried last."""
    relays: tuple[str, ...]
    """Multiaddrs, with `/p2p/…`, of peers through which this node is reached where it cannot be dialled."""
    reservations: int = 0
    """Peers that are reached through this one."""
    circuits: int = 0
    """Connections that it passes on now."""


class OverlaySink(Protocol):
    """Where an overlay delivers."""

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        """A message on the swarm's topic; `peer` is its authenticated author."""

    def link_up(self, peer: PeerId) -> None:
        """A peer is connected now."""

    def link_down(self, peer: PeerId) -> None:
        """The last connection to a peer is gone."""

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        """Serve an exchange that a peer opened; send exactly one terminal frame before returning.

        Runs under a cancel scope of the overlay's, which is cancelled when the stream breaks.
        """

    def hello(self) -> bytes:
        """What to answer to a peer that pulls: fingerprint fields and the current complete snapshot."""

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        """Something from outside was refused; `kind` is `gossip`, `snapshot` or `request`."""


class Overlay(Protocol):
    """The network among the nodes: who is there, one topic, and calls to single peers."""

    @property
    def peer_id(self) -> PeerId:
        """This node."""

    def run(self, sink: OverlaySink) -> AbstractAsyncContextManager[None]:
        """Listen, join, stay connected. Entering returns once listening; leaving closes everything."""

    def addrs(self) -> tuple[str, ...]:
        """Multiaddrs, with `/p2p/…`, under which others can dial this node; never unspecified ones."""

    def links(self) -> Mapping[PeerId, Link]:
        """The peers that are connected now."""

    def standing(self) -> Standing:
        """Whom it was told to join and does not reach, and who passes connections on to it."""

    async def publish(self, payload: bytes) -> None:
        """Send to everybody on the swarm's topic, at most once, in no order."""

    def open_call(self, peer: PeerId) -> AbstractAsyncContextManager[Call]:
        """A call over a kept-open stream. Raises `PeerLostError` when there is none to be had.

        Leave it after its terminal frame was received and the stream is kept for the next call;
        leave it before and the stream is reset, which cancels the peer's `serve_call`.
        """

    async def pull(self, peer: PeerId) -> bytes:
        """The peer's `hello`. Raises `PeerLostError`, also when it is no peerinfer node."""

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        """Addresses a peer announced (without `/p2p/…`): filtered, and dialled at a limited rate."""
