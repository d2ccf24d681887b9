"""sendRequest(req, k): one request to one peer, and its answer back. Algorithm 1, lines 15-18.

What the peer says along the way (its load, its wait, the version of its tree) is taken into the view at
once: it is fresher than any snapshot. A peer that is silent beyond a deadline, refuses, or breaks off
raises `TargetFailedError`, and the caller tries the next target (paper §3.3). A caller that goes away
sends a cancel frame, and leaves the stream only after the peer has confirmed or a grace has passed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import trio

from peerinfer.core.frames import (
    Accept,
    Cancel,
    Data,
    EndFrame,
    ErrorFrame,
    Frame,
    Heartbeat,
    Refuse,
    Request,
    Terminal,
)
from peerinfer.core.router import Candidate, Prompt
from peerinfer.core.types import Chunk, End, InferRequest, RequestError
from peerinfer.node.context import Context
from peerinfer.node.ports import Call, PeerLostError

REFUSED_WAIT_S = 0.5
"""A peer that refused is left alone at least this long."""
FAILED_WAIT_S = 1.0
"""A peer that failed or could not be reached is left alone this long at first. It may be known by gossip
through others only, or its engine may fail at every request while it looks idle."""


class TargetFailedError(Exception):
    """This target did not serve the request; another one may."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@asynccontextmanager
async def send_request(
    node: Context,
    request: InferRequest,
    prompt: Prompt,
    k: Candidate,
    *,
    deadline: float,
    wait_at_most_s: float | None = None,
) -> AsyncIterator[AsyncIterator[Chunk | End]]:
    """Have peer k serve the request; it may work on it until `deadline`, on trio's clock.

    It has the last word: it refuses what would wait there for longer than `wait_at_most_s`.

    Raises:
        TargetFailedError: k is lost, silent, overloaded, draining or failed.
        RequestError: k says that the request itself is wrong.
    """
    exchange = _Exchange(node, prompt, k)
    try:
        async with AsyncExitStack() as stack:
            with exchange.failing(silent_after_s=node.config.request.open_timeout_s):
                call = await stack.enter_async_context(node.overlay.open_call(k.peer))
            try:
                await exchange.open(call, request, deadline=deadline, wait_at_most_s=wait_at_most_s)
                yield exchange.chunks(call)
            finally:
                if not exchange.over:
                    await exchange.cancel(call, request.id)
    finally:
        exchange.end()


