"""Requests of each shape, and what a client gets of their answers: for tests of what befalls them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import trio

from peerinfer.core.types import Chunk, End, Usage
from peerinfer.node.reply import Incoming
from tests.node.swarm import Member, World, completion, text, world


@dataclass
class Seen:
    """What a client got."""

    chunks: list[Chunk] = field(default_factory=list)
    end: End | None = None
    served_by: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    def stream(self) -> list[object]:
        """The chunks' JSON but for id and time, which are the same in all of them."""
        parsed = [json.loads(chunk.sse_json) for chunk in self.chunks]
        assert len({(chunk["id"], chunk["created"]) for chunk in parsed}) == 1, "one stream, one name"
        for chunk in parsed:
            del chunk["id"], chunk["created"]
        return parsed

    @property
    def counts(self) -> Usage:
        assert self.end is not None
        return self.end.usage


async def read(
    member: Member, incoming: Incoming, at: Callable[[int], Awaitable[None]] | None = None
) -> Seen:
    """Read an answer; `at` is called with the number of chunks so far."""
    seen = Seen()
    async with member.node.handle(incoming) as reply:
        async for item in reply.chunks:
            assert seen.end is None
            if isinstance(item, End):
                seen.end = item
                continue
            seen.chunks.append(item)
            if at is not None:
                await at(len(seen.chunks))
    assert seen.end is not None
    decision = member.node.decision(incoming.id)
    assert decision is not None
    seen.served_by = [str(attempt["peer_id"]) for attempt in decision["attempts"]]  # type: ignore[attr-defined]
    return seen


async def taught(swarm: World, incoming: Incoming) -> None:
    """Node 1 has the prompt, and everybody knows."""
    again = replace(incoming, id=f"{incoming.id}-before", policy="local")
    again = replace(again, body={**again.body, "max_tokens": 1}, raw=b"")
    await read(swarm[1], again)
    await swarm.all_know_all()


def _body(name: str, seed: int) -> tuple[str, dict[str, object]]:
    """A request of each shape; one of another seed shares no page with it."""
    asked = [{"role": "user", "content": text(seed)}]
    begun = [*asked, {"role": "assistant", "content": "Well, "}]
    shapes: dict[str, tuple[str, dict[str, object]]] = {
        "completion": ("completions", {"prompt": text(seed), "max_tokens": 40}),
        "tokens": ("completions", {"prompt": list(text(seed).encode()), "max_tokens": 40}),
        "sixteen by default": ("completions", {"prompt": text(seed)}),
        "chat": ("chat", {"messages": asked, "max_tokens": 40}),
        "unasked length": ("chat", {"messages": asked}),
        "newer limit": ("chat", {"messages": asked, "max_completion_tokens": 40, "max_tokens": 90}),
        "begun": ("chat", {"messages": begun, "continue_final_message": True, "max_tokens": 40}),
    }
    endpoint, body = shapes[name]
    return endpoint, {"model": "simulated", "stream": True, **body}


SHAPES = ("completion", "tokens", "sixteen by default", "chat", "unasked length", "newer limit", "begun")


def shaped(name: str, seed: int, **extra: object) -> Incoming:
    endpoint, body = _body(name, seed)
    body |= extra
    raw = json.dumps(body).encode()
    return replace(completion(""), endpoint=endpoint, body=body, raw=raw)  # type: ignore[arg-type]


async def undisturbed(incoming: Incoming) -> Seen:
    """The answer of a node that is alone."""
    async with world(1) as swarm:
        await trio.sleep(1.0)
        return await read(swarm[0], incoming)
