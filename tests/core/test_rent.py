"""Rent or buy: what a node pays for its peers' prefixes, when it buys, and what it learns from that."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.config import RoutingConfig
from peerinfer.core.rent import RULES, RentLedger, Rule, Tenancy

CLASSICAL = Rule(0.0, 1.0)
FIXED = RoutingConfig(rent_learns=False, rent_prior_uses=0.0)
"""The classical rule, for ever."""


class Tenant:
    """A node that follows its ledger; a second passes with each request."""

    def __init__(self, config: RoutingConfig = FIXED, *, residence_s: float = inf) -> None:
        self.ledger = RentLedger(config)
        self.residence_s = residence_s
        self.now = 0.0
        self.owned: set[int] = set()
        self.paid_s = 0.0

    def use(self, key: int, *, rent_s: float, price_s: float) -> bool:
        """Whether the request was served here."""
        self.now += 1.0
        terms = {"residence_s": self.residence_s, "now": self.now}
        owned = key in self.owned
        buys = not owned and self.ledger.buys(key, rent_s=rent_s, price_s=price_s, **terms)
        use = Tenancy(key, rent_s, 0.0 if owned else price_s, owned, buys)
        self.ledger.note(use, served_here=buys or owned, **terms)
        if buys:
            self.owned.add(key)
        self.paid_s += price_s if buys else 0.0 if owned else rent_s
        return buys or owned


def test_rents_are_paid_until_they_reach_the_price() -> None:
    tenant = Tenant()
    served_here = [tenant.use(1, rent_s=1.0, price_s=3.0) for _ in range(6)]
    assert served_here == [False, False, False, True, True, True]


def test_each_prefix_has_its_own_account() -> None:
    tenant = Tenant()
    served_here = [tenant.use(key, rent_s=1.0, price_s=2.0) for key in (1, 2, 1, 2, 1, 2)]
    assert served_here == [False, False, False, False, True, True]


@given(uses=st.integers(1, 200), rent_s=st.floats(0.01, 10.0), price_s=st.floats(0.1, 10.0))
def test_the_classical_rule_pays_at_most_twice_and_a_rent_more_than_who_knows_the_future(
    uses: int, rent_s: float, price_s: float
) -> None:
    """Ski rental's bound, for one prefix without evictions; the rent more is that of the last use."""
    tenant = Tenant()
    for _ in range(uses):
        tenant.use(1, rent_s=rent_s, price_s=price_s)
    assert tenant.paid_s <= 2.0 * min(uses * rent_s, price_s) + rent_s + 1e-6


@given(
    rule=st.sampled_from(RULES),
    uses=st.integers(1, 50),
    rent_s=st.floats(0.01, 10.0),
    price_s=st.floats(0.1, 10.0),
)
def test_what_a_rule_would_have_cost_is_what_following_it_costs(
    rule: Rule, uses: int, rent_s: float, price_s: float
) -> None:
    paid_s = 0.0
    for _ in range(uses):
        if rule.buys(paid_s=paid_s + 1e-9, rent_s=rent_s, price_s=price_s):
            paid_s += price_s
            break
        paid_s += rent_s
    assert rule.cost_s(uses=uses, rent_s=rent_s, price_s=price_s) == pytest.approx(paid_s, abs=1e-6)


def test_the_first_rule_buys_at_once_where_a_few_rents_reach_the_price() -> None:
    """As on a slow link: eight more uses are expected before anything is learnt."""
    tenant = Tenant(RoutingConfig())
    assert not tenant.use(1, rent_s=0.1, price_s=1.0)
    assert tenant.use(2, rent_s=0.2, price_s=1.0)


def test_a_node_whose_prefixes_are_used_often_learns_to_buy_sooner() -> None:
    tenant = Tenant(RoutingConfig(rent_prior_uses=0.0))
    for key in range(40):
        for _ in range(30):
            tenant.use(key, rent_s=1.0, price_s=4.0)
    assert tenant.ledger.rule.further_uses >= 4.0
    assert tenant.use(99, rent_s=1.0, price_s=4.0)


def test_a_node_whose_prefixes_are_used_twice_learns_not_to_buy() -> None:
    """They are forgotten after ten seconds, and each comes three times."""
    tenant = Tenant(RoutingConfig(), residence_s=10.0)
    for key in range(200):
        for _ in range(2):
            tenant.use(key, rent_s=1.0, price_s=4.0)
        if key >= 20:
            tenant.owned.discard(key - 20)
            tenant.use(key - 20, rent_s=1.0, price_s=4.0)  # shows that it was forgotten
    assert tenant.ledger.rule.further_uses <= 2.0
    assert not tenant.use(999, rent_s=1.0, price_s=4.0)


def test_without_learning_the_first_rule_stays() -> None:
    tenant = Tenant(FIXED)
    for key in range(40):
        for _ in range(30):
            tenant.use(key, rent_s=1.0, price_s=4.0)
    assert tenant.ledger.rule == CLASSICAL


def test_an_account_starts_again_when_the_prefix_would_have_been_evicted() -> None:
    tenant = Tenant(residence_s=5.0)
    assert [tenant.use(1, rent_s=1.0, price_s=2.0) for _ in range(2)] == [False, False]
    tenant.now += 10.0
    assert [tenant.use(1, rent_s=1.0, price_s=2.0) for _ in range(3)] == [False, False, True]


def test_an_account_starts_again_when_the_page_was_evicted_here() -> None:
    tenant = Tenant()
    assert [tenant.use(1, rent_s=1.0, price_s=1.0) for _ in range(2)] == [False, True]
    tenant.owned.clear()
    assert [tenant.use(1, rent_s=1.0, price_s=1.0) for _ in range(2)] == [False, True]


def test_what_was_here_before_any_peer_had_it_teaches_nothing() -> None:
    ledger = RentLedger(RoutingConfig())
    ledger.note(Tenancy(1, 1.0, 0.0, True, False), served_here=True, residence_s=inf, now=0.0)
    assert len(ledger) == 0


def test_asking_changes_nothing() -> None:
    ledger = RentLedger(FIXED)
    for _ in range(10):
        assert not ledger.buys(1, rent_s=1.0, price_s=1.0, residence_s=inf, now=0.0)
    assert len(ledger) == 0


def test_the_ledger_is_bounded_and_the_least_recently_used_account_goes() -> None:
    tenant = Tenant(replace(FIXED, rent_ledger_max=2))
    for key in (1, 2, 1, 3):
        assert not tenant.use(key, rent_s=1.0, price_s=2.0)
    assert len(tenant.ledger) == 2
    assert tenant.use(1, rent_s=1.0, price_s=2.0), "it has paid twice"
    assert not tenant.use(2, rent_s=1.0, price_s=1.0), "it has to start again"