class _Exchange:
    """The entry node's side of one exchange."""

    def __init__(self, node: Context, prompt: Prompt, k: Candidate) -> None:
        self.over = True
        """Nothing is to come: not sent yet, a terminal frame was received, or the peer is silent or lost."""
        self._node, self._prompt, self._peer = node, prompt, k.peer
        self._streams = False
        self._may_wait = True
        """However long: the peer has no say in whether another one is faster."""
        self._expected = k.expected_cached_tokens + k.in_flight_tokens
        self._tokens = max(0, len(prompt.keys) * node.hasher.page_size - self._expected)  # as the peer counts
        self._is_settled = self._ended = False
        self._after = node.view.given(k.peer)
        node.view.forwarded(k.peer, self._tokens, prompt.keys)  # at once: its word is a round trip away
        within_s = node.config.request.accept_timeout_s
        node.view.tried(k.peer, within_s=within_s, now=trio.current_time())

    @contextmanager
    def failing(self, *, silent_after_s: float) -> Iterator[None]:
        """A peer that is silent for too long, or lost, is a failed target."""
        try:
            with trio.fail_after(silent_after_s):
                yield
        except trio.TooSlowError:
            raise self._silent(silent_after_s) from None
        except PeerLostError:
            raise self._lost() from None

    async def open(
        self, call: Call, request: InferRequest, *, deadline: float, wait_at_most_s: float | None
    ) -> None:
        """Send the request and wait until it is accepted."""
        config = self._node.config.request
        sent_at = trio.current_time()
        self._may_wait = wait_at_most_s is None
        self._streams = request.body.get("stream") is True
        with self.failing(silent_after_s=config.accept_timeout_s):
            await call.send(
                Request(
                    id=request.id,
                    endpoint=request.endpoint,
                    body=request.raw,
                    fingerprint=self._node.fingerprint,
                    prompt_pages=len(self._prompt.keys),
                    expected_cached_tokens=self._expected,
                    time_left_s=max(0.0, deadline - sent_at),
                    wait_at_most_s=wait_at_most_s,
                    after=None if wait_at_most_s is None else self._after,
                    answered_token_ids=request.answered_token_ids,
                )
            )
            self.over = False
            frame = await call.receive()
        if not isinstance(frame, Accept):
            raise self._unserved(frame)
        self._node.view.observe_round_trip(self._peer, trio.current_time() - sent_at)
        self._is_settled = True  # the load that it just told includes this request
        if frame.yours is None:
            self._node.view.settled(self._peer, self._tokens)
        self._observe(frame)

    async def chunks(self, call: Call) -> AsyncIterator[Chunk | End]:
        """The answer as it comes."""
        while True:
            frame = await self._receive(call)
            match frame:
                case Data():
                    if frame.whole and self._streams:
                        raise self._misbehaved("a stream is not told in whole")
                    if not frame.whole and not _is_event(frame.sse_json):
                        raise self._misbehaved("a chunk is not JSON")
                    yield Chunk(
                        sse_json=frame.sse_json,
                        text=frame.text,
                        token_ids=frame.token_ids,
                        whole=frame.whole,
                    )
                case Heartbeat():
                    pass
                case EndFrame():
                    self._succeed(frame)
                    yield End(usage=frame.usage, cached_tokens=frame.cached_tokens)
                    return
                case _:
                    raise self._unserved(frame)

    async def _receive(self, call: Call) -> Frame:
        """The next frame: `failing`, spelled out since it is on the way of every token."""
        silent_after_s = self._node.config.request.silence_timeout_s
        try:
            with trio.CancelScope(deadline=trio.current_time() + silent_after_s):
                return await call.receive()
        except PeerLostError:
            raise self._lost() from None
        raise self._silent(silent_after_s)

    async def cancel(self, call: Call, request_id: str) -> None:
        """The client is gone: tell the peer, and leave the stream clean if it confirms in time."""
        with (
            trio.move_on_after(self._node.config.request.cancel_grace_s, shield=True),
            suppress(PeerLostError),
        ):
            await call.send(Cancel(id=request_id))
            while not isinstance(await call.receive(), Terminal):
                pass

    def end(self) -> None:
        """What this request adds to the peer's load is over, and so are its pages in flight."""
        if not self._ended:
            self._ended = True
            keys = self._prompt.keys
            self._node.view.ended(self._peer, self._tokens, keys, was_settled=self._is_settled)

    def _succeed(self, frame: EndFrame) -> None:
        self.over = True
        self.end()
        self._observe(frame)
        self._node.view.answered(self._peer)
        self._node.view.update_estimate(  # line 17
            self._peer,
            self._prompt.keys,
            incarnation=frame.incarnation,
            tree_version=frame.tree_version,
            now=trio.current_time(),
        )

    def _unserved(self, frame: Frame) -> Exception:
        """What a frame that is no answer means."""
        self.over = isinstance(frame, Terminal)
        self.end()
        match frame:
            case Refuse(code="bad_request"):
                return RequestError(
                    frame.message, status=frame.status, code=frame.error_code, param=frame.param
                )
            case Refuse(code="slower") if self._may_wait:
                return self._misbehaved("slower, of what may wait")
            case Refuse(code="slower"):
                self._observe(frame)  # all that is wrong with the peer is that it has this much to do
                return TargetFailedError("slower")
            case Refuse():
                self._observe(frame)
                now = trio.current_time()
                self._node.view.refused(self._peer, wait_s=max(frame.wait_s, REFUSED_WAIT_S), now=now)
                return TargetFailedError(frame.code)
            case ErrorFrame():
                self._node.view.unanswered(self._peer, wait_s=FAILED_WAIT_S, now=trio.current_time())
                return TargetFailedError("failed")
            case _:
                return self._misbehaved(f"unexpected {type(frame).__name__}")

    def _silent(self, silent_after_s: float) -> TargetFailedError:
        self.over = True
        self._node.view.unanswered(self._peer, wait_s=silent_after_s, now=trio.current_time())
        return TargetFailedError("timeout")

    def _lost(self) -> TargetFailedError:
        self.over = True
        self._node.view.unanswered(self._peer, wait_s=FAILED_WAIT_S, now=trio.current_time())
        return TargetFailedError("lost")

    def _misbehaved(self, what: str) -> TargetFailedError:
        """The two sides no longer agree on where they are: the stream is reset, the peer left alone."""
        self.over = True
        self._node.drop("request", self._peer, what)
        self._node.view.unanswered(self._peer, wait_s=FAILED_WAIT_S, now=trio.current_time())
        return TargetFailedError("protocol")

    def _observe(self, frame: Accept | Refuse | EndFrame) -> None:
        if frame.load is not None:
            self._node.view.observe_load(
                self._peer,
                frame.load,
                incarnation=frame.incarnation,
                seq=frame.seq,
                now=trio.current_time(),
                yours=frame.yours,
            )


def _is_event(chunk: bytes) -> bool:
    """Whether a chunk can go out to a client, who would choke on anything else: an object, on one line."""
    if b"\n" in chunk or b"\r" in chunk:
        return False
    try:
        return isinstance(json.loads(chunk.decode()), dict)
    except (ValueError, RecursionError):
        return False
