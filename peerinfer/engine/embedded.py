"""An engine in the node's own process, for machines without a GPU: llama.cpp, and a page cache of our own.

Theory of operation. Each running request has a slot, a small llama.cpp context that only it uses. Cached
pages live as blobs in host memory, not in contexts: a request copies its prefix in (0.1 ms a page), computes
the rest chunk by chunk, and every page that becomes whole on the way, by prefill or by decoding, is copied
out into the cache at once. Pages have the same bits however they came about (llama.py), so nothing is
rounded down, what is cached changes no answer, and a cancelled request leaves every page that it finished.

llama.cpp runs in worker threads, one step (a chunk or a token) at a time; the cache tree, the jobs and the
text are touched by trio's thread alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from peerinfer.core.types import EngineInfo
from peerinfer.engine import model_store
from peerinfer.engine.embedded_tokenizer import EmbeddedTokenizer
from peerinfer.engine.gguf import ModelFile, read_model_file
from peerinfer.engine.job import Job
from peerinfer.engine.llama import CHUNK_TOKENS, Advance, Model, Slot
from peerinfer.engine.openai_body import Options
from peerinfer.engine.page_cache import Lease, cut
from peerinfer.engine.paged_engine import PagedEngine
from peerinfer.node.ports import EngineError

Result = TypeVar("Result")

_FORMAT = "1"
"""Rises when equal tokens and weights no longer mean equal pages."""
_NICE = 10  # measured on 2 busy cores, 3 slots: 99 of 100 wake-ups of the loop in 4-11 ms, else in 17-23 ms
_thread = threading.local()
_WARM_UP = Options(max_tokens=None, temperature=0.0, top_p=1.0, seed=None, stop=(), ignore_eos=False)


class EmbeddedEngine(PagedEngine[bytes]):
    """See the module. Raises `EngineError` at once for a file that is no model."""

    def __init__(
        self,
        *,
        model: Path,
        served_name: str | None = None,
        page_size: int = 16,
        capacity_tokens: int = 8192,  # 23 kB each with the default model: 190 MB
        slots: int = 2,
        context_tokens: int = 2048,  # 23 kB each and slot: 2 x 46 MB
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if page_size < 1 or CHUNK_TOKENS % page_size:
            raise EngineError(f"the embedded engine's page size must divide {CHUNK_TOKENS}, not {page_size}")
        file = read_model_file(model)
        if file.sliding_window:
            raise EngineError(f"{model}: a model with sliding-window attention has no KV pages to reuse")
        context_tokens = min(context_tokens, file.context_tokens or context_tokens)
        info = EngineInfo(
            kind="embedded",
            model=served_name or model_store.served_name(model),
            page_size=page_size,
            capacity_pages=capacity_tokens // page_size,
            slots=slots,
            context_tokens_max=context_tokens,
            fingerprint_fields=_fingerprint_fields(file, page_size),
        )
        super().__init__(info, wall_clock=wall_clock)
        self._path = model
        self._tokenizer = EmbeddedTokenizer(
            chat_template=file.chat_template, context_tokens_max=context_tokens
        )
        self._threads = trio.CapacityLimiter(slots)
        self._slots: list[Slot] = []
        self._model: Model | None = None

    @property
    def tokenizer(self) -> EmbeddedTokenizer:
        """The model's own."""
        return self._tokenizer

    async def _start(self) -> None:
        self._release, self._idle = trio.open_memory_channel[Slot](self.info.slots)
        try:
            self._model = model = await self._in_thread(Model, self._path)
            self._tokenizer.attach(model)
            for _ in range(self.info.slots):
                make = functools.partial(
                    Slot, model, context_tokens=self.info.context_tokens_max, page_size=self.info.page_size
                )
                slot = await self._in_thread(make)
                self._slots.append(slot)
                await self._warm_up(slot)
                self._release.send_nowait(slot)
        except EngineError as error:
            self._tokenizer.fail(str(error))
            raise

    def _stop(self) -> None:
        self._tokenizer.detach()
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        if self._model is not None:
            self._model.close()
            self._model = None

    async def _serve(self, job: Job) -> None:
        slot = await self._idle.receive()
        try:
            job.running = True
            slot.begin(job.options)
            job.abort = slot.abort
            with self.cache.open(job.tokens) as lease:
                token = await self._prefill(job, slot, lease)
                await self._decode(job, slot, lease, token)
                job.end(cached_tokens=lease.cached_tokens)
        finally:
            job.abort = None
            slot.clear()
            self._release.send_nowait(slot)

    async def _prefill(self, job: Job, slot: Slot, lease: Lease[bytes]) -> int:
        """Compute what is not cached of the prompt; the answer's first token."""
        begin, end = lease.cached_tokens, len(job.tokens)
        self._begin_prefill(job, end - begin)
        await self._in_thread(slot.load, lease.blobs)
        while True:
            tokens = job.tokens[begin : begin + CHUNK_TOKENS]
            draw = begin + len(tokens) == end
            step = await self._advance(slot, tokens, begin, draw=draw)
            self._prefilled(len(tokens), step.seconds)
            self._keep(lease, job.tokens, begin, step)
            begin += len(tokens)
            job.prefill_left = end - begin
            if step.token is not None:
                return step.token

    async def _decode(self, job: Job, slot: Slot, lease: Lease[bytes], token: int) -> None:
        assert self._model is not None
        tokens = list(job.tokens)
        while True:
            if self._model.ends(token) and not job.options.ignore_eos:
                job.finish("stop")
                return
            job.push(token, self._model.piece(token))
            if (reason := job.finish_reason) is not None:
                job.finish(reason)
                return
            tokens.append(token)
            begin = len(tokens) - 1
            step = await self._advance(slot, (token,), begin, draw=True)
            self._decode_rate.add(1, step.seconds)
            self._keep(lease, tokens, begin, step)
            assert step.token is not None
            token = step.token

    def _keep(
        self, lease: Lease[bytes], tokens: tuple[int, ...] | list[int], begin: int, step: Advance
    ) -> None:
        size = self.info.page_size
        first = begin // size * size
        lease.extend(cut(tokens[first : first + len(step.pages) * size], size), step.pages)

    async def _warm_up(self, slot: Slot) -> None:
        """Touch the slot's memory; with the first slot, measure the rates and check the rule about pages."""
        slot.begin(_WARM_UP)
        step = await self._advance(slot, range(CHUNK_TOKENS), 0, draw=True)
        slot.clear()
        if self._decode_rate.per_s == 0:
            await self._measure(slot, step.pages)
            slot.clear()

    async def _measure(self, slot: Slot, pages: tuple[bytes, ...]) -> None:
        """Decode what `pages` were computed from, and prefill behind it: peers reckon with the rates.

        The pages must come out the same, else answers would depend on what is cached: some weights take
        other kernels for one token than for many (measured: F16 does, Q8_0, Q4_0 and Q4_K do not).
        """
        size = self.info.page_size
        count = max(size, CHUNK_TOKENS // 2)
        decoded: tuple[bytes, ...] = ()
        for token in range(count):
            step = await self._advance(slot, (token,), token, draw=True)
            self._decode_rate.add(1, step.seconds)
            decoded += step.pages
        if decoded != pages[: count // size]:
            raise EngineError(
                f"{self._path}: on this CPU such weights compute one token otherwise than many, so cached "
                "answers would differ from cold ones; use a quantised model, Q8_0 for example"
            )
        step = await self._advance(slot, range(CHUNK_TOKENS), count, draw=True)
        self._prefill_rate.add(CHUNK_TOKENS, step.seconds)

    async def _advance(
        self, slot: Slot, tokens: range | tuple[int, ...], begin: int, *, draw: bool
    ) -> Advance:
        return await self._in_thread(functools.partial(slot.advance, tokens, begin, draw=draw))

    async def _in_thread(self, work: Callable[..., Result], *args: object) -> Result:
        """Run it to its end in a worker thread; `Job.cancel` makes that end come soon."""
        try:
            return await trio.to_thread.run_sync(_behind_the_loop, work, *args, limiter=self._threads)
        except InterruptedError:
            await trio.lowlevel.checkpoint()  # aborted because the job was cancelled: this raises
            raise EngineError("llama.cpp stopped without being asked to") from None


def _behind_the_loop(work: Callable[..., Result], *args: object) -> Result:
    """Do work in a worker thread that the event loop's thread is preferred to."""
    if sys.platform == "linux" and not hasattr(_thread, "polite"):  # elsewhere threads have no nice value
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        _thread.polite = True
    return work(*args)


def _fingerprint_fields(file: ModelFile, page_size: int) -> dict[str, str]:
    template = file.chat_template
    return {
        "tokenizer": file.tokenizer,
        "chat_template": ""
        if template is None
        else hashlib.blake2b(template.encode(), digest_size=16).hexdigest(),
        "config": file.config,
        "weights": file.weights,
        "page_size": str(page_size),
        "format": _FORMAT,
    }
