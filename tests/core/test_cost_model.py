"""Waiting and transfer in seconds, from loads."""

import pytest

from peerinfer.config import RoutingConfig
from peerinfer.core.cost_model import ANSWER_TOKENS, slot_wait_s, transfer_s, wait_s
from peerinfer.core.types import Load

CONFIG = RoutingConfig(prior_prefill_tokens_per_s=1000.0, prior_decode_tokens_per_s=ANSWER_TOKENS / 2.0)
"""Without measurements, an answer takes two seconds."""


def test_an_idle_node_is_not_waited_for() -> None:
    assert wait_s(Load(slots=2, running=1), CONFIG) == 0.0


def test_queued_prefill_is_waited_for_at_the_measured_rate() -> None:
    assert wait_s(Load(slots=2, queued_prefill_tokens=500, prefill_tokens_per_s=250.0), CONFIG) == 2.0


def test_queued_prefill_is_waited_for_at_the_prior_rate_until_one_is_measured() -> None:
    assert wait_s(Load(slots=2, queued_prefill_tokens=500), CONFIG) == 0.5


@pytest.mark.parametrize(
    ("running", "queued", "answers"), [(2, 0, 0.5), (2, 3, 2.0), (0, 1, 1.0), (5, 0, 2.0)]
)
def test_full_slots_are_waited_for_by_the_answer(running: int, queued: int, answers: float) -> None:
    """Whatever `running` says: where something is queued, no slot is free."""
    assert slot_wait_s(Load(running=running, queued=queued, slots=2), CONFIG) == pytest.approx(2.0 * answers)


def test_slots_are_waited_for_at_the_measured_decode_rate() -> None:
    load = Load(running=1, slots=1, decode_tokens_per_s=ANSWER_TOKENS * 4.0)
    assert slot_wait_s(load, CONFIG) == pytest.approx(0.25)


def test_transfer_of_a_long_prompt_takes_milliseconds() -> None:
    assert transfer_s(0) == 0.0
    assert transfer_s(30_000) == pytest.approx(0.005)
