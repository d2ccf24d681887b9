"""getBestNode: where a request is to run, best target first (Algorithm 1, line 5; paper §3.2, §3.3).

One synchronous call that reads the view and changes nothing: no await lies between looking and choosing,
so a decision is atomic. It yields a list, since §3.3 needs the next best when the best fails. This node is
always in it: whatever is wrong with the swarm, a request can be served here. Suspect (§3.3), paused (§3.2),
loading and draining peers are left out, with the reason. Which target is best is the policy's matter
(core/policies.py); what each would cost is computed here.

What is expected to be cached is at most ⌊(n−1)/page⌋ pages, since the last token is always computed, and
a multiple of what the engine there can reuse. An engine reuses no less than we expect; the rest is luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peerinfer.config import RoutingConfig
from peerinfer.core.cost_model import transfer_s, wait_s, with_given
from peerinfer.core.crowding import others_s
from peerinfer.core.frames import ASKED_PAGES_MAX
from peerinfer.core.peer import Peer, PeerStatus
from peerinfer.core.peer_view import PeerView
from peerinfer.core.policies import POLICIES, TARGETS_MAX, Candidate, Situation
from peerinfer.core.rent import RentLedger, Tenancy
from peerinfer.core.types import Holding, Load, PageKey, PeerId

__all__ = ["Candidate", "OwnState", "Prompt", "Ranking", "rank"]

NOTHING_TOLD: Mapping[PeerId, Holding] = {}
SKIPPED_MAX = 32
"""Unusable peers that are kept with a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """This node as a candidate."""

    load: Load
    ready: bool
    reuse_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a request's routing depends on."""

    keys: tuple[PageKey, ...]
    """Its whole pages."""
    tokens: int | None
    """None: it could not be tokenised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A decision: whom to try, in order, and why."""

    targets: tuple[Candidate, ...]
    """Best first, this node always among them: the last one if its engine is not ready. Where the client
    chose the target: that one, or nobody."""
    skipped: tuple[tuple[PeerId, str], ...]
    """Peers that must not be forwarded to now, by id, each with the reason."""
    reason: str
    tenancy: Tenancy | None = None
    """What the decision had to rent or to buy, for the ledger (`note`)."""
    busy_share: float = 0.0
    """Of the nodes that could serve, how many had prefill before this request (`Crowding.note`)."""


