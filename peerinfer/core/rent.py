"""Rent or buy: when to stop forwarding to the peer that holds a prefix, and to compute it here.

Theory of operation. Forwarding costs more than serving warm here would: the *rent* of one request. Computing
the prefix here costs its prefill, and that of the pages which must go for it: the *price*; then it is owned,
and later requests pay no rent. Who always takes what is cheaper now rents for ever, and is slower than alone
wherever the round trip is long. Who buys when the rents add up to the price pays at most twice what he would
have paid knowing the future (ski rental), whatever the network, and copies exactly the prefixes that are hot.

Twice is not good enough: who will need a prefix fifty times should buy at once. So the rule is not fixed but
learnt. A rule looks ahead: it buys when the rents paid, and those of some further uses, reach the price.
Every prefix that was rented, bought or both is an example of how often prefixes are used here before they are
forgotten, so when an example is complete (its prefix is gone, or has been used so often that all rules would
have bought) each rule is charged what it would have cost. The rule with the least loss lately decides. All
examples count whatever was done, so no request is spent on exploring. (Weighing "so many times the price" as
thresholds instead was rejected: the best then depends on the link, while uses do not, and a node has peers
next door and far away.)

What a use tells is noted by the key of the deepest page that the peer holds: prompts that share it are the
same prefix. An entry starts again when its page was evicted here, or would have been.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from peerinfer.config import RoutingConfig
from peerinfer.core.types import PageKey


class Rule(NamedTuple):
    """Buy when what was paid, and the rent of `further_uses` more, reach `prices` times the price."""

    further_uses: float
    prices: float

    def buys(self, *, paid_s: float, rent_s: float, price_s: float) -> bool:
        """Whether to buy instead of paying this rent; infinite uses always do, no matter how small it is."""
        return self.further_uses == inf or paid_s + self.further_uses * rent_s >= self.prices * price_s

    def cost_s(self, *, uses: int, rent_s: float, price_s: float) -> float:
        """What so many uses would have cost."""
        if self.further_uses == inf:
            return price_s
        before = self.prices * price_s / rent_s - self.further_uses - _ROUNDING
        return uses * rent_s if before > uses - 1 else max(0, ceil(before)) * rent_s + price_s


RULES = (
    Rule(inf, 1.0),
    *(Rule(uses, 1.0) for uses in (32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.0)),
    Rule(0.0, 2.0),
    Rule(0.0, 4.0),
    Rule(0.0, inf),
)
"""From the one that always buys to the one that never does; (0, 1) is the classical rule."""
COMPLETE_AT_PRICES = 2.0
"""A prefix whose rents would have reached so many times its price is an example without a doubt."""
_ROUNDING = 1e-9


class Tenancy(NamedTuple):
    """What a decision had to rent or buy, or owned already."""

    key: PageKey
    """The deepest page of the peer's match."""
    rent_s: float
    """What forwarding costs beyond serving warm here."""
    price_s: float
    """What computing the prefix here costs; 0 where it is owned."""
    owned: bool
    """The prefix is here already."""
    buys: bool


@dataclass(slots=True)
class _Entry:
    """One prefix since it was last unknown here."""

    price_s: float
    uses: int = 0
    would_have_paid_s: float = 0.0
    """The rents of all uses, those after the purchase included: what never buying would have cost."""
    used_at: float = 0.0
    here: bool = False
    """It was bought, so it is here unless it was evicted."""
    is_example: bool = False
    """The rules were charged for it."""


class RentLedger:
    """What this node has paid for its peers' prefixes, and what it learnt from it. Owned by the shell."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._entries: OrderedDict[PageKey, _Entry] = OrderedDict()
        self._prior = min(
            range(len(RULES)), key=lambda at: (abs(RULES[at].further_uses - config.rent_prior_uses), at)
        )
        self._losses = [config.rent_prior_weight * abs(at - self._prior) for at in range(len(RULES))]
        self._decay = 0.5 ** (1.0 / config.rent_half_life)
        self._best = self._prior

    @property
    def rule(self) -> Rule:
        """The rule that has cost least lately."""
        return RULES[self._best if self._config.rent_learns else self._prior]

    def __len__(self) -> int:
        """Prefixes that are kept."""
        return len(self._entries)

    def buys(self, key: PageKey, *, rent_s: float, price_s: float, residence_s: float, now: float) -> bool:
        """Whether to compute the prefix here rather than to pay this rent. Changes nothing."""
        entry = self._entries.get(key)
        paid_s = 0.0
        if entry is not None and not entry.here and now - entry.used_at <= residence_s:
            paid_s = entry.would_have_paid_s
        return self.rule.buys(paid_s=paid_s, rent_s=rent_s, price_s=price_s)

    def note(self, use: Tenancy, *, served_here: bool, residence_s: float, now: float) -> None:
        """A request used the prefix: the rent is paid, or it was bought, or it was here."""
        entry = self._entries.get(use.key)
        if entry is not None and not use.owned and (entry.here or now - entry.used_at > residence_s):
            self._learn(entry)  # it was evicted here, or would have been
            entry = None
        if entry is None:
            if use.owned:
                return  # computed here before any peer had it: there was no choice to learn from
            entry = self._entries[use.key] = _Entry(price_s=use.price_s)
            if len(self._entries) > self._config.rent_ledger_max:
                self._learn(self._entries.popitem(last=False)[1])
        self._entries.move_to_end(use.key)
        if not use.owned:
            entry.price_s = use.price_s
        entry.uses += 1
        entry.would_have_paid_s += use.rent_s
        entry.used_at = now
        entry.here = served_here or use.owned
        if entry.would_have_paid_s >= COMPLETE_AT_PRICES * entry.price_s:
            self._learn(entry)

    def _learn(self, entry: _Entry) -> None:
        """Charge every rule with what it would have cost, in prices, so that all examples count alike."""
        if entry.is_example:
            return
        entry.is_example = True
        rent_s = entry.would_have_paid_s / entry.uses
        for at, rule in enumerate(RULES):
            cost_s = rule.cost_s(uses=entry.uses, rent_s=rent_s, price_s=entry.price_s)
            self._losses[at] = self._losses[at] * self._decay + cost_s / entry.price_s
        self._best = min(range(len(RULES)), key=lambda at: (self._losses[at], abs(at - self._prior)))
