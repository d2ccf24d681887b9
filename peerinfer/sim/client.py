"""A client of a simulated world: one request through the production path, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from peerinfer.core.types import Chunk, End, Endpoint, PeerId, RequestError
from peerinfer.node.reply import Incoming, Reply
from peerinfer.sim.place import Place
from peerinfer.sim.spec import Costs, Outcome


@dataclass(slots=True, kw_only=True)
class Client:
    """One request under way."""

    incoming: Incoming
    place: Place
    tokens: Sequence[int] | None
    """The prompt; None where the body is not ours to read."""
    max_tokens: int
    costs: Costs
    started_at: float
    reply: Reply | None = None
    first_chunk_at: float | None = None
    output: list[int] = field(default_factory=list)
    end: End | None = None
    error: str | None = None
    trees_s: float = 0.0
    processing_s: float = 0.0
    results: int = 0
    """Ends and errors that came; there is to be one."""
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancelled when the client goes away."""

    async def run(self) -> None:
        """Send the request and read the whole answer; `done` is set whatever happens."""
        try:
            self.error = "the entry node died"
            with self.scope:
                await trio.sleep(self._pay())
                async with self.place.node.handle(self.incoming) as self.reply:
                    async for item in self.reply.chunks:
                        self._take(item)
                self.error = None if self.end is not None else "the answer has no end"
        except RequestError as error:
            self.results += 1
            self.error = f"{error.status} {error.code}: {error.message}"
        finally:
            self.done.set()

    def _pay(self) -> float:
        """What the entry node computes, in virtual seconds."""
        pages = len(self.tokens or ()) // self.place.engine.info.page_size
        self.trees_s = self.costs.trees_s(pages)
        self.processing_s = self.costs.processing_s
        return self.trees_s + self.processing_s

    def _take(self, item: Chunk | End) -> None:
        if self.first_chunk_at is None:
            self.first_chunk_at = trio.current_time()
        if isinstance(item, End):
            self.results += 1
            self.end = item
        else:
            self.output += item.token_ids or ()

    def outcome(self, *, served_by: int | None, engine_s: float) -> Outcome:
        """All that is known once it is over."""
        reply, end = self.reply, self.end
        decision = self.place.node.context.decisions.get(self.incoming.id)
        attempts: list[tuple[PeerId, str]] = []
        if decision is not None:
            attempts = [(attempt.peer, attempt.outcome) for attempt in decision.attempts]
        return Outcome(
            request_id=self.incoming.id,
            entry=self.place.index,
            served_by=served_by,
            route=None if reply is None else reply.route,
            prompt_tokens=(decision and decision.prompt_tokens) or 0,
            expected_cached_tokens=0 if reply is None else reply.expected_cached_tokens,
            cached_tokens=0 if end is None else end.cached_tokens,
            output=tuple(self.output),
            output_tokens=len(self.output) if end is None else end.usage.completion_tokens,
            started_at=self.started_at,
            first_chunk_at=self.first_chunk_at,
            ended_at=trio.current_time(),
            error=self.error,
            attempts=tuple(attempts),
            engine_s=engine_s,
            trees_s=self.trees_s,
            processing_s=self.processing_s,
        )


def incoming(
    request_id: str,
    *,
    tokens: Sequence[int] | None,
    body: Mapping[str, object] | None,
    max_tokens: int,
    endpoint: Endpoint,
    policy: str | None,
    target: PeerId | None,
) -> Incoming:
    """A client's request: of token ids as they are, or of a whole body."""
    if body is None:
        assert tokens is not None, "a request has tokens or a body"
        body = {"model": "simulated", "prompt": list(tokens), "max_tokens": max_tokens, "ignore_eos": True}
    return Incoming(
        id=request_id,
        endpoint=endpoint,
        raw=json.dumps(body).encode(),
        body=body,
        policy=policy,
        target=target,
    )
