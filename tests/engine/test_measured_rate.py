"""Rates are measured, weighed by tokens, and forget."""

from __future__ import annotations

import pytest

from peerinfer.engine.measured_rate import MeasuredRate


def test_nothing_measured_is_zero() -> None:
    assert MeasuredRate(100).per_s == 0


def test_a_tiny_sample_weighs_no_more_than_its_tokens() -> None:
    rate = MeasuredRate(1_000_000)
    rate.add(1000, 10.0)
    rate.add(1, 1.0)
    assert rate.per_s == pytest.approx(1001 / 11)


def test_the_past_counts_half_after_its_half_life() -> None:
    rate = MeasuredRate(100)
    rate.add(1000, 1.0)
    rate.add(100, 1.0)
    assert rate.per_s == pytest.approx((500 + 100) / (0.5 + 1))


def test_a_change_of_speed_shows_within_a_few_half_lives() -> None:
    rate = MeasuredRate(100)
    rate.add(1000, 1.0)
    for _ in range(10):
        rate.add(100, 1.0)
    assert rate.per_s == pytest.approx(100, rel=0.05)
