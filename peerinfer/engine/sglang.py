"""An engine that is a server of its own: SGLang, started by the node or attached, or any other OpenAI server.

Theory of operation. The server's life is told by `ManagedServer` or `AttachedServer`. Whenever it becomes
ready it is asked what it is, its cache events are followed (or, where there are none, its cache is guessed
from what it was sent), our tokens are checked against its own, and only then is the node told. Whenever it
stops being ready all of that ends at once: the node forgets the cache, and requests that have not begun are
given back, to be served elsewhere.

A request is worked on by a task of the engine's own nursery, which writes into a channel; leaving its answer
cancels that task, which closes the connection, and tells SGLang to abort it. Paper: runInfer, and lines 7-13
of Algorithm 1 as the server does them and its events tell.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import trio

from peerinfer.core.types import (
    CacheEvent,
    Chunk,
    End,
    EngineInfo,
    EngineState,
    InferRequest,
    Load,
    RequestError,
    Usage,
)
from peerinfer.engine.attempts import Attempts
from peerinfer.engine.flight import Flight
from peerinfer.engine.job import Refused
from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.openai_upstream import ABORT_AFTER_S, OpenAIUpstream, StatusError, open_client
from peerinfer.engine.server_cache import ServerCache, Watched
from peerinfer.engine.server_facts import ServerFacts, read_facts
from peerinfer.engine.server_load import ServerLoad, follow_reports
from peerinfer.engine.server_tokenizer import ServerTokenizer
from peerinfer.engine.sglang_process import Report, ServerState
from peerinfer.engine.upstream_body import check_numbers, outgoing
from peerinfer.node.ports import EngineAwayError, EngineError, EngineSink

log = logging.getLogger("peerinfer.engine")

ASK_AGAIN_S = 1.0
"""Between two tries to learn what a server is that says it is well."""


class Server(Protocol):
    """A server's life, as somebody watches it: `ManagedServer`, `AttachedServer`."""

    @property
    def url(self) -> str:
        """Where it listens while it is ready."""

    def run(self, report: Report) -> AbstractAsyncContextManager[None]:
        """Watch it, or keep it running, until the block is left."""

    def check_soon(self) -> None:
        """Look at once whether it is well."""


