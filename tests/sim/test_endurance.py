"""A few minutes of the endurance run, and what judges it."""

from __future__ import annotations

import random

from peerinfer.sim.endurance import BOUNDS, RINGS, endure
from peerinfer.sim.trend import blocks, trend


def test_what_a_node_keeps_stays_within_its_bounds_under_prompts_that_never_come_again() -> None:
    """Goal: situation 5. Method: a minute and a half, after which caches and rings are full and turning."""
    endurance = endure(seed=2, hours=0.025)
    assert not endurance.unbounded()
    last = endurance.samples[-1].kept
    assert last["own tree's pages"] == BOUNDS["own tree's pages"]
    assert last["evicted pages remembered"] > BOUNDS["evicted pages remembered"] / 2
    assert last["pages of estimates"] > BOUNDS["pages of estimates"] / 2
    assert 0 < last["decisions"] <= RINGS
    assert endurance.answered > 0
    assert endurance.failed == 0


def test_noise_is_flat_about_as_often_as_it_should_be() -> None:
    """An interval of 95 %: of forty series that go nowhere, about two are taken for a trend."""
    wrong = 0
    for seed in range(40):
        draw = random.Random(seed)
        found = trend(blocks([(5.0 * at, 100.0 + draw.gauss(0, 1)) for at in range(120)], seconds=20.0))
        assert found is not None
        wrong += not found.flat
    assert wrong <= 5


def test_what_grows_under_noise_is_not_flat() -> None:
    """Method: a hundredth of a unit per second under noise of one unit."""
    draw = random.Random(1)
    series = [(5.0 * at, 100.0 + 0.05 * at + draw.gauss(0, 1)) for at in range(120)]
    found = trend(blocks(series, seconds=20.0))
    assert found is not None
    assert not found.flat
    assert found.low < 0.01 < found.high
    assert "GROWING" in found.told(unit="units/s", scale=1.0, per_s=1.0)
    falling = trend([(at, -value) for at, value in series])
    assert falling is not None
    assert "falling" in falling.told(unit="units/s", scale=1.0, per_s=1.0)


def test_a_series_that_never_changes_is_flat_and_a_short_one_says_nothing() -> None:
    assert trend([]) is None
    assert trend([(0.0, 1.0)] * 5) is None
    still = trend([(float(at), 7.0) for at in range(30)])
    assert still is not None
    assert still.flat
    assert (still.slope, still.low, still.high) == (0.0, 0.0, 0.0)
