"""Algorithm 1 of the paper, SendRequest(r, i): what node i does with an incoming request r.

Read `handle_request` top to bottom, with the paper's line numbers beside it. Between reading the view
and choosing a target there is no `await`, so each decision is atomic. A target that fails before its
first token is followed by the next best, the own engine last (paper §3.3); one that fails after it ends
the answer with a named error, since the client has seen tokens. A request that a peer forwarded to us
does not come here: it is served where it arrived (node/serve.py), so no request takes two hops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import trio

from peerinfer.core.router import Candidate, Prompt, Ranking, rank
from peerinfer.core.types import Chunk, End, InferRequest, RequestError
from peerinfer.node.context import Context, log
from peerinfer.node.decisions import Attempt, Decision
from peerinfer.node.forward import TargetFailedError, send_request
from peerinfer.node.local import run_infer
from peerinfer.node.ports import EngineError
from peerinfer.node.reply import Incoming, Reply

ENGINE_FAILURES_MAX = 2
"""So many engines that were there and failed at one request, and it is the request."""


@asynccontextmanager
async def handle_request(node: Context, r: Incoming) -> AsyncIterator[Reply]:
    """Answer a client's request here or through the best peer.

    Entering returns when the first chunk is there. Leaving cancels whatever still works on it.

    Raises:
        RequestError: the request is wrong, or nobody can answer it.
    """
    node.requests["received"] += 1
    decision = Decision(
        request_id=r.id, role="entry", endpoint=r.endpoint, entry=node.me, started_at=trio.current_time()
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(_kept(node, decision))
        deadline = decision.started_at + node.config.request.deadline_s
        request, prompt = await _read(node, r)  # lines 1-2
        ranking = _get_best_nodes(node, r, prompt, decision)  # lines 3-5
        for k in _targets(node, r, ranking):  # line 5's k, then §3.3's next best
            attempt = Attempt(peer=k.peer, outcome="failed")
            decision.attempts.append(attempt)
            decision.chosen, decision.expected_cached_tokens = k.peer, k.expected_cached_tokens
            try:
                chunks = await _begin(stack, node, r, request, prompt, k, deadline)  # lines 6-19
            except TargetFailedError as failure:
                attempt.outcome = failure.outcome
                _stop_before_it_harms_more(decision)
                continue
            except RequestError:
                attempt.outcome = "refused"
                raise
            attempt.outcome = "served"
            break
        else:
            raise _nobody(node)
        decision.first_chunk_at = trio.current_time()
        node.requests["served_local" if k.is_me else "forwarded"] += 1
        yield Reply(  # line 20
            request_id=r.id,
            served_by=k.peer,
            route="local" if k.is_me else "forwarded",
            expected_cached_tokens=k.expected_cached_tokens,
            chunks=_until_end(node, decision, chunks, deadline),
        )


async def _read(node: Context, r: Incoming) -> tuple[InferRequest, Prompt]:
    """The request as tokens and page keys; without a tokeniser neither, and load alone decides."""
    token_ids = None
    if node.tokenizer is not None:
        try:
            token_ids = await node.tokenizer.encode(r.endpoint, r.body)
        except EngineError as error:
            log.warning("engine=%s cannot tokenise: %s", node.engine.info.kind, error)
    request = InferRequest(id=r.id, endpoint=r.endpoint, body=r.body, raw=r.raw, token_ids=token_ids)
    if token_ids is None:
        return request, Prompt(keys=(), tokens=None)
    return request, Prompt(keys=tuple(node.hasher.keys(token_ids)), tokens=len(token_ids))


def _get_best_nodes(node: Context, r: Incoming, prompt: Prompt, decision: Decision) -> Ranking:
    """getBestNode: the candidates, best first. Synchronous, hence atomic."""
    policy = r.policy or node.config.routing.policy
    now = trio.current_time()
    ranking = rank(
        node.view,
        prompt,
        node.own_state(),
        policy=policy,
        config=node.config.routing,
        now=now,
        turn=node.turn,
        draw=node.rng.random(),
        target=r.target,
        rents=node.rents,
    )
    if ranking.tenancy is not None:
        node.rents.note(
            ranking.tenancy,
            served_here=ranking.targets[0].is_me,
            residence_s=node.view.own.evictions.residence_s,
            now=now,
        )
    node.turn += 1
    node.retry_budget.request()
    decision.policy, decision.prompt_tokens, decision.ranking = policy, prompt.tokens, ranking
    return ranking


def _targets(node: Context, r: Incoming, ranking: Ranking) -> Iterator[Candidate]:
    """Whom to try, in order: a few peers while the retry budget lasts, and the own engine in any case."""
    if r.target is not None:
        if not ranking.targets:
            raise RequestError(
                f"x-peerinfer-target {r.target} is not a peer that can serve now; see /peerinfer/v1/peers",
                param="x-peerinfer-target",
                code="unknown_target",
            )
        yield from ranking.targets
        return
    order = list(ranking.targets[: node.config.request.attempts_max])
    if node.engine_ready and not any(candidate.is_me for candidate in order):
        order[-1] = next(candidate for candidate in ranking.targets if candidate.is_me)
    for place, candidate in enumerate(order):
        if candidate.is_me and not node.engine_ready:
            continue
        if place and not candidate.is_me and not node.retry_budget.try_retry():
            continue  # retries must not multiply an overload
        yield candidate


async def _begin(
    stack: AsyncExitStack,
    node: Context,
    r: Incoming,
    request: InferRequest,
    prompt: Prompt,
    k: Candidate,
    deadline: float,
) -> AsyncIterator[Chunk | End]:
    """Start on target k and wait for the first chunk; the stack then owns the rest.

    Raises `TargetFailedError` for a failure that the next target may do better with.
    """
    async with AsyncExitStack() as attempt:
        if k.is_me:  # line 6
            # Lines 7-13: the engine makes room, infers, updates its KV cache; its events update the tree.
            chunks = await attempt.enter_async_context(
                run_infer(node, request, prompt, expected_cached_tokens=k.expected_cached_tokens)
            )
        else:  # line 14
            # Lines 15-18: send, wait for the ack, and on success update the estimate of k's tree.
            chunks = await attempt.enter_async_context(send_request(node, r, prompt, k, deadline=deadline))
        try:
            with trio.fail_at(deadline):
                first = await anext(chunks)
        except StopAsyncIteration:
            raise TargetFailedError("failed") from None
        except trio.TooSlowError:
            raise RequestError(
                f"No answer within {node.config.request.deadline_s:g} s; try again when there is less to do.",
                status=504,
                code="deadline_exceeded",
            ) from None
        await stack.enter_async_context(attempt.pop_all())
    return _chain(first, chunks)


async def _chain(first: Chunk | End, rest: AsyncIterator[Chunk | End]) -> AsyncIterator[Chunk | End]:
    yield first
    async for item in rest:
        yield item


async def _until_end(
    node: Context, decision: Decision, chunks: AsyncIterator[Chunk | End], deadline: float
) -> AsyncIterator[Chunk | End]:
    """The chunks, then exactly one `End`; an answer that breaks off ends in an error, never in silence."""
    while True:
        try:
            with trio.fail_at(deadline):
                item = await anext(chunks)
        except trio.TooSlowError:
            raise _broken(node, decision, "exceeded the time limit of a request", status=504) from None
        except (TargetFailedError, StopAsyncIteration):
            raise _broken(node, decision, "failed after its first token", status=502) from None
        if isinstance(item, End):
            decision.cached_tokens = item.cached_tokens
            decision.ended_at = trio.current_time()
            yield item
            return
        yield item


def _broken(node: Context, decision: Decision, what: str, *, status: int) -> RequestError:
    """Noted here, since whoever reads the answer may catch it inside its block."""
    error = RequestError(
        f"The node that served this answer ({decision.chosen}) {what}; send the request again.",
        status=status,
        code="stream_broken",
    )
    decision.attempts[-1].outcome = "broken"
    _fail(node, decision, error)
    return error


def _stop_before_it_harms_more(decision: Decision) -> None:
    """A request that engines die of must not go through the swarm: raises `RequestError` after a few."""
    failed = sum(attempt.outcome == "failed" for attempt in decision.attempts)
    if failed >= ENGINE_FAILURES_MAX:
        raise RequestError(
            f"{failed} engines failed at this request one after the other; it is not tried on another.",
            status=502,
            code="engine_failed",
        )


def _nobody(node: Context) -> RequestError:
    """Nobody could answer: say whether waiting helps."""
    why = f"this node's engine is {node.engine_state}, and no peer could serve the request"
    if node.engine_ready:
        why = f"{node.engine.load().queued} requests wait here, and no peer could serve the request"
    return RequestError(
        f"No node can answer now: {why}. Try again soon.",
        status=503,
        code="no_node_available",
        retry_after_s=1.0,
    )


def _fail(node: Context, decision: Decision, error: Exception) -> None:
    """Note once what a request ended with; a request that was wrong itself is no failure of ours."""
    if decision.error is not None:
        return
    decision.error = error.message if isinstance(error, RequestError) else repr(error)
    decision.ended_at = trio.current_time()
    if not isinstance(error, RequestError) or error.status >= 500:
        node.requests["failed"] += 1


@contextmanager
def _kept(node: Context, decision: Decision) -> Iterator[None]:
    """Keeps the decision, and how it ended if that was before its end."""
    node.decisions.add(decision)
    try:
        yield
    except Exception as error:
        _fail(node, decision, error)
        raise
    finally:
        if decision.ended_at is None:
            decision.ended_at = trio.current_time()
            decision.error = decision.error or "cancelled"
