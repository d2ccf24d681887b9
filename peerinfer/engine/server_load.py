"""The load of an engine behind HTTP, right at the moment of a decision.

Theory of operation. What this node itself has sent is known at once and exactly: it counts from before it is
sent until it has ended. The server's own report (SGLang's `/v1/loads`) comes late, and lags during a long
prefill, but it alone knows of other clients. So the two are merged: what a report has beyond our own requests
of that moment is foreign, and counts until the next report; our own are counted as they are now. The report
also has two counters, of prompt tokens computed and of the time that it took: they give the prefill's rate,
and its progress, which is credited to our requests in the order in which they were sent. Between two reports,
and where they tell of no progress within a prompt, the one that is being computed is taken to go on at the
rate: else a node seems as busy in the last millisecond of a long prefill as in its first.

For a server without such reports our own requests are all there is: the rate is that of prompts which began
when the one before had its first token. Short remainders of cached prompts measure a step's overhead and
not the rate, so they do not count once there is something better.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx
import trio

from peerinfer.core.types import Load
from peerinfer.engine.measured_rate import MeasuredRate
from peerinfer.engine.recent_count import RecentCount

log = logging.getLogger("peerinfer.engine")

PREFILL_HALF_LIFE_TOKENS = 4096  # guess: a few prompts
DECODE_HALF_LIFE_TOKENS = 512  # guess: a few answers
RECENT_HALF_LIFE_S = 30.0  # docs/protocol.md: all nodes count alike
SAMPLE_TOKENS_MIN = 128  # guess: below it a step's overhead is most of its time
BUSY_INTERVAL_S = 0.25  # guess; a report costs the server about a millisecond
IDLE_INTERVAL_S = 2.0  # guess: another client's work is noticed after so long
STALE_AFTER_S = 10.0  # guess
"""A report as old as this says nothing about other clients any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What a server says of its load; sums over its data-parallel ranks."""

    running: int
    waiting: int
    waiting_uncached_tokens: int
    slots: int
    """Requests that it runs at the same time at most; 0 if it does not say."""
    prefilled_tokens: int
    """Prompt tokens computed since it started."""
    prefill_busy_us: int
    """And what they took, in microseconds."""


def read_report(answer: object) -> ServerReport | None:
    """SGLang's answer to `/v1/loads?include=core`; None if it is no such thing."""
    loads = answer.get("loads") if isinstance(answer, Mapping) else None
    if not isinstance(loads, list) or not loads:
        return None

    def total(field: str) -> int:
        values = [load.get(field, 0) for load in loads]
        return sum(value for value in values if type(value) is int and value > 0)

    if not all(isinstance(load, Mapping) and type(load.get("num_running_reqs")) is int for load in loads):
        return None
    return ServerReport(
        running=total("num_running_reqs"),
        waiting=total("num_waiting_reqs"),
        waiting_uncached_tokens=total("num_waiting_uncached_tokens"),
        slots=total("max_running_requests"),
        prefilled_tokens=total("total_prefill_uncached_tokens"),
        prefill_busy_us=total("total_prefill_busy_us"),
    )


class InFlight:
    """One request of ours; made by `ServerLoad.sent`, to be ended."""

    def __init__(self, load: ServerLoad, uncached_tokens: int, now: float) -> None:
        self._load = load
        self.uncached_tokens = uncached_tokens
        self.prefill_left = uncached_tokens
        self.sent_at = now
        self.first_token_at: float | None = None

    def first_token(self, *, now: float) -> None:
        """Its prompt has been computed. Later calls change nothing."""
        if self.first_token_at is None:
            self.first_token_at = now
            self._load.prefilled(self, now=now)

    def ended(self, *, now: float, completion_tokens: int = 0) -> None:
        """It is over, however it ended; `completion_tokens`, if known, measure the decoding."""
        self._load.ended(self, completion_tokens, now=now)