def rank(
    view: PeerView,
    prompt: Prompt,
    own: OwnState,
    *,
    policy: str,
    config: RoutingConfig,
    now: float,
    turn: int,
    draw: float,
    target: PeerId | None = None,
    rents: RentLedger | None = None,
    told: Mapping[PeerId, Holding] = NOTHING_TOLD,
) -> Ranking:
    """The targets for a request. Raises ValueError for an unknown policy.

    `target` overrides the policy: that node or, if it cannot be forwarded to, nobody. `turn` counts
    requests and `draw` is uniform in [0, 1): what round-robin and random need, since the core has neither
    memory nor randomness of its own. Without `rents` the policy `cost` always takes what is cheaper now.
    `told` is what peers that were just asked have of this prompt, which goes before what is known of them;
    but of a very long one they were asked for the first pages only.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")
    weighing = _Weighing(view, prompt, own, config, told)
    mine = weighing.mine()
    # Where it is not known how far a peer is, one forward may lose more than all of them will ever save.
    measured_only = policy == "cost" and own.ready and target is None
    peers, skipped = weighing.peers(now, measured_only=measured_only)
    # If nobody can serve, this node must say so.
    options = [*peers, mine] if own.ready or not peers else peers
    if target is not None:
        wanted = tuple(option for option in options if option.peer == target)
        return Ranking(targets=wanted, skipped=_reasons(skipped, now), reason="the client chose the target")
    tenancy = None
    if policy == "cost" and rents is not None and own.ready:
        tenancy = weighing.tenancy(mine, peers, rents, now=now)
    chosen, reason = POLICIES[policy](
        Situation(
            options=options,
            mine=mine,
            ready=own.ready,
            keys=prompt.keys,
            prompt_tokens=prompt.tokens,
            tenancy=tenancy,
            config=config,
            turn=turn,
            draw=draw,
        )
    )
    if mine not in chosen:
        chosen[TARGETS_MAX - 1 :] = [mine]
    return Ranking(
        targets=tuple(chosen),
        skipped=_reasons(skipped, now),
        reason=reason,
        tenancy=tenancy,
        busy_share=weighing.busy / (1 + len(peers)),
    )


class _Weighing:
    """One prompt, weighed at every node."""

    def __init__(
        self,
        view: PeerView,
        prompt: Prompt,
        own: OwnState,
        config: RoutingConfig,
        told: Mapping[PeerId, Holding],
    ) -> None:
        self._view, self._keys, self._own, self._config = view, prompt.keys, own, config
        self._told = told
        self._tokens = prompt.tokens or 0
        self.busy = 0
        """Nodes that have prefill to do; others may only have answers to end."""
        self._others_per_s = config.crowding_weight * view.crowding.price_per_s()
        self._cacheable_tokens = max(0, self._tokens - 1) // view.page_size * view.page_size
        rate = own.load.prefill_tokens_per_s or view.typical_prefill_tokens_per_s()
        # A node that has measured nothing yet counts as this one, and this one as its peers: nobody may
        # look fast, and attract everything, because it is new.
        self._s_per_token = 1.0 / (rate or config.prior_prefill_tokens_per_s)

    def mine(self) -> Candidate:
        """This node: no round trip, an exact tree, the load of this moment."""
        own, view, s_per_token = self._own, self._view, self._s_per_token
        matched = view.own.match_prefix(self._keys)
        expected, in_flight, load = self._reusable(matched, own.reuse_tokens), 0, own.load
        if view.own_in_flight.given.requests:
            coming = view.own_in_flight.match_prefix(self._keys, matched)
            in_flight = self._reusable(coming, own.reuse_tokens) - expected
            load = with_given(load, view.own_in_flight.unsettled)
        prefill_s = (self._tokens - expected - in_flight) * s_per_token
        ahead_s = wait_s(load, view.rates)
        self.busy += load.queued_prefill_tokens > 0
        theirs_s = others_s(prefill_s, ahead_s, self._others_per_s)
        cost_s = ahead_s + prefill_s + theirs_s
        recent_s = (load.recent_prefill_tokens + load.queued_prefill_tokens) * s_per_token
        return Candidate(
            cost_s,
            False,
            ahead_s,
            view.me,
            matched,
            expected,
            prefill_s,
            0.0,
            None,
            recent_s,
            0.0,
            in_flight,
            theirs_s,
        )

    def _reusable(self, pages: int, reuse_tokens: int) -> int:
        """What an engine takes from its cache for the prompt, if these pages of it are there."""
        tokens = min(pages * self._view.page_size, self._cacheable_tokens)
        return tokens - tokens % reuse_tokens

    def peers(self, now: float, *, measured_only: bool) -> tuple[list[Candidate], list[Peer]]:
        """The peers that can be forwarded to, and those that cannot. The hot loop of a decision."""
        matches = self._view.match_estimates(self._keys)
        page_size, cacheable_tokens = self._view.page_size, self._cacheable_tokens
        tokens, own_s_per_token = self._tokens, self._s_per_token
        sent_s, others_per_s = transfer_s(tokens), self._others_per_s
        told = self._told
        own_error_s, bias_s_max = self._view.own_error.at(now), self._config.bias_s_max
        options: list[Candidate] = []
        skipped: list[Peer] = []
        for peer in self._view.candidates():
            usable = peer.usable_from <= now < peer.detector.suspect_at
            if not usable or (measured_only and peer.round_trip_s is None):
                skipped.append(peer)
                continue
            matched = matches[peer.estimate.slot]
            coming = matched
            if told and (holding := told.get(peer.peer)) is not None:
                matched, coming = _with_known(holding, matched)
            expected = matched * page_size
            if expected > cacheable_tokens:
                expected = cacheable_tokens
            if peer.reuse_tokens > 1:
                expected -= expected % peer.reuse_tokens
            if peer.has_in_flight:
                coming = max(coming, peer.in_flight.match_prefix(self._keys, matched))
            in_flight = self._reusable(coming, peer.reuse_tokens) - expected if coming > matched else 0
            s_per_token = peer.prefill_s_per_token or own_s_per_token
            prefill_s = (tokens - expected - in_flight) * s_per_token
            ahead_s = peer.unsettled_wait_s
            if peer.busy_until > now:
                ahead_s += peer.busy_until - now
            self.busy += peer.has_prefill and ahead_s > 0.0
            rtt_s = peer.detour_s
            bias_s = 0.0
            if own_error_s is not None and peer.error_s is not None:
                bias_s = min(max(peer.error_s - own_error_s, -bias_s_max), bias_s_max)
            theirs_s = others_s(prefill_s, ahead_s, others_per_s) if others_per_s else 0.0
            cost_s = rtt_s + sent_s + ahead_s + prefill_s + theirs_s + bias_s
            age_s = None if peer.confirmed_at is None else now - peer.confirmed_at
            recent_s = peer.recent_tokens * s_per_token
            options.append(
                Candidate(
                    cost_s,
                    True,
                    ahead_s,
                    peer.peer,
                    matched,
                    expected,
                    prefill_s,
                    rtt_s,
                    age_s,
                    recent_s,
                    bias_s,
                    in_flight,
                    theirs_s,
                )
            )
        return options, skipped

    def tenancy(
        self, mine: Candidate, peers: list[Candidate], rents: RentLedger, *, now: float
    ) -> Tenancy | None:
        """What there is to rent from the cheapest peer, to buy, or owned; None if there is no dilemma."""
        best = min(peers, default=None)
        if best is None:
            return None
        there = best.expected_cached_tokens + best.in_flight_tokens
        pages = max(best.matched_pages, there // self._view.page_size)
        if not pages:
            return None
        key = self._keys[pages - 1]
        missing = there - mine.expected_cached_tokens - mine.in_flight_tokens
        price_s = missing * self._s_per_token
        warm_s = mine.prefill_s - price_s
        price_s += mine.others_s - others_s(warm_s, mine.wait_s, self._others_per_s)
        rent_s = best.cost_s - mine.cost_s + max(0.0, price_s)
        if rent_s <= 0.0:
            return None  # this node is so busy that forwarding costs nothing
        if missing <= 0:
            return Tenancy(key, rent_s, 0.0, True, False)
        if rent_s >= price_s - self._config.forward_margin_s:
            return None  # serving here is cheaper in any case
        evictions = self._view.own.evictions
        if self._config.rent_prices_evictions:
            price_s *= 1.0 + evictions.missed_share
        buys = rents.buys(
            key,
            rent_s=rent_s - (best.wait_s - mine.wait_s),  # waits come and go
            price_s=price_s,
            residence_s=evictions.residence_s,
            now=now,
        )
        return Tenancy(key, rent_s, price_s, False, buys)


def _with_known(told: Holding, known_pages: int) -> Holding:
    """What an asked peer has: if that is all that it was asked for, what is known of the rest still holds."""
    if told.cached_pages < ASKED_PAGES_MAX:
        return told
    return Holding(max(told.cached_pages, known_pages), max(told.coming_pages, known_pages))


def _reasons(skipped: list[Peer], now: float) -> tuple[tuple[PeerId, str], ...]:
    """Why each of these peers was left out."""
    if not skipped:
        return ()
    first = sorted(skipped, key=lambda peer: peer.peer)[:SKIPPED_MAX]
    return tuple([(peer.peer, _reason(peer, now)) for peer in first])


def _reason(peer: Peer, now: float) -> str:
    status = peer.status(now=now)
    if status is PeerStatus.SUSPECT:
        return f"suspect: last heard of {now - peer.detector.heard_at:.1f} s ago"
    if status is PeerStatus.PAUSED:
        left_s = peer.usable_from - now
        return f"paused for another {f'{left_s:.1f} s' if left_s >= 1 else f'{left_s * 1000:.0f} ms'}"
    if status is PeerStatus.ALIVE:
        return "its round trip is not measured yet"
    return str(status)
