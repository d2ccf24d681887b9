"""The policies: given what each usable node would cost, in which order to try them, and why.

`longest-prefix` is the paper's Algorithm 1 line 5 to the letter; `local`, `round-robin` and `random` are
baselines; `cost` is the default. Every policy is a pure function of a `Situation`; whatever order the
options are in, the answer is the same. Nodes that must not be forwarded to are not among the options.

`cost` in words: the cheapest node serves, but a peer only if that saves more than a margin, and only until
the rents that were paid for its prefix have reached the price of computing it here (core/rent.py). Nodes that
differ by less than some share of the prefill that even the cheapest has to do are as good as each other, so
that cold prompts spread, and a prefix that every node holds (a common system prompt) decides nothing. Among
those that hold as much as any and are about as idle as the idlest, the first page that they all lack
decides: the node with the highest hash of that page and its own id serves (rendezvous hashing). So entry
nodes that have not yet heard of each other's choices make the same one, and a prefix is computed once. Where
there is no such node, or page, the one that has computed the least lately serves. What is best served here
then leaves only if that makes the two nodes evener: else all nodes would move what comes at once to the one
that they all take for idle.
Two bounds keep placement from costing anybody: a node counts as good as this one only if its round trip is
small against its own prefill, and as good as the cheapest only if it is not much slower. What a node has
computed lately is its owner's word, since other entry nodes send it work, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from peerinfer.config import RoutingConfig
from peerinfer.core.rent import Tenancy
from peerinfer.core.types import PageKey, PeerId

TARGETS_MAX = 32
"""Targets that are ranked and kept with a decision; more than are ever tried."""
_MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: each bit of the product's head depends on all bits
_MASK = (1 << 64) - 1


class Candidate(NamedTuple):
    """A node that could serve, and what was known of it.

    Ordered as preferred: by cost, then this node, the lesser load, the peer id. A tuple, since a decision
    builds and compares one for every peer, and a frozen dataclass would take four times as long.
    """

    cost_s: float
    """Round trip, transfer, wait and prefill, corrected by what was learnt, and what others pay."""
    away: bool
    """False for this node, True for a peer."""
    wait_s: float
    """Until its prefill would begin."""
    peer: PeerId
    matched_pages: int
    expected_cached_tokens: int
    prefill_s: float
    """Of the tokens that are not expected to be cached."""
    rtt_s: float
    snapshot_age_s: float | None
    """Since the peer last confirmed the tree that was matched; None for this node, or without a tree."""
    recent_work_s: float
    """The prefill it has done lately and has been given to do, in its own seconds."""
    bias_s: float
    """Part of the cost: how much more wrong predictions about it were lately than those about this node."""
    in_flight_tokens: int = 0
    """Of the prompt, what is not cached there yet but will be: it computes it for requests that it was given
    before. The wait counts that, the prefill does not."""
    others_s: float = 0.0
    """Part of the cost: what those pay who come after this prefill (core/crowding.py)."""

    @property
    def first_token_s(self) -> float:
        """When the first token is expected: the cost without what others pay."""
        return self.cost_s - self.others_s

    @property
    def is_me(self) -> bool:
        """Whether this is the node that decides."""
        return not self.away


@dataclass(slots=True, kw_only=True)
class Situation:
    """All that a policy may look at."""

    options: list[Candidate]
    """Nodes that may serve, in no order that may matter; this one only if its engine is ready."""
    mine: Candidate
    """This node, ready or not."""
    ready: bool
    keys: tuple[PageKey, ...]
    """The prompt's whole pages."""
    prompt_tokens: int | None
    tenancy: Tenancy | None
    """What there is to rent or to buy; None where nothing is, and for policies that do not ask."""
    config: RoutingConfig
    turn: int
    draw: float


Choice = tuple[list[Candidate], str]
"""Options, best first, and a short reason for people."""


def longest_prefix(situation: Situation) -> Choice:
    """k ← argmax_j PrefixMatch(r, T̂rie_j) (line 5). Ties: self, the lesser load, the peer id."""
    if situation.prompt_tokens is None:
        return least_load(situation)
    ranked = nsmallest(
        TARGETS_MAX,
        situation.options,
        key=lambda option: (-option.matched_pages, option.away, option.wait_s, option.peer),
    )
    if ranked[0].matched_pages == 0:
        return ranked, "no cached prefix anywhere"
    cached = ranked[0].expected_cached_tokens
    return ranked, f"longest cached prefix: {cached} of {situation.prompt_tokens} tokens"


