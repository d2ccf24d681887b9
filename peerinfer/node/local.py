"""runInfer on the own engine: Algorithm 1, lines 6-13.

The engine itself evicts (lines 7-10), infers (11) and updates its cache (12); its events have updated
the tree (13) before `End` arrives, so all that is left here is to mark the prefix as used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from peerinfer.core.router import Candidate, Prompt
from peerinfer.core.types import Chunk, End, InferRequest, RequestError
from peerinfer.node.context import Context, log
from peerinfer.node.forward import TargetFailedError
from peerinfer.node.ports import EngineAwayError, EngineError

CLIENT_QUEUE_FACTOR = 4
"""A client of this node may queue this much deeper than a peer: it has nowhere else to go."""


@asynccontextmanager
async def run_infer(
    node: Context, request: InferRequest, prompt: Prompt, me: Candidate
) -> AsyncIterator[AsyncIterator[Chunk | End]]:
    """Serve a client's request on this node's engine; `me` is what was decided on.

    Raises `RequestError` when the engine refuses it, `TargetFailedError` when the queue is full or the
    engine fails.
    """
    load = node.engine.load()
    if load.queued >= CLIENT_QUEUE_FACTOR * node.config.request.queued_per_slot_max * load.slots:
        raise TargetFailedError("overloaded")
    cached = me.expected_cached_tokens + me.in_flight_tokens
    uncached = (prompt.tokens or 0) - cached
    node.view.forwarded(node.me, uncached, prompt.keys)  # at once, as for a peer: other decisions must see it
    is_settled = False
    try:
        request = replace(request, expected_cached_tokens=cached)
        async with node.engine.run_infer(request) as chunks:
            node.view.settled(node.me, uncached)  # the engine's load tells it from here on
            is_settled = True
            node.load_changed()
            yield _relay(node, prompt, chunks)
    finally:
        node.view.ended(node.me, uncached, prompt.keys, was_settled=is_settled)
        node.load_changed()


async def _relay(
    node: Context, prompt: Prompt, chunks: AsyncIterator[Chunk | End]
) -> AsyncIterator[Chunk | End]:
    begun = False
    try:
        async for item in chunks:
            if isinstance(item, End):
                node.view.own.touch(prompt.keys, now=trio.current_time())  # line 13
            begun = True
            yield item
    except RequestError as error:
        if error.status < 500:
            raise
        raise TargetFailedError("failed" if begun else "overloaded") from error
    except EngineError as error:
        log.warning("engine=%s failed: %s", node.engine.info.kind, error)
        outcome = "not_ready" if isinstance(error, EngineAwayError) else "failed"
        raise TargetFailedError(outcome) from error
