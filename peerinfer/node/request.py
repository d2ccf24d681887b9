"""Algorithm 1 of the paper, SendRequest(r, i): what node i does with an incoming request r.

Read `handle_request` and then `_send` top to bottom, with the paper's line numbers beside them. Between
reading the view and choosing a target there is no `await`, so each decision is atomic; where a wait may be
long, the best are asked first (core/asking.py). A target that fails before its first token is followed by the
next best, the own engine last (paper §3.3); after one that fails later the answer goes on elsewhere from what
the client has (node/continuation.py), by the same lines. A request that a peer forwarded to us does not come
here: it is served where it arrived (node/serve.py), so no request takes two hops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from peerinfer.config import RoutingConfig
from peerinfer.core.asking import margin_s, wait_at_most_s, worth_asking
from peerinfer.core.router import NOTHING_TOLD, Candidate, Prompt, Ranking, rank
from peerinfer.core.types import EngineState, Holding, InferRequest, PeerId, RequestError
from peerinfer.node.ask import ask_all
from peerinfer.node.context import Context
from peerinfer.node.continuation import Serving, answer_of, first_item, read_prompt
from peerinfer.node.decisions import Attempt, Decision
from peerinfer.node.forward import TargetFailedError, send_request
from peerinfer.node.hindsight import note_first
from peerinfer.node.local import run_infer
from peerinfer.node.outcome import (
    check_length,
    kept,
    leaving,
    may_harm,
    met_failures,
    nobody,
    stop_before_it_harms_more,
)
from peerinfer.node.reply import Incoming, Reply

PAUSE_S = 0.5
"""Between two rounds through the targets, while all of them are away."""


@asynccontextmanager
async def handle_request(node: Context, r: Incoming) -> AsyncIterator[Reply]:
    """Answer a client's request here or through the best peer.

    Entering returns when the first chunk is there. Leaving cancels whatever still works on it.

    Raises:
        RequestError: the request is wrong, or nobody can answer it.
    """
    if node.draining:
        raise leaving()
    node.requests["received"] += 1
    decision = Decision(
        request_id=r.id, role="entry", endpoint=r.endpoint, entry=node.me, started_at=trio.current_time()
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(kept(node, decision))
        request = InferRequest(id=r.id, endpoint=r.endpoint, body=r.body, raw=r.raw)
        request, prompt = await read_prompt(node, request)  # lines 1-2
        check_length(node, request)
        send = partial(_send, stack, node, r, decision)
        serving = await send(request, prompt)  # lines 3-19
        k = serving.k
        decision.first_chunk_at = trio.current_time()
        node.requests["served_local" if k.is_me else "forwarded"] += 1
        yield Reply(  # line 20
            request_id=r.id,
            served_by=k.peer,
            route="local" if k.is_me else "forwarded",
            expected_cached_tokens=k.expected_cached_tokens,
            chunks=answer_of(node, request, decision, serving, send),
        )


async def _send(
    stack: AsyncExitStack,
    node: Context,
    r: Incoming,
    decision: Decision,
    request: InferRequest,
    prompt: Prompt,
) -> Serving:
    """Whoever answers first: the best target, or the next best if it fails. The stack owns what it opens.

    Raises `RequestError` if the request is wrong, or nobody can answer it within the patience.
    """
    patient_until = trio.current_time() + node.config.request.patience_s
    while True:
        ranking = await _get_best_nodes(node, r, prompt, decision)  # lines 3-5
        for k in _targets(node, r, ranking, decision):  # line 5's k, then §3.3's next best
            attempt = Attempt(peer=k.peer, outcome="failed")
            decision.attempts.append(attempt)
            decision.chosen, decision.expected_cached_tokens = k.peer, k.expected_cached_tokens
            try:
                serving = await _begin(stack, node, request, prompt, k, decision)  # lines 6-19
            except TargetFailedError as failure:
                attempt.outcome = failure.outcome
                if failure.outcome == "slower":
                    break  # nothing failed: with what it has just told, another is the best
                stop_before_it_harms_more(node, decision)
                continue
            except RequestError:
                attempt.outcome = "refused"
                raise
            attempt.outcome = "served"
            return serving
        else:
            coming = node.engine_state is EngineState.LOADING and len(node.view) > 0
            away = node.engine_state in (EngineState.RESTARTING, EngineState.FAILING)
            passing = met_failures(decision) or coming or away
            patient = r.target is None and passing
            if not patient or trio.current_time() >= patient_until:
                raise nobody(node)
            await trio.sleep(PAUSE_S)


async def _get_best_nodes(node: Context, r: Incoming, prompt: Prompt, decision: Decision) -> Ranking:
    """getBestNode: the candidates, best first; after asking the best where that is worth a round trip."""
    policy, routing = r.policy or node.config.routing.policy, node.config.routing
    ranking = _rank(node, r, prompt, policy, routing)
    if policy == "cost" and r.target is None:
        refused = _refused(decision)
        was_refused = refused > 0 and decision.attempts[-1].outcome == "slower"
        peers = worth_asking(
            ranking.targets, routing, prompt_tokens=prompt.tokens or 0, was_refused=was_refused
        )
        if peers:
            decision.asked = peers
            told = await ask_all(node, peers, prompt)
            if refused:
                routing = replace(
                    routing, forward_margin_s=margin_s(routing, ranking.targets, refused=refused)
                )
            ranking = _rank(node, r, prompt, policy, routing, told)
    if ranking.tenancy is not None:
        node.rents.note(
            ranking.tenancy,
            served_here=ranking.targets[0].is_me,
            residence_s=node.view.own.evictions.residence_s,
            now=trio.current_time(),
        )
    if decision.ranking is None:
        node.turn += 1
        if policy == "cost" and r.target is None and prompt.tokens is not None:
            best = ranking.targets[0]
            node.view.crowding.note(busy_share=ranking.busy_share, prefill_s=best.prefill_s)
        node.retry_budget.request()
    if decision.first_chunk_at is None:
        decision.policy, decision.prompt_tokens, decision.ranking = policy, prompt.tokens, ranking
    return ranking


def _rank(
    node: Context,
    r: Incoming,
    prompt: Prompt,
    policy: str,
    routing: RoutingConfig,
    told: Mapping[PeerId, Holding] = NOTHING_TOLD,
) -> Ranking:
    """One look at the view. Synchronous, hence atomic."""
    return rank(
        node.view,
        prompt,
        node.own_state(),
        policy=policy,
        config=routing,
        now=trio.current_time(),
        turn=node.turn,
        draw=node.rng.random(),
        target=r.target,
        rents=node.rents,
        told=told,
    )


def _targets(node: Context, r: Incoming, ranking: Ranking, decision: Decision) -> Iterator[Candidate]:
    """Whom to try, in order: a few peers while the retry budget lasts, and the own engine in any case. Who
    has just broken the answer off comes last, even the own engine."""
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
    if decision.attempts and decision.attempts[-1].outcome == "broken":
        order.sort(key=lambda candidate: candidate.peer == decision.attempts[-1].peer)
    for place, candidate in enumerate(order):
        if (candidate.is_me and not node.engine_ready) or may_harm(decision, candidate):
            continue
        if place and not candidate.is_me and not node.retry_budget.try_retry():
            continue  # retries must not multiply an overload
        yield candidate


async def _begin(
    stack: AsyncExitStack,
    node: Context,
    request: InferRequest,
    prompt: Prompt,
    k: Candidate,
    decision: Decision,
) -> Serving:
    """Start on target k and wait for the first chunk; the stack then owns the rest.

    Raises `TargetFailedError` for a failure that the next target may do better with.
    """
    deadline = decision.started_at + node.config.request.deadline_s
    begun_at = trio.current_time()
    async with AsyncExitStack() as attempt:
        if k.is_me:  # line 6
            # Lines 7-13: the engine makes room, infers, updates its KV cache; its events update the tree.
            chunks = await attempt.enter_async_context(run_infer(node, request, prompt, k))
        else:  # line 14
            # Lines 15-18: send, wait for the ack, and on success update the estimate of k's tree.
            limit_s = _wait_at_most_s(node, k, decision)
            chunks = await attempt.enter_async_context(
                send_request(node, request, prompt, k, deadline=deadline, wait_at_most_s=limit_s)
            )
        first = await first_item(node, k, chunks, deadline=deadline)
        note_first(node, k, decision, first, begun_at=begun_at)
        opened = await stack.enter_async_context(attempt.pop_all())
    return Serving(k=k, first=first, chunks=chunks, close=opened.aclose, deadline=deadline)


def _refused(decision: Decision) -> int:
    """How many peers have said that another is faster."""
    return sum(attempt.outcome == "slower" for attempt in decision.attempts)


def _wait_at_most_s(node: Context, k: Candidate, decision: Decision) -> float | None:
    """How long a peer may have the request wait; None once it was refused often enough, or has begun."""
    ranking = decision.ranking
    asks = decision.policy == "cost" and decision.first_chunk_at is None
    if (
        ranking is None
        or not asks
        or k is not ranking.targets[0]
        or _refused(decision) >= node.config.routing.slower_max
    ):
        return None
    return wait_at_most_s(k, ranking.targets)