class ServerLoad:
    """Merges our own requests and the server's reports."""

    def __init__(self, *, slots: int) -> None:
        self._slots = slots
        self._mine: dict[InFlight, None] = {}
        self._counted_rate = MeasuredRate(PREFILL_HALF_LIFE_TOKENS)  # by the server
        self._seen_rate = MeasuredRate(PREFILL_HALF_LIFE_TOKENS)  # from outside
        self._decode_rate = MeasuredRate(DECODE_HALF_LIFE_TOKENS)
        self._recent = RecentCount(RECENT_HALF_LIFE_S)
        self._report: ServerReport | None = None
        self._reported_at = 0.0
        self._foreign = 0
        self._foreign_tokens = 0
        self._slots_filled: int | None = None  # fewer than there are, where memory is what is short
        self._unreported = 0  # tokens of our prompts that were done since the last report
        self._prompts_done = 0  # and how many prompts
        self._first_token_at = 0.0  # of any request: when the server could turn to the next prompt
        self._credited_at = 0.0  # when a report last told of progress within a prompt of ours

    def sent(self, *, uncached_tokens: int, now: float) -> InFlight:
        """Count a request, from before it is sent; `uncached_tokens` of its prompt are to be computed."""
        request = InFlight(self, uncached_tokens, now)
        self._mine[request] = None
        return request

    def load(self, *, now: float) -> Load:
        """The work at hand, right now."""
        fresh = self._report is not None and now < self._reported_at + STALE_AFTER_S
        foreign = self._foreign if fresh else 0
        total = len(self._mine) + foreign
        filled = self._slots if self._slots_filled is None or not fresh else self._slots_filled
        rate = self._counted_rate.per_s or self._seen_rate.per_s
        left, begun = self._left_and_begun(rate, now)
        return Load(
            running=min(total, filled),
            queued=max(0, total - filled),
            queued_prefill_tokens=left + (self._foreign_tokens if foreign else 0),
            recent_prefill_tokens=round(self._recent.at(now)) + begun,
            prefill_tokens_per_s=rate,
            decode_tokens_per_s=self._decode_rate.per_s,
            slots=self._slots,
        )

    def _left_and_begun(self, rate: float, now: float) -> tuple[int, int]:
        """Tokens of our prompts that are still to be computed, and those that are of prompts not yet done."""
        first, left, whole = None, 0, 0
        for each in self._mine:
            if each.prefill_left:
                first = first or each
                left += each.prefill_left
                whole += each.uncached_tokens
        if first is not None and not self._foreign_tokens:  # else others' prompts may come before it
            since = max(first.sent_at, self._first_token_at, self._credited_at)
            left -= min(first.prefill_left - 1, int((now - since) * rate))  # its last comes with the answer
        return left, whole - left

    @property
    def busy(self) -> bool:
        """Whether anything is under way, as far as is known: a report is worth more then."""
        return bool(self._mine) or self._foreign > 0

    def reported(self, report: ServerReport, *, now: float) -> None:
        """Take in what the server says, which was true a moment ago."""
        last = self._report
        if last is None or report.prefilled_tokens < last.prefilled_tokens:
            last = report  # the first one, or the server restarted: its counters say nothing yet
        tokens = report.prefilled_tokens - last.prefilled_tokens
        busy_s = (report.prefill_busy_us - last.prefill_busy_us) / 1e6
        if busy_s > 0 and tokens >= SAMPLE_TOKENS_MIN * max(1, self._prompts_done):
            self._counted_rate.add(tokens, busy_s)
        self._count(tokens, now)
        waits_on = min(report.waiting, self._report.waiting if self._report else 0) > 0
        # Twice in a row, since whoever has just come waits for a step to end even in an idle server.
        self._slots_filled = max(1, min(report.running, last.running)) if waits_on else None
        self._slots = report.slots or self._slots
        self._foreign = max(0, report.running + report.waiting - len(self._mine))
        mine_left = sum(request.prefill_left for request in self._mine)
        self._foreign_tokens = max(0, report.waiting_uncached_tokens - mine_left) if self._foreign else 0
        self._report, self._reported_at = report, now

    def forget_reports(self) -> None:
        """The server restarted, or does not report any more."""
        self._report, self._foreign, self._foreign_tokens, self._slots_filled = None, 0, 0, None
        self._unreported = self._prompts_done = 0

    # For InFlight

    def prefilled(self, request: InFlight, *, now: float) -> None:
        """A prompt has been computed."""
        self._unreported += request.prefill_left
        self._prompts_done += 1
        request.prefill_left = 0
        self._recent.add(request.uncached_tokens, now=now)
        began_at, self._first_token_at = max(request.sent_at, self._first_token_at), now
        if request.uncached_tokens >= SAMPLE_TOKENS_MIN or self._seen_rate.per_s == 0:
            self._seen_rate.add(request.uncached_tokens, now - began_at)

    def ended(self, request: InFlight, completion_tokens: int, *, now: float) -> None:
        """A request is over."""
        if request not in self._mine:
            return
        del self._mine[request]
        if request.first_token_at is not None and completion_tokens > 1:
            self._decode_rate.add(completion_tokens - 1, now - request.first_token_at)

    def _count(self, tokens: int, now: float) -> None:
        """Prompt tokens were computed: those of prompts that are done, then ours in order, then others'."""
        tokens = max(0, tokens - self._unreported)
        self._unreported = self._prompts_done = 0
        for request in self._mine:
            progress = min(tokens, max(0, request.prefill_left - 1))  # the last token comes with the answer
            request.prefill_left -= progress
            tokens -= progress
            if progress:
                self._credited_at = now
        self._recent.add(tokens, now=now)


async def follow_reports(
    load: ServerLoad,
    fetch: Callable[[], Awaitable[object]],
    *,
    busy_interval_s: float = BUSY_INTERVAL_S,
    idle_interval_s: float = IDLE_INTERVAL_S,
) -> None:
    """Ask the server for its load until cancelled; returns if it is one that tells none."""
    answers = True
    while True:
        try:
            answer = await fetch()
        except (httpx.HTTPError, ValueError) as error:
            if answers:
                log.info("load=own requests only: the server does not report: %s", error)
            answers = False
            load.forget_reports()
        else:
            report = read_report(answer)
            if report is None:
                log.info("load=own requests only: the server has no report of it")
                return
            if not answers:
                log.info("load=merged with the server's report again")
            answers = True
            load.reported(report, now=trio.current_time())
        await trio.sleep(busy_interval_s if load.busy and answers else idle_interval_s)


async def fetch_loads(client: httpx.AsyncClient) -> object:
    """The answer of a server at the client's base URL; `{}` if it has no such page. Raises as httpx does."""
    answer = await client.get("/v1/loads", params={"include": "core"})
    if answer.status_code in (404, 405, 501):
        return {}
    answer.raise_for_status()
    return answer.json()
