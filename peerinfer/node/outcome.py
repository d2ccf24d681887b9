"""How a client's request ends when it does not end well, and the one place where that is noted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from peerinfer.core.refusals import context_length_exceeded
from peerinfer.core.router import Candidate
from peerinfer.core.types import InferRequest, PeerId, RequestError
from peerinfer.node.context import Context
from peerinfer.node.decisions import Decision

ENGINE_FAILURES_MAX = 2
"""So many engines that were there and failed at one request, and it may be the request: no other peer gets
it, and the own engine only if it was not among them. So a request kills three engines at most."""
RETRY_AFTER_S_MIN = 1.0
_PASSING = frozenset({"lost", "timeout", "failed", "not_ready", "protocol", "broken"})


@contextmanager
def kept(node: Context, decision: Decision) -> Iterator[None]:
    """Keeps the decision, and how it ended if that was before its end."""
    node.decisions.add(decision)
    try:
        yield
    except Exception as error:
        _note(node, decision, error)
        raise
    finally:
        if decision.ended_at is None:
            decision.ended_at = trio.current_time()
            decision.error = decision.error or "cancelled"
        node.ended(decision)


def stop_before_it_harms_more(node: Context, decision: Decision) -> None:
    """Ends a request that engines die of, before it goes through the swarm: raises `RequestError`.

    After a few engines only the own one is tried, once: it may be two others that are broken, and the one
    that a client chose for itself is the one that its request may harm.
    """
    failed = _engines_failed(decision)
    if len(failed) < ENGINE_FAILURES_MAX or (node.me not in failed and node.engine_ready):
        return
    raise RequestError(
        f"{len(failed)} engines failed at this request one after the other; it is not tried on another.",
        status=502,
        code="engine_failed",
    )


def may_harm(decision: Decision, k: Candidate) -> bool:
    """Whether target k is to be spared: a peer, after this request has met so many engines that failed."""
    return not k.is_me and len(_engines_failed(decision)) >= ENGINE_FAILURES_MAX


def _engines_failed(decision: Decision) -> list[PeerId]:
    """Whose engines failed since the last that brought a part of the answer: that one's end is no sign."""
    failed: list[PeerId] = []
    for attempt in decision.attempts:
        if attempt.outcome == "broken":
            failed.clear()
        elif attempt.outcome == "failed":
            failed.append(attempt.peer)
    return failed


def check_length(node: Context, request: InferRequest) -> None:
    """Refuse a prompt that no engine of this model has room for, before anybody else is troubled with it.

    Raises:
        RequestError: 400.
    """
    if not has_room(node, request):
        raise context_length_exceeded(
            request.endpoint,
            tokens=str(len(request.token_ids or ())),
            limit=node.engine.info.context_tokens_max,
        )


def has_room(node: Context, request: InferRequest) -> bool:
    """Whether the prompt leaves room for an answer; taken for granted while the engine cannot tell."""
    tokens, limit = len(request.token_ids or ()), node.engine.info.context_tokens_max
    return tokens < limit or not node.engine_ready


def leaving() -> RequestError:
    """This node takes no more clients: it finishes what it has, and ends."""
    return RequestError(
        "This node is shutting down; send the request to another one.",
        status=503,
        code="shutting_down",
        retry_after_s=RETRY_AFTER_S_MIN,
    )


def nobody(node: Context) -> RequestError:
    """Nobody could answer: say whether waiting helps."""
    why = f"this node's engine is {node.engine_state}, and no peer could serve the request"
    if node.engine_ready:
        why = f"{node.engine.load().queued} requests wait here, and no peer could serve the request"
    return RequestError(
        f"No node can answer now: {why}. Try again soon.",
        status=503,
        code="no_node_available",
        retry_after_s=max(RETRY_AFTER_S_MIN, node.own_wait_s()) if node.engine_ready else RETRY_AFTER_S_MIN,
    )


def too_late(node: Context) -> RequestError:
    """The request has lived as long as it may, and nothing of its answer is there."""
    return RequestError(
        f"No answer within {node.config.request.deadline_s:g} s; try again when there is less to do.",
        status=504,
        code="deadline_exceeded",
    )


def met_failures(decision: Decision) -> bool:
    """Whether something was in the way that passes, other than too much to do."""
    return any(attempt.outcome in _PASSING for attempt in decision.attempts)


def noted(node: Context, decision: Decision, error: RequestError) -> RequestError:
    """An answer that has begun ends in this. To be noted where it is raised, since whoever reads the answer
    may catch it inside its block."""
    _note(node, decision, error)
    return error


def _note(node: Context, decision: Decision, error: Exception) -> None:
    """Note once what a request ended with; one that was wrong itself is refused, no failure of ours."""
    if decision.error is not None:
        return
    decision.error = error.message if isinstance(error, RequestError) else repr(error)
    decision.ended_at = trio.current_time()
    refused = isinstance(error, RequestError) and error.status < 500
    node.requests["refused" if refused else "failed"] += 1
