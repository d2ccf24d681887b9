"""One peer as this node knows it: what it said of itself, what was measured, what we sent it.

A decision must not compute what changes only with a message. So whatever it needs of a peer is computed
when something is heard of the peer or sent to it (`weigh`), and lies ready as plain numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from peerinfer.config import Config
from peerinfer.core.breaker import Breaker
from peerinfer.core.cost_model import Rates, wait_s, with_given
from peerinfer.core.estimate import Estimate
from peerinfer.core.failure_detector import FailureDetector
from peerinfer.core.in_flight import InFlight
from peerinfer.core.prediction_error import PredictionError
from peerinfer.core.types import Load, NodeState, PeerId

ROUND_TRIPS_KEPT = 6  # guess
"""The round trip is the least of so many last samples. Higher: less noise, and a path that became longer
is believed later."""


class PeerStatus(StrEnum):
    """What a peer is to this node; only `ALIVE` ones are forwarded to."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    LEFT = "left"
    """It said that it leaves, and is silent or not linked any more: no crash."""
    DRAINING = "draining"
    LOADING = "loading"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """A peer at one moment, for people, logs and the node's own JSON. Times are the caller's clock."""

    peer: PeerId
    addrs: tuple[str, ...]
    state: NodeState
    """As the peer says; `PeerView.state` tells what it is to us."""
    incarnation: int
    seq: int
    """Of the last message; -1 before the first of this incarnation."""
    tree_version: int
    """Of the tree that is held here; -1 before the first of this incarnation."""
    pages: int
    """The size of the peer's whole tree, as it said last."""
    known_pages: int
    """How many of them are held here: fewer where the tree was cut, trimmed or not received yet."""
    heard_at: float
    confirmed_at: float | None
    """When the peer last said that its tree is the one held here."""
    next_within_s: float
    round_trip_s: float | None
    """The least of the last few; None until measured."""
    prediction_error_s: float | None
    """By how much first tokens from there came later than predicted, lately; None until measured."""
    load: Load
    unsettled_tokens: int
    """Uncached tokens that this node forwarded and that `load` does not tell of yet."""
    paused_until: float
    """In the past unless the peer asked for a pause, refused or failed."""
    failures: int
    """Of requests in a row."""
    open_until: float
    """Its circuit breaker: until then it gets no request for them (core/breaker.py)."""
    reuse_tokens: int


