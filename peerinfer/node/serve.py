"""The other end of sendRequest: what a node does with an exchange that a peer opened.

A forwarded request is served here or refused within one round trip; it is never forwarded again. The
engine has it in its queue before it is accepted, so the load that the acceptance carries includes it.
Heartbeats go out while there is nothing to send: slow is not dead. A cancel frame, or a stream that
breaks, ends the work at the engine at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import trio

from peerinfer.core.frames import (
    Accept,
    Ask,
    Cancel,
    Data,
    EndFrame,
    ErrorFrame,
    Frame,
    Heartbeat,
    Refuse,
    RefuseCode,
    Request,
    Terminal,
    Wait,
)
from peerinfer.core.types import Chunk, Given, Holding, InferRequest, PageKey, RequestError
from peerinfer.node.context import Context, log
from peerinfer.node.decisions import Attempt, Decision
from peerinfer.node.ports import Call, EngineAwayError, EngineError, PeerLostError

WHOLE_PIECE_BYTES = 1024 * 1024
"""A whole answer travels in pieces of this size: a node need not read frames longer than its own bodies."""


async def serve_call(node: Context, call: Call, opening: Request | Ask) -> None:
    """Serve one exchange; returns after exactly one terminal frame was sent, or the peer is lost."""
    try:
        if isinstance(opening, Ask):
            await call.send(_answer_ask(node, call, opening))
        elif refusal := _refusal(node, call, opening):
            await call.send(refusal)
        else:
            with node.at_work.one_of(call.peer, _given(node, opening)):
                await _Service(node, call, opening).run()
    except* PeerLostError:
        pass  # nobody is left to answer


def _answer_ask(node: Context, call: Call, ask: Ask) -> Wait:
    """The true wait here, and what this node knows of the asker."""
    stamp = node.stamp()
    return Wait(
        id=ask.id,
        wait_s=node.own_wait_s(),
        incarnation=stamp.incarnation,
        seq=stamp.seq,
        load=node.told_load(),
        yours=node.at_work.given(call.peer),
        holding=_holding(node, ask.keys) if ask.keys else None,
        known_incarnation=node.view.known_incarnation(call.peer),
    )


def _holding(node: Context, keys: Sequence[PageKey]) -> Holding:
    """What is here of a prompt, or will be when its turn comes."""
    cached = node.view.own.match_prefix(keys)
    return Holding(cached, node.view.own_in_flight.match_prefix(keys, cached))


def _refusal(node: Context, call: Call, request: Request) -> Refuse | None:
    """Why this request is not for this node; None if it is."""
    load = node.engine.load()
    if request.fingerprint != node.fingerprint:
        return _refuse(node, call, request, "wrong_model", "this node serves another model or page size")
    if node.draining:
        return _refuse(node, call, request, "draining", "this node is about to leave")
    if not node.engine_ready:
        return _refuse(node, call, request, "not_ready", f"the engine is {node.engine_state}")
    if load.queued >= node.config.request.queued_per_slot_max * load.slots:
        return _refuse(node, call, request, "overloaded", f"{load.queued} requests wait")
    if request.wait_at_most_s is not None:
        # What the same node gave later and came sooner is no reason: it knew of both.
        after = Given() if request.after is None else node.at_work.here(call.peer).minus(request.after)
        if node.own_wait_s(without=after) > request.wait_at_most_s:
            return _refuse(node, call, request, "slower", "the next best node is faster")
    return None


def _given(node: Context, request: Request) -> Given:
    """What the entry node reckons with; it counts the same (node/forward.py). A prompt longer than that is
    refused once it is read; until then its length is a stranger's word, and in the load that all are told."""
    info = node.engine.info
    prompt_tokens = min(request.prompt_pages * info.page_size, info.context_tokens_max)
    return Given(1, max(0, prompt_tokens - request.expected_cached_tokens))


def _refuse(node: Context, call: Call, request: Request, code: RefuseCode, message: str) -> Refuse:
    stamp = node.stamp()
    return Refuse(
        id=request.id,
        code=code,
        message=message,
        wait_s=node.own_wait_s(),
        incarnation=stamp.incarnation,
        seq=stamp.seq,
        load=node.told_load(),
        yours=node.at_work.given(call.peer),
    )