def cost(situation: Situation) -> Choice:
    """The cheapest node, as the module's docstring tells."""
    if situation.prompt_tokens is None:
        return least_load(situation)
    config = situation.config
    if situation.tenancy is not None and situation.tenancy.buys:
        return _before_others(situation.mine, situation), "bought: from now on the prefix is here"
    best = min(situation.options)
    slack_s = config.cold_round_trip_share_max * best.prefill_s - config.forward_margin_s
    if slack_s > 0.0:
        limit_s = best.cost_s + config.placement_slack * best.prefill_s
        latest_s = situation.mine.first_token_s + slack_s if situation.ready else inf
        share = config.cold_round_trip_share_max
        equal = [
            option
            for option in situation.options
            if option.cost_s <= limit_s
            and option.first_token_s <= latest_s
            and option.rtt_s <= share * option.prefill_s
        ]
        if len(equal) > 1:
            kind = "equally cached" if best.expected_cached_tokens else "cold"
            chosen = _agreed(equal, best, situation)
            if chosen is not None:
                return _before_others(chosen, situation), f"{kind}, placed by its first new page"
            chosen = _least_busy(equal, best, situation)
            return _before_others(chosen, situation), f"{kind}, placed on the least busy node"
    return _unless_here(best, situation)


def _agreed(equal: list[Candidate], best: Candidate, situation: Situation) -> Candidate | None:
    """Whom every node that knows about the same would choose; None if there is nobody, or no such page."""
    share = situation.config.placement_agreement
    if not share or best.matched_pages >= len(situation.keys):
        return None
    page = situation.keys[best.matched_pages]
    idle_s = (1.0 + share) * min(option.recent_work_s for option in equal)
    agreed = [
        option
        for option in equal
        if option.expected_cached_tokens >= best.expected_cached_tokens and option.recent_work_s <= idle_s
    ]
    return max(agreed, key=lambda option: (_lot(page, option.peer), option.peer), default=None)


def _least_busy(equal: list[Candidate], best: Candidate, situation: Situation) -> Candidate:
    """Whoever has computed the least lately, unless serving here is best, and moving makes nothing evener."""
    config, here = situation.config, situation.mine
    chosen = min(equal, key=lambda option: (option.recent_work_s, option))
    enough_s = chosen.recent_work_s + config.placement_gain * here.prefill_s
    is_best = situation.ready and here.cost_s <= best.cost_s + config.forward_margin_s
    return here if is_best and here.recent_work_s <= enough_s else chosen


def _lot(page: PageKey, peer: PeerId) -> int:
    """A node's number for a page, the same everywhere."""
    return (page ^ _seat(peer)) * _MIX & _MASK


@lru_cache(maxsize=4096)
def _seat(peer: PeerId) -> int:
    """A node's place among all numbers; ids are no numbers, and a decision may look at many."""
    return int.from_bytes(blake2b(peer.encode(), digest_size=8).digest(), "little")


def least_load(situation: Situation) -> Choice:
    """Without tokens nothing is known of prefixes: the shortest round trip and wait, here if in doubt."""
    ranked, _ = _unless_here(min(situation.options), situation)
    return ranked, "untokenised"


def local(situation: Situation) -> Choice:
    """Here, always: no routing."""
    return [situation.mine], "routing is off"


def round_robin(situation: Situation) -> Choice:
    """Each node in turn, by peer id."""
    return _rotated(situation.options, situation.turn), "round-robin"


def random(situation: Situation) -> Choice:
    """Any node, all equally likely."""
    return _rotated(situation.options, int(situation.draw * len(situation.options))), "random"


POLICIES: dict[str, Callable[[Situation], Choice]] = {
    "cost": cost,
    "longest-prefix": longest_prefix,
    "local": local,
    "round-robin": round_robin,
    "random": random,
}
"""By the names that the config and `x-peerinfer-policy` use."""


def _unless_here(best: Candidate, situation: Situation) -> Choice:
    """The best option, unless it saves too little against serving here, for others or for this request."""
    mine = situation.mine
    if not situation.ready:
        return _before_others(best, situation), "own engine is not ready"
    saved_s = mine.first_token_s - best.first_token_s
    if mine.cost_s - best.cost_s > situation.config.forward_margin_s and saved_s >= 0.0:
        return _before_others(best, situation), f"peer saves {saved_s:.3g} s"
    return _before_others(mine, situation), "no peer is cheaper by the margin"


def _before_others(first: Candidate, situation: Situation) -> list[Candidate]:
    """One option, then the others by cost."""
    options = situation.options
    ranked = sorted(options) if len(options) <= TARGETS_MAX else nsmallest(TARGETS_MAX, options)
    return [first, *[option for option in ranked if option is not first]][:TARGETS_MAX]


def _rotated(options: list[Candidate], start: int) -> list[Candidate]:
    """Options by peer id, from the `start`-th on."""
    ordered = sorted(options, key=lambda option: option.peer)
    first = start % len(ordered)
    return (ordered[first:] + ordered[:first])[:TARGETS_MAX]
