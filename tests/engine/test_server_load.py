"""The load of a server behind HTTP: our own requests at once, others' by its reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from peerinfer.engine.server_load import (
    IDLE_INTERVAL_S,
    STALE_AFTER_S,
    InFlight,
    ServerLoad,
    ServerReport,
    fetch_loads,
    follow_reports,
    read_report,
)

IDLE = ServerReport(
    running=0, waiting=0, waiting_uncached_tokens=0, slots=4, prefilled_tokens=0, prefill_busy_us=0
)
ANSWER = {  # SGLang 0.5.23's, but for what nobody reads
    "timestamp": "2026-11-30T08:01:28.950277+00:00",
    "version": "0.5.23",
    "loads": [
        {
            "dp_rank": 0,
            "num_running_reqs": 2,
            "num_waiting_reqs": 3,
            "num_waiting_uncached_tokens": 700,
            "max_total_num_tokens": 4096,
            "max_running_requests": 4,
            "total_prefill_uncached_tokens": 4806,
            "total_prefill_busy_us": 5909934,
            "decode_moments": [82.0],
            "queues": {"waiting": 3},
        }
    ],
}


def counts(load: ServerLoad, now: float) -> tuple[int, int, int]:
    told = load.load(now=now)
    return told.running, told.queued, told.queued_prefill_tokens


def test_a_request_counts_before_it_is_sent_and_until_it_has_ended() -> None:
    """Situations 1 and 2: on the server's next report nothing depends."""
    load = ServerLoad(slots=2)
    requests = [load.sent(uncached_tokens=100, now=0) for _ in range(5)]
    assert counts(load, 0) == (2, 3, 500)
    assert load.busy
    requests[0].first_token(now=1)
    assert counts(load, 1) == (2, 3, 400)
    for request in requests:
        request.ended(now=2)
        request.ended(now=2)
    assert counts(load, 2) == (0, 0, 0)
    assert not load.busy


def test_other_clients_count_by_the_report_until_it_is_stale() -> None:
    load = ServerLoad(slots=4)
    mine = load.sent(uncached_tokens=300, now=0)
    load.reported(replace(IDLE, running=2, waiting=1, waiting_uncached_tokens=500), now=1)
    assert counts(load, 1) == (3, 0, 500)
    mine.ended(now=2)
    assert counts(load, 2) == (2, 0, 200)
    assert load.busy
    assert counts(load, 1 + STALE_AFTER_S) == (0, 0, 0)


def test_our_own_requests_are_not_counted_twice() -> None:
    """Nor forgotten, when a report comes from before they arrived."""
    load = ServerLoad(slots=4)
    load.sent(uncached_tokens=100, now=0)
    load.sent(uncached_tokens=100, now=0)
    load.reported(replace(IDLE, running=1, waiting=1, waiting_uncached_tokens=100), now=0.1)
    assert counts(load, 0.1) == (2, 0, 200)
    load.reported(IDLE, now=0.2)
    assert counts(load, 0.2) == (2, 0, 200)


def test_a_long_prefill_is_seen_to_go_on() -> None:
    """The counter's progress is credited in the order of sending; the last token comes with the answer."""
    load = ServerLoad(slots=4)
    load.reported(replace(IDLE, prefilled_tokens=1000), now=0)
    first, second = (load.sent(uncached_tokens=tokens, now=0) for tokens in (3000, 500))
    load.reported(replace(IDLE, running=2, prefilled_tokens=2000, prefill_busy_us=100), now=1)
    assert (first.prefill_left, second.prefill_left) == (2000, 500)
    assert load.load(now=1).recent_prefill_tokens == 1000, "what has left the queue was done"
    load.reported(replace(IDLE, running=2, prefilled_tokens=4100, prefill_busy_us=200), now=2)
    assert (first.prefill_left, second.prefill_left) == (1, 399)
    first.first_token(now=2)
    load.reported(replace(IDLE, running=2, prefilled_tokens=4200, prefill_busy_us=300), now=3)
    assert second.prefill_left == 300, "one of the hundred tokens was the first prompt's last"


def test_a_prompt_goes_on_at_the_rate_while_nothing_is_told() -> None:
    """Else a node seems as busy in the last moment of a prefill as in its first."""
    load = ServerLoad(slots=4)
    load.sent(uncached_tokens=1000, now=0).first_token(now=1)
    load.sent(uncached_tokens=600, now=2)
    load.sent(uncached_tokens=50, now=2)
    assert load.load(now=2).queued_prefill_tokens == 650
    half = load.load(now=2.3)
    assert half.queued_prefill_tokens == pytest.approx(350, abs=1)
    assert half.recent_prefill_tokens > load.load(now=2).recent_prefill_tokens + 250
    assert load.load(now=9).queued_prefill_tokens == 51, "its last token, and the next prompt"