class _Service:
    """One forwarded request at the node that serves it."""

    def __init__(self, node: Context, call: Call, opening: Request) -> None:
        self._node, self._call, self._opening = node, call, opening
        self._last_sent_at = trio.current_time()
        self._given = _given(node, opening)
        self._tokens = self._given.tokens
        self._keys: list[PageKey] = []
        self._is_settled = False
        node.view.forwarded(node.me, self._tokens)  # before the engine knows: others ask now
        self._decision = node.decisions.add(
            Decision(
                request_id=opening.id,
                role="serving",
                endpoint=opening.endpoint,
                entry=call.peer,
                chosen=node.me,
                expected_cached_tokens=opening.expected_cached_tokens,
                attempts=[Attempt(peer=node.me, outcome="failed")],
                started_at=trio.current_time(),
            )
        )

    async def run(self) -> None:
        """Work until the end, a cancel frame, or the entry node's deadline; then the terminal frame."""
        terminal: Terminal = ErrorFrame(
            id=self._opening.id, code="cancelled", message="cancelled by the peer"
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.deadline = trio.current_time() + self._opening.time_left_s
                nursery.start_soon(self._watch_cancel, nursery.cancel_scope)
                terminal = await self._answer(nursery)
                nursery.cancel_scope.cancel()
        finally:  # also when the entry node is gone
            node, tokens = self._node, self._tokens
            node.view.ended(node.me, tokens, self._keys, was_settled=self._is_settled)
            node.at_work.found(self._call.peer, self._given.tokens - tokens)
            self._node.load_changed()
            self._close(terminal)
        await self._call.send(terminal)

    async def _answer(self, nursery: trio.Nursery) -> Terminal:
        """Infer and stream; the terminal frame that ends it."""
        node, opening = self._node, self._opening
        try:
            body = _parse(opening.body, model=node.engine.info.model)
            token_ids, keys = await self._tokenise(body)
            request = InferRequest(
                id=opening.id,
                endpoint=opening.endpoint,
                body=body,
                raw=opening.body,
                token_ids=token_ids,
                answered_token_ids=opening.answered_token_ids,
                expected_cached_tokens=self._promised(token_ids, keys),
            )
            self._count(len(token_ids or ()) - request.expected_cached_tokens, keys)
            async with node.engine.run_infer(request) as items:  # lines 7-13, at the peer
                node.view.settled(node.me, self._tokens)  # the engine's load tells it from here on
                self._is_settled = True
                stamp = node.stamp()
                node.load_changed()
                await self._send(
                    Accept(
                        id=opening.id,
                        incarnation=stamp.incarnation,
                        seq=stamp.seq,
                        load=node.told_load(),
                        yours=node.at_work.given(self._call.peer),
                    )
                )
                nursery.start_soon(self._heartbeats)
                async for item in items:
                    if not isinstance(item, Chunk):
                        node.view.own.touch(keys, now=trio.current_time())
                        self._decision.cached_tokens = item.cached_tokens
                        break
                    self._decision.first_chunk_at = self._decision.first_chunk_at or trio.current_time()
                    for frame in _data(opening.id, item):
                        await self._send(frame)
                else:
                    raise EngineError("the engine's answer has no end")
            stamp = node.stamp()  # after the engine has let go, so that the load no longer counts it
            return EndFrame(
                id=opening.id,
                usage=item.usage,
                cached_tokens=item.cached_tokens,
                incarnation=stamp.incarnation,
                tree_version=stamp.tree_version,
                seq=stamp.seq,
                load=node.told_load(),
                yours=node.at_work.given(self._call.peer).minus(self._given),
            )
        except RequestError as error:
            return Refuse(
                id=opening.id,
                code="bad_request" if error.status < 500 else "overloaded",
                message=error.message,
                status=error.status,
                param=error.param,
                error_code=error.code,
            )
        except EngineAwayError as error:
            return self._not_ready(str(error))
        except EngineError as error:
            log.warning("engine=%s failed: %s", node.engine.info.kind, error)
            return ErrorFrame(id=opening.id, code="engine_failed", message=str(error))
        except PeerLostError:
            raise
        except Exception:  # a bug costs this request, and neither the stream nor the node
            log.exception("peer=%s request=%s could not be served", self._call.peer, opening.id)
            return ErrorFrame(id=opening.id, code="internal_error", message="the serving node failed")

    async def _tokenise(self, body: Mapping[str, object]) -> tuple[tuple[int, ...] | None, list[PageKey]]:
        tokenizer, answered = self._node.tokenizer, self._opening.answered_token_ids
        token_ids = None if tokenizer is None else await tokenizer.encode(self._opening.endpoint, body)
        if tokenizer is None or token_ids is None:
            if answered:
                raise EngineAwayError("this node cannot tell which tokens the answer so far follows")
            return None, []
        if answered:  # a peer's numbers: the tokeniser refuses those that are no tokens
            await tokenizer.encode("completions", {"prompt": list(answered)})
            token_ids += answered
        self._decision.prompt_tokens = len(token_ids)
        return token_ids, self._node.hasher.keys(token_ids)

    def _promised(self, token_ids: Sequence[int] | None, keys: Sequence[PageKey]) -> int:
        """What is cached, or will be when its turn comes; the entry node could only estimate it. A prompt's
        last token is always computed."""
        size = self._node.hasher.page_size
        cacheable = max(0, len(token_ids or ()) - 1) // size * size
        return min(cacheable, _holding(self._node, keys).coming_pages * size)

    async def _watch_cancel(self, scope: trio.CancelScope) -> None:
        """The only frame an entry node may send now is a cancel; its stream's end ends everything."""
        frame = await self._call.receive()
        if not isinstance(frame, Cancel):
            self._node.drop("request", self._call.peer, f"unexpected {type(frame).__name__}")
        scope.cancel()

    async def _heartbeats(self) -> None:
        interval = self._node.config.request.heartbeat_interval_s
        while True:
            await trio.sleep_until(self._last_sent_at + interval)
            if trio.current_time() >= self._last_sent_at + interval:
                await self._send(Heartbeat(id=self._opening.id))

    async def _send(self, frame: Frame) -> None:
        await self._call.send(frame)
        self._last_sent_at = trio.current_time()

    def _count(self, tokens: int, keys: list[PageKey]) -> None:
        """Now that the prompt was read, what is to be computed is known, and what it will leave behind."""
        view, me = self._node.view, self._node.me
        self._node.at_work.found(self._call.peer, tokens - self._tokens)
        view.ended(me, self._tokens, was_settled=False)
        self._tokens, self._keys = tokens, keys
        view.forwarded(me, tokens, keys)

    def _not_ready(self, message: str) -> Refuse:
        """This request is over, so what its peer is told does not count it."""
        refusal = _refuse(self._node, self._call, self._opening, "not_ready", message)
        return replace(refusal, yours=self._node.at_work.given(self._call.peer).minus(self._given))

    def _close(self, terminal: Terminal) -> None:
        decision = self._decision
        decision.ended_at = trio.current_time()
        if isinstance(terminal, EndFrame):
            decision.attempts[0].outcome = "served"
            self._node.requests["served_for_peers"] += 1
        elif isinstance(terminal, Refuse | ErrorFrame):
            decision.error = terminal.message
        self._node.ended(decision)


def _data(request_id: str, chunk: Chunk) -> Iterator[Data]:
    """A chunk as frames: one, unless it is a whole answer, which may be longer than a frame."""
    json_bytes = chunk.sse_json
    if not chunk.whole:
        yield Data(id=request_id, sse_json=json_bytes, text=chunk.text, token_ids=chunk.token_ids)
        return
    text = chunk.text
    for begin in range(0, len(json_bytes), WHOLE_PIECE_BYTES):
        piece = json_bytes[begin : begin + WHOLE_PIECE_BYTES]
        yield Data(id=request_id, sse_json=piece, text=text, whole=True)
        text = ""


def _parse(body: bytes, *, model: str) -> dict[str, object]:
    """The client's body with the model's name here; the bytes come from a peer, so trust nothing."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the forwarded body is not JSON", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise RequestError("the forwarded body is not a JSON object", code="invalid_json")
    return {**parsed, "model": model}
