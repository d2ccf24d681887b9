"""What our own engines share: a request's life from body to `End`, load, state, and the page cache.

A request is worked on by a task of the engine's own nursery, which writes into a channel that holds a whole
answer. `run_infer` hands out the channel's other end; leaving it cancels that task and waits for it, so the
slot is free again when it returns. The reader's frame holds no nursery and no cancel scope of ours, so its
errors come out as they are. An engine supplies `_start` (load the model), `_serve` (answer one job, waiting
for a slot included), and `_stop`.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import trio

from peerinfer.core.refusals import context_length_exceeded
from peerinfer.core.types import (
    CacheEvent,
    Chunk,
    End,
    Endpoint,
    EngineInfo,
    EngineState,
    InferRequest,
    Load,
    RequestError,
)
from peerinfer.engine.job import Job, Refused
from peerinfer.engine.measured_rate import MeasuredRate
from peerinfer.engine.openai_body import read_options, read_prompt
from peerinfer.engine.page_cache import PageCache
from peerinfer.engine.prefill_book import PrefillBook
from peerinfer.engine.recent_count import RecentCount
from peerinfer.engine.stream_chunk import StreamShape
from peerinfer.node.ports import EngineError, EngineSink

Blob = TypeVar("Blob")

log = logging.getLogger("peerinfer.engine")

PREFILL_HALF_LIFE_TOKENS = 1024  # guess: about two prompts
DECODE_HALF_LIFE_TOKENS = 128  # guess: a few answers
RECENT_HALF_LIFE_S = 30.0  # docs/protocol.md: all nodes count alike


class OwnTokenizer(Protocol):
    """A `Tokenizer` (node/ports.py) that can tell the tokens of every prompt that its engine takes."""

    async def encode(self, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, ...]:
        """The tokens of a body's prompt. Raises `RequestError` for a body that has none."""