def test_nothing_is_taken_to_go_on_while_others_wait() -> None:
    load = ServerLoad(slots=4)
    load.sent(uncached_tokens=1000, now=0).first_token(now=1)
    load.sent(uncached_tokens=600, now=2)
    load.reported(replace(IDLE, running=1, waiting=2, waiting_uncached_tokens=900), now=2)
    assert load.load(now=2.3).queued_prefill_tokens == 900


def test_the_rate_is_what_the_server_counted() -> None:
    """Method: 480 tokens/s; then remainders of 16 tokens at 40 tokens/s, which are mostly overhead."""
    load = ServerLoad(slots=4)
    tokens, busy_us = 0, 0
    load.reported(IDLE, now=0)
    for step in range(1, 30):
        uncached = 480 if step < 4 else 16
        request = load.sent(uncached_tokens=uncached, now=step)
        tokens, busy_us = tokens + uncached, busy_us + (1_000_000 if step < 4 else 400_000)
        request.first_token(now=step + 0.5)
        load.reported(replace(IDLE, prefilled_tokens=tokens, prefill_busy_us=busy_us), now=step + 0.6)
        request.ended(now=step + 0.9)
        assert load.load(now=step + 1).prefill_tokens_per_s == pytest.approx(480)


def test_without_reports_the_rate_is_measured_from_outside() -> None:
    """Method: a server that computes one prompt after the other, 1000 tokens/s; the second one waits."""
    load = ServerLoad(slots=4)
    first, second = (load.sent(uncached_tokens=1000, now=0) for _ in range(2))
    first.first_token(now=1)
    second.first_token(now=2)
    second.first_token(now=9)
    assert load.load(now=3).prefill_tokens_per_s == pytest.approx(1000)
    assert load.load(now=3).decode_tokens_per_s == 0
    first.ended(now=6, completion_tokens=101)
    assert load.load(now=6).decode_tokens_per_s == pytest.approx(20)
    second.ended(now=7, completion_tokens=1)
    assert load.load(now=7).decode_tokens_per_s == pytest.approx(20)


def test_recent_work_is_ours_and_others() -> None:
    """What evens out the placement of cold prompts: half of it counts after 30 s."""
    load = ServerLoad(slots=4)
    load.reported(IDLE, now=0)
    load.sent(uncached_tokens=600, now=0).first_token(now=0)
    assert load.load(now=0).recent_prefill_tokens == 600
    load.reported(replace(IDLE, prefilled_tokens=1000), now=0)
    assert load.load(now=0).recent_prefill_tokens == 1000
    assert load.load(now=30).recent_prefill_tokens == 500


def test_a_server_whose_memory_is_full_queues_although_it_has_slots() -> None:
    """Two reports in a row with requests that wait; one alone shows only who has just come."""
    load = ServerLoad(slots=100)
    full = replace(IDLE, running=3, waiting=2, slots=100)
    for _ in range(5):
        load.sent(uncached_tokens=0, now=0)
    load.reported(full, now=1)
    assert counts(load, 1)[:2] == (5, 0)
    load.reported(full, now=2)
    assert counts(load, 2)[:2] == (3, 2)
    load.sent(uncached_tokens=0, now=2)
    assert counts(load, 2)[:2] == (3, 3)
    load.reported(replace(full, waiting=0, running=6), now=3)
    assert counts(load, 3)[:2] == (6, 0)


def test_a_restarted_server_counts_from_zero() -> None:
    load = ServerLoad(slots=4)
    load.reported(replace(IDLE, prefilled_tokens=5000, prefill_busy_us=10**7), now=0)
    mine = load.sent(uncached_tokens=300, now=0)
    load.reported(replace(IDLE, prefilled_tokens=100, prefill_busy_us=10**5), now=1)
    assert mine.prefill_left == 300
    assert load.load(now=1).prefill_tokens_per_s == 0
    load.forget_reports()
    assert counts(load, 1) == (1, 0, 300)


