"""A worker's engine: a real prefix cache and a real queue, and time that is only waited for.

Prefill is serial, in order of arrival, at so many uncached tokens per second; the match is made when a
request is scheduled, as SGLang makes it. Decoding is batched: all running requests get a token at each step.
What a running request stands on is locked, and its output joins the cache at its end. `instant` leaves time
and queue out: the whole answer is there at once. What comes out follows from what went in (answer.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.kit.answer import Answering
from peerinfer.core.types import CacheEvent
from peerinfer.engine.page_cache import Lease, PageCache, cut

PAGE = 16
IDLE_S = 0.005
"""A prefill that follows another within this time begins where that one ended: timers do not drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast an engine is, and how much it remembers."""

    capacity_tokens: int = 25_000
    prefill_tokens_per_s: float = 5000.0
    decode_tokens_per_s: float = 50.0
    running_max: int = 64
    instant: bool = False


class Job:
    """One request. `emit(tokens, last)` is called with the tokens since it was called last."""

    __slots__ = ("answering", "cached", "emit", "lease", "left", "made", "max_tokens", "tokens")

    def __init__(
        self, tokens: Sequence[int], max_tokens: int, emit: Callable[[Sequence[int], bool], None]
    ) -> None:
        self.tokens = tokens
        self.max_tokens = max_tokens
        self.emit = emit
        self.answering = Answering(tokens)
        self.made: list[int] = []
        self.cached = 0
        self.left = False
        """Its client has gone."""
        self.lease: Lease[None] | None = None


class WorkerEngine:
    """See the module."""

    def __init__(self, pace: Pace, emit: Callable[[Sequence[CacheEvent]], None]) -> None:
        self.pace = pace
        self.cache: PageCache[None] = PageCache(
            page_size=PAGE, capacity_pages=pace.capacity_tokens // PAGE, emit=emit
        )
        self.queue: deque[Job] = deque()
        self.running: dict[Job, None] = {}
        self.counts = dict.fromkeys(
            ("requests", "left", "prompt_tokens", "cached_tokens", "output_tokens", "prefill_us"), 0
        )
        self._loop = asyncio.get_running_loop()
        self._prefilling: Job | None = None
        self._free_at = 0.0
        self._next_step: asyncio.TimerHandle | None = None

    def submit(self, job: Job) -> None:
        """Take a request."""
        self.counts["requests"] += 1
        if self.pace.instant:
            self._answer_at_once(job)
            return
        self.queue.append(job)
        self._schedule()

    def leave(self, job: Job) -> None:
        """Its client has gone: a prefill runs to its end, all else stops at once."""
        self.counts["left"] += 1
        job.left = True
        if job in self.running:
            self._release(job)
        elif job is not self._prefilling:
            self.queue.remove(job)
        self._schedule()

    @property
    def waiting_tokens(self) -> int:
        """Uncached prompt tokens in the queue."""
        return sum(len(job.tokens) - self.cache.match_prefix(job.tokens) for job in self.queue)

    def _answer_at_once(self, job: Job) -> None:
        with self.cache.open(job.tokens) as lease:
            job.cached = lease.cached_tokens
            self._keep(lease, job.tokens, job.cached)
        self._count_prompt(job)
        job.made = [job.answering.next_token() for _ in range(job.max_tokens)]
        self.counts["output_tokens"] += len(job.made)
        job.emit(job.made, True)

    def _schedule(self) -> None:
        if self._prefilling is not None or not self.queue or len(self.running) >= self.pace.running_max:
            return
        job = self._prefilling = self.queue.popleft()
        job.lease = self.cache.open(job.tokens)
        job.cached = job.lease.cached_tokens
        took_s = (len(job.tokens) - job.cached) / self.pace.prefill_tokens_per_s
        self._count_prompt(job)
        self.counts["prefill_us"] += round(took_s * 1e6)
        now = self._loop.time()
        self._free_at = (self._free_at if self._free_at >= now - IDLE_S else now) + took_s
        self._loop.call_at(self._free_at, self._prefilled, job)

    def _prefilled(self, job: Job) -> None:
        assert job.lease is not None
        self._prefilling = None
        self._keep(job.lease, job.tokens, job.cached)
        self.running[job] = None
        if job.left:
            self._release(job)
        else:
            self._make_token(job)
            if self.running and self._next_step is None:
                self._next_step = self._loop.call_later(1 / self.pace.decode_tokens_per_s, self._step)
        self._schedule()

    def _step(self) -> None:
        self._next_step = None
        for job in list(self.running):
            self._make_token(job)
        if self.running:
            self._next_step = self._loop.call_later(1 / self.pace.decode_tokens_per_s, self._step)
        self._schedule()

    def _make_token(self, job: Job) -> None:
        token = job.answering.next_token()
        job.made.append(token)
        last = len(job.made) >= job.max_tokens
        if last:
            self._release(job)
        job.emit((token,), last)

    def _release(self, job: Job) -> None:
        assert job.lease is not None
        del self.running[job]
        self.counts["output_tokens"] += len(job.made)
        # The last token is not in the cache yet.
        self._keep(job.lease, [*job.tokens, *job.made[:-1]], len(job.tokens))
        job.lease.close()

    def _keep(self, lease: Lease[None], tokens: Sequence[int], known: int) -> None:
        """Enter the pages behind the first `known` tokens into the cache."""
        pages = cut(tokens, PAGE)[known // PAGE :]
        if pages:
            lease.extend(pages, [None] * len(pages))

    def _count_prompt(self, job: Job) -> None:
        self.counts["prompt_tokens"] += len(job.tokens)
        self.counts["cached_tokens"] += job.cached
