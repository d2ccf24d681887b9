"""What the engines' tests share: a sink that mirrors the cache, whole answers, and the engines themselves."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import CacheEvent, Chunk, End, Endpoint, EngineState, InferRequest
from peerinfer.engine.embedded import EmbeddedEngine
from peerinfer.engine.model_store import fetch_default_model
from peerinfer.engine.paged_engine import PagedEngine
from peerinfer.engine.simulated import SimulatedEngine
from peerinfer.node.cache_sync import CacheSync

PAGE = 16
_ids = itertools.count(1)


class MirrorSink:
    """Keeps every event and state, and the tree that a node would build from the events."""

    def __init__(self) -> None:
        self.events: list[CacheEvent] = []
        self.states: list[EngineState] = []
        self.details: list[str] = []
        self.ready = trio.Event()
        self.stored = trio.Event()
        self._hasher = PageHasher(salt=derive_salt(None), page_size=PAGE)
        self.sync = CacheSync(RadixTree(capacity_pages=100_000), self._hasher)

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        self.events += events
        self.sync.apply(events, now=float(len(self.events)))
        self.stored.set()

    def engine_state(self, state: EngineState, detail: str) -> None:
        self.states.append(state)
        self.details.append(detail)
        if state is EngineState.READY:
            self.ready.set()

    def promised_tokens(self, tokens: Sequence[int]) -> int:
        """The match of a prompt that a router would expect from the mirrored tree."""
        keys = self._hasher.keys(tokens[: len(tokens) - 1])
        return self.sync.tree.match_prefix(keys) * PAGE

    def agrees_with(self, engine: PagedEngine[Any]) -> bool:
        """Whether the mirror holds exactly the pages that the engine's cache holds."""
        engine.cache.check()
        pages = {self._hasher.keys(prefix)[-1] for prefix in engine.cache.prefixes()}
        same = set(self.sync.tree.ordered_keys()) == pages and len(self.sync) == len(engine.cache)
        return same and self.sync.unkeyed_blocks == 0


@dataclass
class Answered:
    """A whole answer."""

    chunks: list[Chunk] = field(default_factory=list)
    end: End | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.token_ids or ())

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The chunks of the answer; the one with its usage, which a server sends last, is no part of it."""
        objects = [json.loads(chunk.sse_json) for chunk in self.chunks]
        return [item for item in objects if item["choices"]]

    @property
    def finish_reason(self) -> str | None:
        reason: str | None = self.objects[-1]["choices"][0]["finish_reason"]
        return reason

    @property
    def cached_tokens(self) -> int:
        assert self.end is not None
        return self.end.cached_tokens


def request(
    body: Mapping[str, object], endpoint: Endpoint = "chat", token_ids: tuple[int, ...] | None = None
) -> InferRequest:
    return InferRequest(id=f"r{next(_ids)}", endpoint=endpoint, body=body, token_ids=token_ids)


async def ask(engine: PagedEngine[Any], body: Mapping[str, object], endpoint: Endpoint = "chat") -> Answered:
    """The whole answer to a body; greedy unless the body says otherwise."""
    answered = Answered()
    async with engine.run_infer(request({"temperature": 0} | dict(body), endpoint)) as items:
        async for item in items:
            assert answered.end is None, "something follows the end"
            if isinstance(item, Chunk):
                answered.chunks.append(item)
            else:
                answered.end = item
    assert answered.end is not None
    return answered


def chat(text: str, **options: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8} | options


@functools.cache
def default_model() -> Path:
    """The default model's file, fetched on the first use on this machine."""
    return fetch_default_model(lambda what, share: print(f"{what}: {share:.0%}"))


def make_simulated(*, slots: int = 2, capacity_pages: int = 512) -> PagedEngine[Any]:
    return SimulatedEngine(
        slots=slots,
        capacity_pages=capacity_pages,
        context_tokens=2048,
        prefill_tokens_per_s=2000.0,
        decode_tokens_per_s=500.0,
        overhead_s=0.001,
        load_s=0.05,
    )


def make_embedded(*, slots: int = 2, capacity_pages: int = 512) -> PagedEngine[Any]:
    return EmbeddedEngine(
        model=default_model(),
        slots=slots,
        capacity_tokens=capacity_pages * PAGE,
        context_tokens=1024,
    )


MakeEngine = Callable[..., PagedEngine[Any]]
MAKERS: Mapping[str, MakeEngine] = {"simulated": make_simulated, "embedded": make_embedded}
