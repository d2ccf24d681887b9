"""An engine without a model: a real page cache, a real queue, and time that is only slept.

It keeps every promise of the Engine port that a real one keeps, and its times follow four numbers: prefill
runs serially at so many tokens per second, more slowly the more came before (attention), decoding at so many
per running request, and each request costs a fixed overhead. It sleeps in trio's time, so that under virtual
time it costs nothing. What it says: simulated_language.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import trio

from peerinfer.core.types import Endpoint, EngineInfo, EngineState, RequestError
from peerinfer.engine.job import Job
from peerinfer.engine.openai_body import ChatPrompt, TextPrompt, read_prompt
from peerinfer.engine.page_cache import Lease, cut
from peerinfer.engine.paged_engine import PagedEngine
from peerinfer.engine.simulated_language import BYTES, Continuation, render
from peerinfer.node.ports import EngineError


class SimulatedTokenizer:
    """UTF-8 bytes as tokens; a prompt of token ids may have others, too, below `vocabulary`."""

    def __init__(self, vocabulary: int = BYTES) -> None:
        self._vocabulary = vocabulary

    async def encode(self, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, ...]:
        """The tokens of a body's prompt. Raises `RequestError` for a body that has none."""
        prompt = read_prompt(endpoint, body)
        if isinstance(prompt, ChatPrompt):
            return tuple(render(prompt).encode())
        if isinstance(prompt, TextPrompt):
            return tuple(prompt.text.encode())
        if min(prompt.token_ids) < 0 or max(prompt.token_ids) >= self._vocabulary:
            raise RequestError(f"token ids must lie between 0 and {self._vocabulary - 1}", param="prompt")
        return prompt.token_ids


class SimulatedEngine(PagedEngine[None]):
    """See the module. A greedy model: temperature, top_p and seed change nothing.

    An answer is exactly as long as `max_tokens` asks for (unless a stop string ends it), and ends by itself
    where the body does not say. `wall_clock` gives the chunks' `created`; a simulation passes its own.
    """

    def __init__(
        self,
        *,
        model: str = "simulated",
        page_size: int = 16,
        capacity_pages: int = 4096,
        slots: int = 4,
        context_tokens: int = 65536,
        prefill_tokens_per_s: float = 5000.0,  # guess: bytes, about 1,200 tokens of a real vocabulary
        prefill_s_per_pair: float = 0.0,
        decode_tokens_per_s: float = 200.0,  # guess: bytes, about 45 tokens of a real vocabulary
        overhead_s: float = 0.005,  # guess
        load_s: float = 0.0,
        vocabulary: int = BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        fields = {
            "tokenizer": "utf-8 bytes",
            "chat_template": "chatml",
            "config": "simulated",
            "weights": f"simulated:{model}",
            "page_size": str(page_size),
            "format": "1",
        }
        info = EngineInfo(
            kind="simulated",
            model=model,
            page_size=page_size,
            capacity_pages=capacity_pages,
            slots=slots,
            context_tokens_max=context_tokens,
            fingerprint_fields=fields,
        )
        super().__init__(info, wall_clock=wall_clock)
        self._tokenizer = SimulatedTokenizer(vocabulary)
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._prefill_s_per_pair = prefill_s_per_pair
        self._decode_tokens_per_s = decode_tokens_per_s
        self._overhead_s = overhead_s
        self._load_s = load_s
        self._slots = trio.Semaphore(slots)
        self._prefill_turn = trio.Lock()
        self._prefill: tuple[Job, float, float] | None = None
        """The job in prefill, when that began and when it will be done."""

    @property
    def tokenizer(self) -> SimulatedTokenizer:
        """Bytes."""
        return self._tokenizer

    def crash(self, *, down_s: float = 0.0) -> None:
        """Lose the cache and every answer in progress; come back after `down_s` and the time to load."""
        assert self._nursery is not None, "only an engine that runs can crash"
        self._load_scope.cancel()
        self._loaded = trio.Event()
        for job in list(self._jobs):
            job.fail(EngineError("the engine crashed"))
            job.cancel()
        self._set_state(EngineState.RESTARTING, "crashed")
        self.cache.clear()
        self._nursery.start_soon(self._load, down_s)

    async def _start(self) -> None:
        await trio.sleep(self._load_s)

    def _stop(self) -> None:
        self._prefill = None

    async def _serve(self, job: Job) -> None:
        async with self._slots:
            job.running = True
            with await self._prefill_prompt(job) as lease:
                await self._decode(job, lease)
                job.end(cached_tokens=lease.cached_tokens)

    async def _prefill_prompt(self, job: Job) -> Lease[None]:
        async with self._prefill_turn:
            lease = self.cache.open(job.tokens)
            uncached = len(job.tokens) - lease.cached_tokens
            try:
                begin = trio.current_time()
                seconds = self._prefill_s(len(job.tokens), lease.cached_tokens)
                self._prefill = (job, begin + self._overhead_s, begin + self._overhead_s + seconds)
                self._begin_prefill(job, uncached)
                await trio.sleep(self._overhead_s + seconds)
            except BaseException:
                lease.close()
                raise
            finally:
                self._prefill = None
        job.prefill_left = 0
        self._prefilled(uncached, seconds)
        pages = cut(job.tokens, self.info.page_size)[lease.cached_tokens // self.info.page_size :]
        lease.extend(pages, [None] * len(pages))
        return lease

    async def _decode(self, job: Job, lease: Lease[None]) -> None:
        continuation = Continuation(job.tokens)
        ends_itself = job.options.max_tokens is None and not job.options.ignore_eos
        tokens = list(job.tokens)
        while (reason := job.finish_reason) is None:
            await trio.sleep(1 / self._decode_tokens_per_s)
            self._decode_rate.add(1, 1 / self._decode_tokens_per_s)
            if ends_itself and job.generated and continuation.ends_here:
                reason = "stop"
                break
            token = continuation.next_token()
            tokens.append(token)
            job.push(token, bytes([token]))
        job.finish(reason)
        # The last token was drawn but never went through the model, so its KV cache does not exist.
        stored = len(job.tokens) // self.info.page_size
        pages = cut(tokens[: len(tokens) - 1], self.info.page_size)[stored:]
        lease.extend(pages, [None] * len(pages))

    def _prefill_s(self, tokens: int, cached: int) -> float:
        """What a prompt takes: so much per computed token, and for each one that it looks back at."""
        pairs = (tokens * tokens - cached * cached) / 2
        return (tokens - cached) / self._prefill_tokens_per_s + pairs * self._prefill_s_per_pair

    def _prefill_left(self, job: Job) -> int:
        if self._prefill is None or self._prefill[0] is not job or job.prefill_left is None:
            return super()._prefill_left(job)
        _, begin, end = self._prefill
        share = (end - trio.current_time()) / (end - begin)
        return math.ceil(job.prefill_left * min(1.0, max(0.0, share)))

    def _begun(self) -> int:
        job = self._prefill[0] if self._prefill else None
        if job is None or job.prefill_left is None:
            return 0
        return job.prefill_left - self._prefill_left(job)
