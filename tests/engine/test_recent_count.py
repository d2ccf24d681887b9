"""The count behind the placement of cold prompts."""

import pytest

from peerinfer.engine.recent_count import RecentCount


def test_what_was_done_counts_half_after_the_half_life() -> None:
    count = RecentCount(half_life_s=30.0)
    count.add(1000, now=10.0)
    assert count.at(40.0) == pytest.approx(500.0)
    count.add(100, now=40.0)
    assert count.at(70.0) == pytest.approx(300.0)


def test_nothing_was_done_at_first() -> None:
    assert RecentCount(half_life_s=30.0).at(1e6) == 0.0