class Peer:
    """The mutable original behind `PeerRecord`; its one writer is `PeerView`."""

    __slots__ = (
        "_config",
        "_forget_left_after_s",
        "_rates",
        "_round_trips",
        "addrs",
        "breaker",
        "busy_until",
        "confirmed_at",
        "detector",
        "detour_s",
        "error",
        "error_s",
        "estimate",
        "has_in_flight",
        "has_prefill",
        "in_flight",
        "incarnation",
        "load",
        "load_at",
        "load_seq",
        "pages",
        "paused_until",
        "peer",
        "prefill_s_per_token",
        "recent_tokens",
        "reported",
        "reuse_tokens",
        "round_trip_s",
        "seq",
        "state",
        "unsettled_tokens",
        "unsettled_wait_s",
        "usable_from",
    )

    def __init__(
        self,
        peer: PeerId,
        estimate: Estimate,
        *,
        config: Config,
        rates: Rates,
        incarnation: int,
        now: float,
    ) -> None:
        self.peer = peer
        self.estimate = estimate
        self.detector = FailureDetector(config.anti_entropy, now=now)
        self.reported: PeerStatus | None = None
        """The status that `PeerView.expire` told last."""
        self.addrs: tuple[str, ...] = ()
        self.round_trip_s: float | None = None
        self.in_flight = InFlight()
        self.breaker = Breaker()
        self.error = PredictionError()
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS_KEPT)
        self._config = config.routing
        self._forget_left_after_s = config.anti_entropy.forget_left_after_s
        self._rates = rates
        self.renew(incarnation)

    def renew(self, incarnation: int) -> None:
        """The peer, or its engine, has started again: nothing that it said before holds."""
        self.incarnation = incarnation
        self.seq = -1
        self.load_seq = -1
        self.load = Load()
        self.load_at = -inf
        """When the load was as told, as far as we know."""
        self.state = NodeState.ALIVE
        self.paused_until = -inf
        """As the peer asked; its next message may say otherwise."""
        self.breaker.restarted()
        self.reuse_tokens = 1
        self.pages = 0
        self.confirmed_at: float | None = None
        self.weigh()

    def weigh(self) -> None:
        """Compute what a decision reads; to be called after every change of this peer."""
        rate = self.load.prefill_tokens_per_s
        self.prefill_s_per_token = 1.0 / rate if rate else 0.0
        """0 is not measured yet."""
        unsettled = self.in_flight.unsettled
        self.unsettled_tokens = unsettled.tokens
        self.has_in_flight = self.in_flight.has_pages
        ahead_tokens = self.load.queued_prefill_tokens + self.unsettled_tokens
        self.has_prefill = ahead_tokens > 0
        self.recent_tokens = self.load.recent_prefill_tokens + ahead_tokens
        told_s = wait_s(self.load, self._rates)
        self.busy_until = self.load_at + told_s
        """When the work that it told of is done: told waits shrink while we hear nothing new."""
        self.unsettled_wait_s = 0.0
        """What the work adds to that of which it has not told."""
        if unsettled.requests:
            self.unsettled_wait_s = wait_s(with_given(self.load, unsettled), self._rates) - told_s
        self.error_s = self.error.at(self.load_at)
        """By how much predictions about it are off; None while too little is known."""
        measured = self.round_trip_s
        self.detour_s = self._config.prior_round_trip_s if measured is None else measured
        ready = self.state is NodeState.ALIVE
        self.usable_from = max(self.paused_until, self.breaker.open_until) if ready else inf
        """A target from this time on, and before `detector.suspect_at`."""

    def told_load(self, load: Load, *, seq: int, now: float) -> None:
        """Take over a load that has just come in; it is half a round trip old. `weigh` has to follow."""
        self.load, self.load_seq = load, seq
        self.load_at = now - (self.round_trip_s or 0.0) / 2.0

    def observe_round_trip(self, seconds: float) -> None:
        """Take in a measured round trip. What is slow about it is mostly a busy machine, hence the least."""
        self._round_trips.append(seconds)
        self.round_trip_s = min(self._round_trips)
        self.weigh()

    def lost_link(self, *, now: float) -> None:
        """Nothing reaches it any more, and how far it will be when something does again nobody knows."""
        self.detector.link_lost(now=now)
        self._round_trips.clear()
        self.round_trip_s = None
        self.weigh()

    def failed(self, *, shun_s: float, now: float) -> None:
        """A request failed there: leave the peer alone, each time in a row for twice as long."""
        self.breaker.failed(open_s=shun_s, now=now)
        self.weigh()

    def tried(self, *, within_s: float, now: float) -> None:
        """A request is on its way there; one of a peer that failed before keeps the others away."""
        if self.breaker.tried(within_s=within_s, now=now):
            self.weigh()

    def succeeded(self) -> None:
        """It served a request, or is connected anew: whatever failed before is over."""
        if self.breaker.succeeded():
            self.weigh()

    def status(self, *, now: float) -> PeerStatus:
        """What the peer is to us."""
        if now >= self.detector.suspect_at:
            return PeerStatus.LEFT if self.state is NodeState.DRAINING else PeerStatus.SUSPECT
        if self.state is NodeState.DRAINING:
            return PeerStatus.DRAINING
        if self.state is NodeState.LOADING:
            return PeerStatus.LOADING
        return PeerStatus.PAUSED if now < self.usable_from else PeerStatus.ALIVE

    def is_over(self, *, now: float) -> bool:
        """Whether it was silent for so long, or gone for so long after its goodbye, that it is forgotten."""
        leaving = self.state is NodeState.DRAINING
        left_over_at = self.detector.suspect_at + self._forget_left_after_s if leaving else inf
        return now >= min(self.detector.forget_at, left_over_at)

    def record(self) -> PeerRecord:
        """The peer as it is now, for whoever must not change it."""
        return PeerRecord(
            peer=self.peer,
            addrs=self.addrs,
            state=self.state,
            incarnation=self.incarnation,
            seq=self.seq,
            tree_version=self.estimate.version,
            pages=self.pages,
            known_pages=len(self.estimate.pages),
            heard_at=self.detector.heard_at,
            confirmed_at=self.confirmed_at,
            next_within_s=self.detector.next_within_s,
            round_trip_s=self.round_trip_s,
            prediction_error_s=self.error_s,
            load=self.load,
            unsettled_tokens=self.unsettled_tokens,
            paused_until=max(self.paused_until, self.breaker.open_until),
            failures=self.breaker.failures,
            open_until=self.breaker.open_until,
            reuse_tokens=self.reuse_tokens,
        )