class SGLangEngine:
    """An `Engine` (node/ports.py) in front of a server. See the module."""

    def __init__(
        self,
        info: EngineInfo,
        server: Server,
        tokenizer: ServerTokenizer,
        *,
        vocabulary: int | None = None,
        serves: str = "",
        events: KvEndpoints | None = None,
        key: str = "",
    ) -> None:
        """`info` is what is known before the server runs: `serves` is the model that it named as loaded, and
        `events` is where it publishes, if it does not say."""
        self._info = info
        self.tokenizer = tokenizer
        self._server = server
        self._vocabulary = vocabulary
        self._serves = serves
        self._events = events
        self._key = key
        self._state = EngineState.LOADING
        self._detail = "not started"
        self._settled = trio.Event()
        """Set while the state is not LOADING."""
        self._sink: EngineSink | None = None
        self._nursery: trio.Nursery | None = None
        self._upstream: OpenAIUpstream | None = None
        self._facts: ServerFacts | None = None
        self._cache: ServerCache | None = None
        self._attempts = Attempts()
        self._flights: dict[Flight, None] = {}
        self._load = ServerLoad(slots=info.slots)

    @property
    def info(self) -> EngineInfo:
        """What the engine is, as far as it is known; more of it once the server has answered."""
        if self._cache is not None and self._cache.source != self._info.source:
            self._info = replace(self._info, source=self._cache.source)
        return self._info

    @asynccontextmanager
    async def run(self, sink: EngineSink) -> AsyncIterator[None]:
        """Start; `sink.engine_state` tells when the server is ready. Leaving ends every answer and stops."""
        assert self._nursery is None, "the engine runs already"
        states, told = trio.open_memory_channel[ServerState](1024)
        self._sink = sink
        try:
            async with open_client(key=self._key) as client, trio.open_nursery() as nursery:
                self._nursery, self._upstream = nursery, OpenAIUpstream(client, "")
                self._tell(EngineState.LOADING, f"waiting for a server of {self.info.model}")
                async with self._server.run(states.send_nowait):
                    nursery.start_soon(self._follow, told)
                    try:
                        yield
                    finally:
                        nursery.cancel_scope.cancel()
        finally:
            self._nursery = self._upstream = self._sink = None
            self._state, self._settled = EngineState.LOADING, trio.Event()

    @asynccontextmanager
    async def run_infer(self, request: InferRequest) -> AsyncIterator[AsyncIterator[Chunk | End]]:
        """Answer a request; see the port. The work counts in `load()` from here on."""
        if self._nursery is None:
            yield Refused(EngineAwayError("the engine is not running"))
            return
        try:
            check_numbers(request.endpoint, request.body, vocabulary=self._vocabulary)
        except RequestError as error:
            yield Refused(error)
            return
        flight = Flight(request, self._load)
        self._flights[flight] = None
        self._nursery.start_soon(self._work, flight)
        try:
            yield flight.answer
        finally:
            flight.scope.cancel()
            if not flight.done.is_set():
                with trio.CancelScope(shield=True):
                    await flight.done.wait()

    def load(self) -> Load:
        """The work at hand, right now."""
        return self._load.load(now=trio.current_time())

    # One request

    async def _work(self, flight: Flight) -> None:
        rids: tuple[str, ...] = ()
        try:
            with flight.scope:
                facts, upstream = await self._ready()
                request = outgoing(
                    flight.request,
                    model=self.info.model,
                    is_sglang=facts.is_sglang,
                    assembles_chats=not facts.parses_chats,
                    attempts_before=self._attempts.before(flight.request.id),
                )
                rids = flight.rids = request.rids
                assert self._cache is not None
                with self._cache.watch(flight.request.token_ids) as watched:
                    async with aclosing(upstream.answer(request)) as items:
                        async for item in items:
                            if isinstance(item, End):
                                rids = ()
                                flight.answered(item)
                                item = await self._covered(flight, item, watched)
                            await flight.send(item)
        except RequestError as error:
            rids = ()
            flight.fail(error)
        except EngineError as error:
            rids = ()
            self._server.check_soon()
            flight.fail(error)
        finally:
            del self._flights[flight]
            flight.close()
            if rids and self._nursery is not None:
                self._nursery.start_soon(self._abort, rids)

    async def _ready(self) -> tuple[ServerFacts, OpenAIUpstream]:
        """Wait for a server that loads. Raises `EngineAwayError` for one that is away."""
        if not self._settled.is_set():
            await self._settled.wait()
        if self._state is not EngineState.READY or self._facts is None or self._upstream is None:
            raise EngineAwayError(f"the server is {self._state}: {self._detail}")
        return self._facts, self._upstream

    async def _covered(self, flight: Flight, end: End, watched: Watched) -> End:
        """The end, once the events of its request have come, or are late."""
        assert self._upstream is not None
        reported = self._upstream.reports_cached_tokens
        await watched.answered(end.cached_tokens if reported else None)
        tokens = flight.request.token_ids
        if end.usage.prompt_tokens or tokens is None:
            return end
        usage = Usage(prompt_tokens=len(tokens), completion_tokens=end.usage.completion_tokens)
        return replace(end, usage=usage)

    async def _abort(self, rids: tuple[str, ...]) -> None:
        """The client went away: SGLang looks for that itself only every few seconds.

        It ends whatever begins with the name that it is told, and names are chosen by clients and peers: a
        name that others begin with is left to it.
        """
        assert self._upstream is not None
        for wait_s in ABORT_AFTER_S:
            await trio.sleep(wait_s)
            others = [name for flight in self._flights for name in flight.rids]
            ours = (rid for rid in rids if not any(name.startswith(rid) for name in others))
            await self._upstream.abort(tuple(ours))

    # The server's life

    async def _follow(self, told: trio.MemoryReceiveChannel[ServerState]) -> None:
        state = await told.receive()
        while True:
            if state.state is not EngineState.READY:
                self._tell(state.state, state.detail)
                state = await told.receive()
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._while_ready, state.detail)
                state = await told.receive()
                nursery.cancel_scope.cancel()

    async def _while_ready(self, detail: str) -> None:
        upstream = self._upstream
        assert upstream is not None
        upstream.url = self._server.url
        try:
            self._facts = facts = await self._learn(upstream)
            self._cache = ServerCache(facts, self._info, emit=self._cache_events, restarted=self._restarted)
            async with trio.open_nursery() as nursery:
                await nursery.start(self._cache.run)
                nursery.start_soon(follow_reports, self._load, self._fetch_report)
                self._tell(EngineState.READY, detail)
        finally:
            self._facts = self._cache = None
            self._load.forget_reports()
            self.tokenizer.detach()

    async def _learn(self, upstream: OpenAIUpstream) -> ServerFacts:
        """What the server is, and whether it makes the tokens that we make; asked until it answers."""
        while True:
            try:
                facts = await read_facts(upstream)
                facts = replace(facts, events=facts.events or self._events)
                upstream.reports_cached_tokens |= facts.reports_cached_tokens
                self._check_same(facts)
                self._info = described(self._info, facts)
                await self.tokenizer.attach(upstream, is_sglang=facts.is_sglang)
            except EngineError as error:
                self._tell(EngineState.FAILING, str(error))
                await trio.sleep(ASK_AGAIN_S)
                continue
            return facts

    async def _fetch_report(self) -> object:
        """The server's own word on its load; `{}` where it has none. Raises ValueError if it is away."""
        assert self._upstream is not None
        try:
            return await self._upstream.get("/v1/loads?include=core")
        except StatusError:
            return {}
        except EngineError as error:
            raise ValueError(str(error)) from error

    def _check_same(self, facts: ServerFacts) -> None:
        """Peers were told what the model is; a server of another one is not ours. Raises `EngineError`."""
        self._serves = self._serves or facts.model_path
        if facts.model_path != self._serves:
            raise EngineError(f"the server has {facts.model_path} now, not {self._serves}: restart the node")

    def _cache_events(self, events: Sequence[CacheEvent]) -> None:
        if self._sink is not None:
            self._sink.cache_events(events)

    def _restarted(self) -> None:
        """Its events say that the server began anew, though it never failed to answer."""
        if self._state is EngineState.READY:
            self._tell(EngineState.RESTARTING, "the server began again with an empty cache")
            self._tell(EngineState.READY, "the server is there again")

    def _tell(self, state: EngineState, detail: str) -> None:
        """The state changed, or what there is to say about it."""
        self._state, self._detail = state, detail
        if state is not EngineState.LOADING:
            self._settled.set()
        elif self._settled.is_set():
            self._settled = trio.Event()
        if state in (EngineState.FAILING, EngineState.RESTARTING):
            for flight in list(self._flights):
                if not flight.begun:
                    flight.give_back(EngineAwayError(f"the server is {state}: {detail}"))
        if self._sink is not None:
            self._sink.engine_state(state, detail)


def described(info: EngineInfo, facts: ServerFacts) -> EngineInfo:
    """The same engine with what the server says of itself.

    Raises:
        EngineError: its cache's blocks make no pages.
    """
    if facts.block_size and info.page_size % facts.block_size:
        raise EngineError(
            f"its cache has blocks of {facts.block_size} tokens, which make no pages of {info.page_size}: "
            f"start it with --page-size {info.page_size}, or every node with --page-size {facts.block_size}"
        )
    capacity = (facts.capacity_tokens or 0) // info.page_size
    return replace(
        info,
        model=facts.model,
        capacity_pages=capacity or info.capacity_pages,
        slots=facts.slots,
        context_tokens_max=facts.context_tokens,
    )