def test_the_servers_slots_are_taken_from_its_report() -> None:
    load = ServerLoad(slots=1)
    load.reported(replace(IDLE, slots=8), now=0)
    assert load.load(now=0).slots == 8
    load.reported(replace(IDLE, slots=0), now=1)
    assert load.load(now=1).slots == 8


def test_what_sglang_says_is_read() -> None:
    assert read_report(ANSWER) == ServerReport(
        running=2,
        waiting=3,
        waiting_uncached_tokens=700,
        slots=4,
        prefilled_tokens=4806,
        prefill_busy_us=5909934,
    )
    two_ranks = {"loads": [*ANSWER["loads"], *ANSWER["loads"]]}
    read = read_report(two_ranks)
    assert read is not None
    assert (read.running, read.slots) == (4, 8)


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"loads": []}, {"loads": {}}, {"loads": [3]}, {"loads": [{"num_running_reqs": "2"}]}],
)
def test_what_is_no_report_is_none(answer: object) -> None:
    assert read_report(answer) is None


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))
)
def test_no_answer_makes_reading_fail(value: object) -> None:
    for answer in (value, {"loads": value}, {"loads": [value]}, {"loads": [{"num_running_reqs": value}]}):
        read_report(answer)


steps = st.lists(
    st.tuples(st.sampled_from(["sent", "first", "ended", "report"]), st.integers(0, 2000), st.integers(0, 9)),
    max_size=60,
)


@given(steps)
def test_no_order_of_things_makes_a_count_negative(order: list[tuple[str, int, int]]) -> None:
    load, mine, now = ServerLoad(slots=3), list[InFlight](), 0.0
    for what, tokens, number in order:
        now += 0.1
        if what == "sent":
            mine.append(load.sent(uncached_tokens=tokens, now=now))
        elif what == "report":
            load.reported(
                ServerReport(
                    running=number,
                    waiting=number // 2,
                    waiting_uncached_tokens=tokens,
                    slots=number,
                    prefilled_tokens=tokens,
                    prefill_busy_us=tokens * number,
                ),
                now=now,
            )
        elif mine and what == "first":
            mine[number % len(mine)].first_token(now=now)
        elif mine:
            mine.pop(number % len(mine)).ended(now=now, completion_tokens=number)
        told = load.load(now=now)
        assert told.running + told.queued >= len(mine)
        assert min(told.running, told.queued, told.queued_prefill_tokens, told.recent_prefill_tokens) >= 0
        assert told.prefill_tokens_per_s >= 0
    while mine:
        mine.pop().ended(now=now)
    load.forget_reports()
    assert counts(load, now) == (0, 0, 0)


class Server:
    """Answers for its load in turn; an exception is raised, and the last answer repeated."""

    def __init__(self, *answers: object) -> None:
        self.asked_at: list[float] = []
        self._answers: Iterator[object] = iter(answers)

    async def fetch(self) -> object:
        self.asked_at.append(trio.current_time())
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_reports_are_asked_for_often_only_while_the_server_is_busy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    load = ServerLoad(slots=4)
    idle = {"loads": [{"num_running_reqs": 0}]}
    server = Server(idle, idle, ANSWER, ANSWER, idle, idle, {})
    await follow_reports(load, server.fetch)
    pauses = [after - before for before, after in zip(server.asked_at, server.asked_at[1:], strict=False)]
    assert pauses == pytest.approx(
        [IDLE_INTERVAL_S, IDLE_INTERVAL_S, 0.25, 0.25, IDLE_INTERVAL_S, IDLE_INTERVAL_S]
    )


async def test_a_server_that_fails_to_report_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    """Meanwhile nobody else's work is believed in."""
    load = ServerLoad(slots=4)
    server = Server(ANSWER, httpx.ConnectError("refused"), ValueError("no JSON"), ANSWER, {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_reports, load, server.fetch)
        await trio.sleep(0.1)
        assert counts(load, trio.current_time())[0] == 4
        await trio.sleep(0.25)
        assert counts(load, trio.current_time())[0] == 0
        await trio.sleep(2 * IDLE_INTERVAL_S)
        assert counts(load, trio.current_time())[0] == 4


async def test_a_server_without_the_page_reports_nothing() -> None:
    """Other failures are raised, so that it is asked again."""
    codes = iter([404, 503, 200])

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/loads"
        return httpx.Response(next(codes), json=ANSWER)

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert await fetch_loads(client) == {}
        with pytest.raises(httpx.HTTPStatusError):
            await fetch_loads(client)
        assert read_report(await fetch_loads(client)) is not None
