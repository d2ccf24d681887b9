"""An answer that outlives whoever gives it: a target that fails after its first token is followed by another.

core/answer.py knows what the client has, core/continuation.py what request goes on from there, and that
request is sent as any other: to the best target, by the same lines of Algorithm 1. The client sees one
stream. Where neither text nor tokens carry all there is, the answer ends in `stream_broken`, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from peerinfer.core.answer import Answer
from peerinfer.core.continuation import by_text, by_tokens, shortened
from peerinfer.core.router import Candidate, Prompt
from peerinfer.core.types import Chunk, End, InferRequest, RequestError
from peerinfer.node.context import Context, log
from peerinfer.node.decisions import Decision
from peerinfer.node.forward import FAILED_WAIT_S, TargetFailedError
from peerinfer.node.outcome import has_room, noted, stop_before_it_harms_more, too_late
from peerinfer.node.ports import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A target at work on a request."""

    k: Candidate
    first: Chunk | End
    """What it said first."""
    chunks: AsyncIterator[Chunk | End]
    """What it says after that."""
    close: Callable[[], Awaitable[None]]
    """Cancels whatever still works there."""
    deadline: float
    """The end of the request's life, on trio's clock."""


Send = Callable[[InferRequest, Prompt], Awaitable[Serving]]
"""Lines 3-19: whoever answers first. Raises `RequestError` if nobody does."""


async def read_prompt(node: Context, request: InferRequest) -> tuple[InferRequest, Prompt]:
    """The request as tokens and page keys; without a tokeniser neither, and load alone decides."""
    token_ids = request.token_ids
    if token_ids is None and node.tokenizer is not None:
        try:
            token_ids = await node.tokenizer.encode(request.endpoint, request.body)
        except EngineError as error:
            log.warning("engine=%s cannot tokenise: %s", node.engine.info.kind, error)
    if token_ids is None:
        return request, Prompt(keys=(), tokens=None)
    request = replace(request, token_ids=token_ids)
    return request, Prompt(keys=tuple(node.hasher.keys(token_ids)), tokens=len(token_ids))


async def first_item(
    node: Context, k: Candidate, chunks: AsyncIterator[Chunk | End], *, deadline: float
) -> Chunk | End:
    """The first that target k says; it may take a multiple of what was predicted.

    Raises:
        TargetFailedError: it says nothing for that long. RequestError: it is too late for another one.
    """
    config = node.config.request
    patience_s = config.first_token_s_min + config.first_token_factor * k.first_token_s
    try:
        return await _next(node, k, chunks, within_s=patience_s, deadline=deadline)
    except trio.TooSlowError:
        raise too_late(node) from None


async def answer_of(
    node: Context, request: InferRequest, decision: Decision, serving: Serving, send: Send
) -> AsyncIterator[Chunk | End]:
    """The chunks, then exactly one `End`; an answer that breaks off ends in an error, never in silence."""
    answer = Answer(request)
    breaks = 0
    item: Chunk | End | None = serving.first
    within_s = node.config.request.token_timeout_s
    while not answer.over:
        try:
            if item is None:
                item = await _next(
                    node, serving.k, serving.chunks, within_s=within_s, deadline=serving.deadline
                )
            outgoing, item = answer.take(item), None
        except trio.TooSlowError:
            error = _broken(decision, "exceeded the time limit of a request", status=504)
            raise noted(node, decision, error) from None
        except TargetFailedError as failure:
            decision.attempts[-1].outcome = "broken" if answer.broke() else failure.outcome
            log.info("request=%s peer=%s broke off: %s", request.id, serving.k.peer, failure.outcome)
            await serving.close()
            breaks += 1
            try:
                _check_continuable(node, decision, answer, breaks=breaks)
                onward = await _onward(node, request, answer)
                if onward is None:
                    outgoing = answer.finish("length")
                else:
                    serving, outgoing = await send(*onward), []
                    item = serving.first
            except RequestError as error:
                if error.status < 500:  # the client's request was right, or there would be no answer yet
                    what = f"broke off, and it goes on nowhere else: {error.message}"
                    error = _broken(decision, what, status=502)
                raise noted(node, decision, error) from None
        for each in outgoing:
            if isinstance(each, End):
                decision.cached_tokens = each.cached_tokens
                decision.ended_at = trio.current_time()
                # To its end, since a generator that is left in the middle costs trio two tasks to tidy up.
                await anext(serving.chunks, None)
            yield each


def _check_continuable(node: Context, decision: Decision, answer: Answer, *, breaks: int) -> None:
    """Raises `RequestError` for an answer that must end here."""
    if answer.begun and answer.uncarried is not None:
        what = f"broke off, and another cannot go on where {answer.uncarried!r} matters"
        raise _broken(decision, what, status=502)
    if breaks > node.config.request.continuations_max:
        raise _broken(decision, f"broke off, as {breaks - 1} others did before", status=502)
    stop_before_it_harms_more(node, decision)


async def _onward(node: Context, request: InferRequest, answer: Answer) -> tuple[InferRequest, Prompt] | None:
    """What to send for the rest of the answer; None if there is no rest."""
    if not answer.begun:
        return await read_prompt(node, request)
    onward = by_tokens(request, answer.answered) or by_text(request, answer.answered)
    if onward is None:
        raise RequestError(
            "The answer broke off, and its text cannot be put behind this prompt; send the request again.",
            status=502,
            code="stream_broken",
        )
    onward, prompt = await read_prompt(node, onward)
    answer.goes_on(onward.token_ids)
    shorter = shortened(onward, answer.count)
    return None if shorter is None or not has_room(node, shorter) else (shorter, prompt)


async def _next(
    node: Context, k: Candidate, chunks: AsyncIterator[Chunk | End], *, within_s: float, deadline: float
) -> Chunk | End:
    """What target k says next. Raises `TargetFailedError`, and `trio.TooSlowError` at the deadline.

    `fail_at`, spelled out since it is on the way of every token.
    """
    try:
        with trio.CancelScope(deadline=min(deadline, trio.current_time() + within_s)):
            return await anext(chunks)
    except StopAsyncIteration:
        raise TargetFailedError("failed") from None
    now = trio.current_time()
    if now >= deadline:
        raise trio.TooSlowError
    node.view.unanswered(k.peer, wait_s=FAILED_WAIT_S, now=now)
    raise TargetFailedError("timeout")


def _broken(decision: Decision, what: str, *, status: int) -> RequestError:
    return RequestError(
        f"The node that served this answer ({decision.chosen}) {what}; send the request again.",
        status=status,
        code="stream_broken",
    )
