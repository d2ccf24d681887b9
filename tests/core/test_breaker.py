"""The circuit breaker: open after failures, tried with one request, closed by one that is served."""

from __future__ import annotations

from peerinfer.core.breaker import OPEN_S_MAX, Breaker, BreakerState


def test_failures_in_a_row_open_it_for_longer_each_time() -> None:
    breaker, now, opened = Breaker(), 0.0, []
    assert breaker.state(now=now) is BreakerState.CLOSED
    for _ in range(30):
        breaker.failed(open_s=1.0, now=now)
        assert breaker.state(now=now) is BreakerState.OPEN
        opened.append(breaker.open_until - now)
        now = breaker.open_until
    assert opened[:4] == [1.0, 2.0, 4.0, 8.0]
    assert opened[-1] == OPEN_S_MAX


def test_when_the_time_is_over_one_request_tries_and_the_others_stay_away() -> None:
    breaker = Breaker()
    breaker.failed(open_s=1.0, now=0.0)
    assert breaker.state(now=1.0) is BreakerState.HALF_OPEN
    assert breaker.tried(within_s=5.0, now=1.0)
    assert breaker.state(now=1.0) is BreakerState.OPEN
    assert not breaker.tried(within_s=5.0, now=2.0)
    assert breaker.state(now=6.0) is BreakerState.HALF_OPEN, "the try is late: another one"


def test_a_request_that_is_served_closes_it() -> None:
    breaker = Breaker()
    assert not breaker.succeeded()
    assert not breaker.tried(within_s=5.0, now=0.0)
    breaker.failed(open_s=1.0, now=0.0)
    assert breaker.succeeded()
    assert breaker.state(now=0.0) is BreakerState.CLOSED


def test_a_restart_lets_it_be_tried_at_once() -> None:
    breaker = Breaker()
    breaker.failed(open_s=1.0, now=0.0)
    breaker.restarted()
    assert breaker.state(now=0.0) is BreakerState.HALF_OPEN
