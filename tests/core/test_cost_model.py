"""Waiting and transfer in seconds, from loads."""

import pytest

from peerinfer.config import RoutingConfig
from peerinfer.core.cost_model import ANSWER_TOKENS, Rates, transfer_s, wait_s, with_given, without_given
from peerinfer.core.types import Given, Load

RATES = Rates.prior(
    RoutingConfig(prior_prefill_tokens_per_s=1000.0, prior_decode_tokens_per_s=ANSWER_TOKENS / 2.0)
)
"""Without measurements, an answer takes two seconds."""


def test_an_idle_node_is_not_waited_for() -> None:
    assert wait_s(Load(slots=2, running=1), RATES) == 0.0


def test_queued_prefill_is_waited_for_at_the_measured_rate() -> None:
    assert wait_s(Load(slots=2, queued_prefill_tokens=500, prefill_tokens_per_s=250.0), RATES) == 2.0


def test_queued_prefill_is_waited_for_at_the_rate_that_stands_in_until_one_is_measured() -> None:
    assert wait_s(Load(slots=2, queued_prefill_tokens=500), RATES) == 0.5


@pytest.mark.parametrize(
    ("running", "queued", "answers"), [(2, 0, 0.5), (2, 3, 2.0), (0, 1, 1.0), (5, 0, 2.0)]
)
def test_full_slots_are_waited_for_by_the_answer(running: int, queued: int, answers: float) -> None:
    """Whatever `running` says: where something is queued, no slot is free."""
    assert wait_s(Load(running=running, queued=queued, slots=2), RATES) == pytest.approx(2.0 * answers)


def test_slots_are_waited_for_at_the_measured_decode_rate() -> None:
    load = Load(running=1, slots=1, decode_tokens_per_s=ANSWER_TOKENS * 4.0)
    assert wait_s(load, RATES) == pytest.approx(0.25)


@pytest.mark.parametrize(("prefill_tokens", "expected_s"), [(400, 2.0 + 0.1), (8000, 8.0)])
def test_answers_are_decoded_while_others_are_prefilled(prefill_tokens: int, expected_s: float) -> None:
    """Four slots, eight answers before ours: either the slots are what is short, or the prefill is."""
    load = Load(running=4, queued=3, slots=4, queued_prefill_tokens=prefill_tokens)
    assert wait_s(load, RATES) == pytest.approx(expected_s)


def test_what_is_given_takes_free_slots_first() -> None:
    load = Load(running=1, slots=3, queued_prefill_tokens=10)
    more = with_given(load, Given(3, 60))
    assert (more.running, more.queued, more.queued_prefill_tokens) == (3, 1, 70)
    more = with_given(more, Given(2, 0))
    assert (more.running, more.queued) == (3, 3)
    assert with_given(load, Given()) is load


def test_where_something_waits_no_slot_is_free() -> None:
    """Memory is what is short there."""
    more = with_given(Load(running=1, queued=1, slots=3), Given(1, 5))
    assert (more.running, more.queued) == (1, 2)


def test_a_load_without_what_came_later_is_never_less_than_nothing() -> None:
    load = Load(running=2, queued=3, slots=2, queued_prefill_tokens=100)
    less = without_given(load, Given(1, 40))
    assert (less.running, less.queued, less.queued_prefill_tokens) == (2, 2, 60)
    less = without_given(load, Given(9, 900))
    assert (less.queued, less.queued_prefill_tokens) == (0, 0)


def test_transfer_of_a_long_prompt_takes_milliseconds() -> None:
    assert transfer_s(0) == 0.0
    assert transfer_s(30_000) == pytest.approx(0.005)


def test_this_nodes_rates_stand_in_and_what_is_typical_until_it_has_any() -> None:
    config = RoutingConfig()
    rates = Rates.prior(config)
    assert not rates.learn(Load(), [], config)
    assert rates == Rates.prior(config)
    peers = [Load(prefill_tokens_per_s=each, decode_tokens_per_s=each / 10) for each in (0.0, 300.0, 500.0)]
    assert rates.learn(Load(decode_tokens_per_s=7.0), peers, config), "the first that was measured"
    assert rates == Rates(300.0, 7.0)
    assert not rates.learn(Load(prefill_tokens_per_s=9.0), peers, config)
    assert rates == Rates(9.0, 30.0)
    assert not rates.learn(Load(prefill_tokens_per_s=9.0, decode_tokens_per_s=8.0), peers, config)
    assert rates == Rates(9.0, 8.0)
    assert Rates.prior(config).learn(Load(prefill_tokens_per_s=9.0, decode_tokens_per_s=8.0), [], config)
