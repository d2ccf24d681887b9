"""What the parts of one node share: its knowledge, its ports and its counters.

The node's own `incarnation`, `seq` and tree version live here, since snapshots and replies both carry
them: whatever leaves the node about its own state is stamped by `Context.stamp`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from peerinfer.config import Config
from peerinfer.core.cost_model import wait_s, with_given, without_given
from peerinfer.core.page_keys import PageHasher
from peerinfer.core.peer_view import PeerStatus, PeerView
from peerinfer.core.push_back import PushBack
from peerinfer.core.rent import RentLedger
from peerinfer.core.retry_budget import RetryBudget
from peerinfer.core.router import OwnState
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import EngineState, Given, Load, NodeState, PeerId
from peerinfer.node.at_work import AtWork
from peerinfer.node.cache_sync import CacheSync
from peerinfer.node.decisions import Decision, Decisions
from peerinfer.node.events import Events
from peerinfer.node.ports import Engine, Overlay, Tokenizer
from peerinfer.node.totals import Totals

log = logging.getLogger("peerinfer.node")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Orders what a node says about itself: a restart beats everything, then every publish counts."""

    incarnation: int
    seq: int
    tree_version: int


@dataclass(slots=True, kw_only=True)
class Context:
    """One node's shared state; every field has one writer, named here."""

    config: Config
    overlay: Overlay
    engine: Engine
    tokenizer: Tokenizer | None
    hasher: PageHasher
    view: PeerView
    """Own tree: written by cache_sync. Estimates: by anti_entropy and, for optimistic inserts, by forward."""
    cache_sync: CacheSync
    rents: RentLedger
    """Written by request, at each decision."""
    decisions: Decisions
    retry_budget: RetryBudget
    push_back: PushBack
    rng: random.Random
    next_incarnation: Callable[[int], int]
    """A new incarnation above the argument, persisted before it is returned."""
    incarnation: int
    fingerprint_fields: Mapping[str, str]
    fingerprint: bytes
    swarm_key: SwarmKey | None
    """None in an open swarm."""
    seq: int = 0
    """Raised by anti_entropy with every publish."""
    engine_state: EngineState = EngineState.LOADING
    draining: bool = False
    turn: int = 0
    """Requests routed so far, for round-robin."""
    asked_in_vain: dict[PeerId, float] = field(default_factory=dict)
    """Peers that did not answer in time, and until when they are not asked: written by ask."""
    requests: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    foreign: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    """Peers of another fingerprint, and the fields that differ: written by anti_entropy."""
    totals: Totals = field(default_factory=Totals)
    """Written by ended."""
    events: Events = field(default_factory=Events)
    pushing_back: bool = False
    """Written by load_changed."""
    at_work: AtWork = field(default_factory=AtWork)
    """Entered by the HTTP face and by serve."""
    urgent: trio.Event = field(default_factory=trio.Event)
    """Set when the next snapshot must not wait for its interval."""

    @property
    def me(self) -> PeerId:
        return self.overlay.peer_id

    @property
    def engine_ready(self) -> bool:
        return self.engine_state is EngineState.READY

    @property
    def state(self) -> NodeState:
        """What peers are told: may they forward to us?"""
        if self.draining:
            return NodeState.DRAINING
        return NodeState.ALIVE if self.engine_ready else NodeState.LOADING

    def own_state(self) -> OwnState:
        """This node as a candidate, right at this moment."""
        return OwnState(
            load=self._load(),
            ready=self.engine_ready and not self.draining,
            reuse_tokens=self.engine.info.reuse_tokens,
        )

    def stamp(self) -> Stamp:
        """The order of what is said now."""
        return Stamp(self.incarnation, self.seq, self.view.own.version)

    def publish_soon(self) -> None:
        """Peers must know now: push-back, an emptied cache, draining."""
        self.urgent.set()

    def lose_cache(self) -> None:
        """The engine's cache is gone: empty tree and new incarnation, at once (paper §2, crash recovery)."""
        self.cache_sync.clear()
        self._begin_anew(above=self.incarnation)

    def renew_incarnation(self, *, above: int) -> None:
        """Peers remember a later life than this one: go above it, or all we say is old news to them."""
        log.warning(
            "peers know a later life of this node: its clock was set back, or another process runs as the"
            " same peer, with a copy of its data directory; each needs a --data-dir of its own"
        )
        self._begin_anew(above=above)

    def _begin_anew(self, *, above: int) -> None:
        self.incarnation = self.next_incarnation(above)
        self.seq = 0
        self.publish_soon()

    def load_changed(self) -> None:
        """Work came or went: if that starts or ends a push-back, peers learn it now (paper §3.2)."""
        paused = self.push_back.update(self.engine.load(), now=trio.current_time()) > 0
        if paused is not self.pushing_back:
            self.pushing_back = paused
            log.info("push_back=%s queued=%d", "on" if paused else "off", self.engine.load().queued)
            self.events.tell("push_back", lambda: {"on": self.pushing_back})
            self.publish_soon()

    def can_forward(self) -> bool:
        """Whether some peer would be forwarded to now."""
        now = trio.current_time()
        return any(self.view.state(record.peer, now=now) is PeerStatus.ALIVE for record in self.view.peers())

    def ended(self, decision: Decision) -> None:
        """A request of a client's, or one that a peer forwarded, is over."""
        if decision.role == "entry":
            self.totals.add(decision)
        self.events.tell("request", decision.as_json)

    def told_load(self) -> Load:
        """The load as peers are told: what is decided for this node and not yet in the engine counts."""
        return with_given(self._load(), self.view.own_in_flight.unsettled)

    def own_wait_s(self, *, without: Given | None = None) -> float:
        """How long a request that arrives now would wait here, if some others had not come."""
        load = self.told_load()
        return wait_s(without_given(load, without) if without else load, self.view.rates)

    def _load(self) -> Load:
        """The engine's; whoever has measured no rates, here or at a peer, counts as the others."""
        load = self.engine.load()
        self.view.measured_here(load)
        return load

    def drop(self, kind: str, peer: PeerId | None, reason: str) -> None:
        """Count what was refused."""
        self.dropped[kind] += 1
        log.debug("dropped kind=%s peer=%s reason=%s", kind, peer, reason)