class PagedEngine(ABC, Generic[Blob]):
    """An `Engine` (node/ports.py) that keeps its KV cache in a `PageCache`."""

    def __init__(self, info: EngineInfo, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.info = info
        self.cache: PageCache[Blob] = PageCache(
            page_size=info.page_size, capacity_pages=info.capacity_pages, emit=self._tell
        )
        self._wall_clock = wall_clock
        self._prefill_rate = MeasuredRate(PREFILL_HALF_LIFE_TOKENS)
        self._recent_prefill = RecentCount(RECENT_HALF_LIFE_S)
        self._decode_rate = MeasuredRate(DECODE_HALF_LIFE_TOKENS)
        self._jobs: dict[Job, None] = {}
        self._book = PrefillBook(self.cache)
        self._nursery: trio.Nursery | None = None
        self._sink: EngineSink | None = None
        self._load_scope = trio.CancelScope()
        self._loaded = trio.Event()
        self._failure: str | None = None

    @property
    @abstractmethod
    def tokenizer(self) -> OwnTokenizer:
        """Tokenises as this engine does; usable while the model loads."""

    @asynccontextmanager
    async def run(self, sink: EngineSink) -> AsyncIterator[None]:
        """Start; `sink.engine_state` tells when the model is loaded. Leaving ends every answer and stops."""
        assert self._nursery is None, "the engine runs already"
        try:
            async with trio.open_nursery() as nursery:
                self._nursery, self._sink = nursery, sink
                self._set_state(EngineState.LOADING, f"loading {self.info.model}")
                nursery.start_soon(self._load)
                try:
                    yield
                finally:
                    for job in list(self._jobs):
                        job.cancel()
                    nursery.cancel_scope.cancel()
        finally:
            self._sink = self._nursery = None
            self._loaded, self._failure = trio.Event(), None
            self.cache.clear()
            self._stop()

    @asynccontextmanager
    async def run_infer(self, request: InferRequest) -> AsyncIterator[AsyncIterator[Chunk | End]]:
        """Answer a request; see the port. The work counts in `load()` from here on."""
        admitted = await self._admit(request)
        if isinstance(admitted, Exception):
            yield Refused(admitted)
            return
        try:
            yield admitted.answer
        finally:
            admitted.cancel()
            with trio.CancelScope(shield=True):
                await admitted.done.wait()

    def load(self) -> Load:
        """The work at hand, right now."""
        running = sum(job.running for job in self._jobs)
        return Load(
            running=running,
            queued=len(self._jobs) - running,
            queued_prefill_tokens=sum(map(self._prefill_left, self._jobs)),
            recent_prefill_tokens=round(self._recent_prefill.at(trio.current_time())) + self._begun(),
            prefill_tokens_per_s=self._prefill_rate.per_s,
            decode_tokens_per_s=self._decode_rate.per_s,
            slots=self.info.slots,
        )

    @abstractmethod
    async def _start(self) -> None:
        """Load the model. Raises `EngineError`, whose message is for people."""

    @abstractmethod
    async def _serve(self, job: Job) -> None:
        """Answer a job, up to `job.end`. Raises `EngineError`; any other exception is a bug."""

    @abstractmethod
    def _stop(self) -> None:
        """Free what `_start` made; no job is at work any more."""

    def _begin_prefill(self, job: Job, uncached_tokens: int) -> None:
        """It is the job's turn; `job.prefill_left` is to be kept up to date from here on."""
        self._book.begin(job, uncached_tokens)

    def _prefilled(self, tokens: int, seconds: float) -> None:
        """So many prompt tokens were computed, which took so long."""
        self._prefill_rate.add(tokens, seconds)
        self._recent_prefill.add(tokens, now=trio.current_time())

    def _begun(self) -> int:
        """Tokens that have been computed of a prompt and not been told by `_prefilled`."""
        return 0

    def _prefill_left(self, job: Job) -> int:
        """Prompt tokens still to be computed for a job and for none before it."""
        return self._book.left(job)

    async def _admit(self, request: InferRequest) -> Job | Exception:
        try:
            options = read_options(request.endpoint, request.body)
            tokens = request.token_ids
            if tokens is None:
                read_prompt(request.endpoint, request.body)  # a bad prompt is refused without the model
                self._check_running()
                tokens = await self.tokenizer.encode(request.endpoint, request.body)
            self._check_length(request, tokens)
            nursery = self._check_running()
        except (RequestError, EngineError) as error:
            return error
        shape = StreamShape(
            request.endpoint,
            request_id=request.id,
            model=self.info.model,
            created_s=int(self._wall_clock()),
        )
        job = Job(tokens, options, shape, context_tokens_max=self.info.context_tokens_max)
        self._jobs[job] = None
        self._book.add(job)
        nursery.start_soon(self._work, job)
        return job

    def _check_running(self) -> trio.Nursery:
        if self._nursery is None:
            raise EngineError("the engine is not running")
        return self._nursery

    def _check_length(self, request: InferRequest, tokens: Sequence[int]) -> None:
        if not tokens:
            param = "messages" if request.endpoint == "chat" else "prompt"
            raise RequestError("the prompt is empty", param=param)
        limit = self.info.context_tokens_max
        if len(tokens) >= limit:
            raise context_length_exceeded(request.endpoint, tokens=str(len(tokens)), limit=limit)

    async def _work(self, job: Job) -> None:
        """Serve one job; whatever goes wrong with it ends that job and nothing else."""
        try:
            with job.scope:
                await self._loaded.wait()
                if self._failure is not None:
                    raise EngineError(self._failure)
                await self._serve(job)
        except (RequestError, EngineError) as error:
            job.fail(error)
        except Exception:
            log.exception("engine=%s failed on a request by a bug", self.info.kind)
            job.fail(EngineError("the engine failed on this request by a bug; its log says more"))
        finally:
            del self._jobs[job]
            self._book.remove(job)
            job.close()

    async def _load(self, after_s: float = 0.0) -> None:
        with trio.CancelScope() as self._load_scope:
            await trio.sleep(after_s)
            try:
                await self._start()
            except EngineError as error:
                self._failure = str(error)
                self._set_state(EngineState.FAILING, self._failure)
            except Exception as error:  # a bug: this node can still answer through its peers
                log.exception("engine=%s could not start", self.info.kind)
                self._failure = f"the engine could not start: {error!r}"
                self._set_state(EngineState.FAILING, self._failure)
            else:
                self._failure = None
                self._set_state(EngineState.READY, f"{self.info.model} is loaded")
            self._loaded.set()

    def _set_state(self, state: EngineState, detail: str) -> None:
        if self._sink is not None:
            self._sink.engine_state(state, detail)

    def _tell(self, events: Sequence[CacheEvent]) -> None:
        if self._sink is not None:
            self._sink.cache_events(events)
