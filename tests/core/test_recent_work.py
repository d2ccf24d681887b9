"""Work given to a node ages with the work that is given to any."""

import pytest

from peerinfer.core.recent_work import HALF_LIFE_TOKENS, RecentWork
from peerinfer.core.types import PeerId

A, B = PeerId("a"), PeerId("b")


def test_work_counts_where_it_was_given() -> None:
    work = RecentWork()
    work.add(A, 100)
    assert work.tokens(A) == pytest.approx(100)
    assert work.tokens(B) == 0.0


def test_work_halves_with_every_half_life_of_other_work() -> None:
    work = RecentWork()
    work.add(A, 1000)
    for _ in range(16):
        work.add(B, int(HALF_LIFE_TOKENS) // 16)
    assert work.tokens(A) == pytest.approx(500)


def test_a_stream_of_work_stays_finite_and_bounded() -> None:
    """A million prompts double the weight many times over; scaling down must lose nothing recent."""
    work = RecentWork()
    for _ in range(20_000):
        work.add(A, 500)
        work.add(B, 1000)
    assert work.tokens(A) + work.tokens(B) == pytest.approx(HALF_LIFE_TOKENS / 0.693, rel=0.1)
    assert work.tokens(B) > work.tokens(A)


def test_one_giant_prompt_is_no_overflow() -> None:
    work = RecentWork()
    work.add(A, 10**9)
    assert work.tokens(A) == pytest.approx(1e9)


def test_a_forgotten_node_starts_over() -> None:
    work = RecentWork()
    work.add(A, 100)
    work.forget(A)
    work.forget(B)
    assert work.tokens(A) == 0.0
