"""Whoever comes again is known, and what is remembered is bounded."""

from __future__ import annotations

from peerinfer.engine.attempts import Attempts


def test_each_request_is_counted_for_itself() -> None:
    attempts = Attempts()
    assert [attempts.before(name) for name in "abaab"] == [0, 0, 1, 2, 1]


def test_the_oldest_are_forgotten() -> None:
    attempts = Attempts(kept_max=2)
    assert [attempts.before(name) for name in "abacb"] == [0, 0, 1, 0, 0]
