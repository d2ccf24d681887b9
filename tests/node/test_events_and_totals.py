"""What is told to listeners, and what requests come to in sum."""

from __future__ import annotations

import math

import pytest
import trio

from peerinfer.core.types import PeerId
from peerinfer.node.decisions import Attempt, Decision
from peerinfer.node.events import LISTENERS_MAX, WAITING_MAX, Event, Events, TooManyListenersError
from peerinfer.node.totals import BOUNDS_S, Histogram, Totals

ME = PeerId("me")


def number(value: int) -> Event:
    return {"number": value}


async def test_all_who_listen_are_told_in_order_and_nobody_else() -> None:
    events = Events()
    events.tell("early", lambda: number(0))
    with events.listen() as one, events.listen() as two:
        for value in (1, 2):
            events.tell("n", lambda value=value: number(value))  # type: ignore[misc]
        for listener in (one, two):
            assert [await listener.next(), await listener.next()] == [
                {"event": "n", "number": 1},
                {"event": "n", "number": 2},
            ]
        with trio.move_on_after(0.01) as waiting:
            await one.next()
        assert waiting.cancelled_caught


def test_what_nobody_hears_is_not_even_made() -> None:
    def fields() -> Event:
        raise AssertionError("nobody listens")

    events = Events()
    with events.listen():
        pass
    events.tell("n", fields)


async def test_a_slow_listener_loses_the_newest_and_is_told_how_many() -> None:
    """Method: three more than may wait; then it reads on, and hears of what comes next."""
    events = Events()
    with events.listen() as listener:
        for value in range(WAITING_MAX + 3):
            events.tell("n", lambda value=value: number(value))  # type: ignore[misc]
        for value in range(WAITING_MAX):
            assert (await listener.next())["number"] == value
        assert await listener.next() == {"event": "lost", "count": 3}
        events.tell("n", lambda: number(7))
        assert (await listener.next())["number"] == 7


def test_so_many_may_listen() -> None:
    events = Events()
    held = [events.listen() for _ in range(LISTENERS_MAX)]
    for each in held:
        each.__enter__()
    with pytest.raises(TooManyListenersError), events.listen():
        pass
    held[0].__exit__(None, None, None)
    with events.listen():
        pass


def test_a_histogram_counts_each_once_and_its_buckets_add_up() -> None:
    histogram = Histogram()
    for value in (0.0, BOUNDS_S[0], 0.3, 1e9):
        histogram.observe(value)
    buckets = dict(histogram.buckets())
    assert buckets[BOUNDS_S[0]] == 2
    assert buckets[0.25] == 2
    assert buckets[0.5] == 3
    assert buckets[math.inf] == 4
    assert histogram.sum_s == pytest.approx(1e9 + 0.3 + BOUNDS_S[0])


def decision(**fields: object) -> Decision:
    return Decision(request_id="r", role="entry", endpoint="chat", entry=ME, started_at=10.0, **fields)  # type: ignore[arg-type]


def test_totals_take_what_is_known_of_each_request() -> None:
    totals = Totals()
    attempts = [Attempt(peer=ME, outcome="lost"), Attempt(peer=ME, outcome="served")]
    totals.add(
        decision(
            prompt_tokens=100,
            expected_cached_tokens=64,
            cached_tokens=48,
            first_chunk_at=10.2,
            ended_at=11.0,
            attempts=attempts,
        )
    )
    totals.add(decision(prompt_tokens=100, expected_cached_tokens=64, ended_at=12.0, error="cancelled"))
    assert (totals.prompt_tokens, totals.expected_cached_tokens, totals.cached_tokens) == (100, 64, 48)
    assert totals.attempts == {"lost": 1, "served": 1}
    assert (sum(totals.ttft.counts), sum(totals.duration.counts)) == (1, 1)
    assert totals.ttft.sum_s == pytest.approx(0.2)
