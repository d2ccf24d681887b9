"""What a node learns from its predictions: who was slower than expected is dearer, for a while."""

from __future__ import annotations

import pytest

from peerinfer.config import Config, RoutingConfig
from peerinfer.core.prediction_error import HALF_LIFE_S, SAMPLES_MIN, PredictionError
from peerinfer.core.router import Candidate
from tests.core.swarm import ME, A, Swarm, chain, prompt

LONG = chain(1, 33)


def told(error: PredictionError, *errors_s: float) -> PredictionError:
    for each in errors_s:
        error.observe(each, now=0.0)
    return error


def test_the_first_errors_do_not_count() -> None:
    error = told(PredictionError(), *[1.0] * (SAMPLES_MIN - 1))
    assert error.at(0.0) is None
    assert told(error, 1.0).at(0.0) == 1.0


def test_an_error_is_a_mean_of_the_last_ones() -> None:
    error = told(PredictionError(), 0.1, 0.2, 0.3)
    assert error.at(0.0) == pytest.approx(0.2)
    assert told(error, *[1.0] * 100).at(0.0) == pytest.approx(1.0, abs=1e-3)


def test_old_errors_are_forgotten() -> None:
    error = told(PredictionError(), 1.0, 1.0, 1.0)
    assert error.at(HALF_LIFE_S) == 0.5
    assert error.at(-1.0) == 1.0, "a moment before it was told, as clocks are"


def _peer(swarm: Swarm) -> Candidate:
    return next(each for each in swarm.rank(prompt(LONG)).targets if each.peer == A)


def _swarm(*, own_error_s: float, error_s: float, bias_s_max: float = 1.0) -> Swarm:
    swarm = Swarm(config=Config(routing=RoutingConfig(bias_s_max=bias_s_max)))
    swarm.hear(A, LONG)
    for _ in range(SAMPLES_MIN):
        swarm.view.observe_error(ME, own_error_s, now=swarm.now)
        swarm.view.observe_error(A, error_s, now=swarm.now)
    return swarm


def test_a_peer_is_dearer_by_what_its_errors_exceed_our_own() -> None:
    plain = _peer(_swarm(own_error_s=0.1, error_s=0.1))
    biased = _peer(_swarm(own_error_s=0.1, error_s=0.3))
    assert plain.bias_s == pytest.approx(0.0)
    assert biased.bias_s == pytest.approx(0.2)
    assert biased.cost_s - plain.cost_s == pytest.approx(0.2)


def test_a_bias_is_bounded_on_both_sides() -> None:
    assert _peer(_swarm(own_error_s=0.0, error_s=9.0, bias_s_max=0.5)).bias_s == 0.5
    assert _peer(_swarm(own_error_s=9.0, error_s=0.0, bias_s_max=0.5)).bias_s == -0.5


def test_nothing_is_corrected_before_both_are_known() -> None:
    swarm = Swarm()
    swarm.hear(A, LONG)
    for _ in range(SAMPLES_MIN):
        swarm.view.observe_error(A, 9.0, now=swarm.now)
    assert _peer(swarm).bias_s == 0.0


def test_a_link_that_makes_forwarding_lose_is_left_alone_and_later_tried_again() -> None:
    """It is measured at 2 ms, but each forward takes a second longer than predicted, as with no bandwidth."""
    swarm = _swarm(own_error_s=0.0, error_s=1.0)
    assert swarm.rank(prompt(LONG)).targets[0].peer == ME
    record = swarm.view.get(A)
    assert record is not None
    assert record.prediction_error_s == pytest.approx(1.0, abs=0.01)
    swarm.now += 6 * HALF_LIFE_S
    swarm.hear(A, LONG)
    assert swarm.rank(prompt(LONG)).targets[0].peer == A


def test_an_error_of_a_peer_that_was_forgotten_is_no_error() -> None:
    swarm = Swarm()
    swarm.view.observe_error(A, 1.0, now=swarm.now)
    assert swarm.view.get(A) is None
