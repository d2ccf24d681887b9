"""One request at work in one of our own engines, and the answer as its reader sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import trio

from peerinfer.core.types import Chunk, End, Usage
from peerinfer.engine.openai_body import Options
from peerinfer.engine.stream_chunk import FinishReason, StreamShape
from peerinfer.engine.token_text import Released, TokenText
from peerinfer.node.ports import EngineError

IN_A_ROW_MAX = 64
"""Pieces of an answer that are given without letting others run: some milliseconds' worth of relaying."""


class Job:
    """A request's prompt, what is still to do for it, and the way to whoever reads the answer.

    Every method is a plain function: the channel has room for the longest possible answer, so a slow
    reader never holds up the engine.
    """

    def __init__(
        self, tokens: tuple[int, ...], options: Options, shape: StreamShape, *, context_tokens_max: int
    ) -> None:
        assert 0 < len(tokens) < context_tokens_max
        room = context_tokens_max - len(tokens)
        self.tokens = tokens
        self.options = options
        self.max_tokens = room if options.max_tokens is None else min(options.max_tokens, room)
        """The answer ends here at the latest: as asked for, or when the context is full."""
        self.running = False
        """Whether it holds a slot."""
        self.prefill_left: int | None = None
        """Prompt tokens still to be computed; None until the prompt was matched with the cache."""
        self.generated = 0
        """Tokens of the answer so far."""
        self.abort: Callable[[], None] | None = None
        """Stops what a worker thread is doing for this job right now."""
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self._shape = shape
        self._text = TokenText(options.stop)
        self._last: Released | None = None
        """The text before a stop string; its tokens may spell more."""
        # At most a chunk per token, one for text held back, the finish and the end.
        self._send, receive = trio.open_memory_channel[Chunk | End | Exception](room + 3)
        self.answer = Answer(receive)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer is over; None while it is not. A model's own end of text is the engine's to see."""
        if self._text.stopped:
            return "stop"
        return "length" if self.generated >= self.max_tokens else None

    def push(self, token_id: int, piece: bytes) -> None:
        """The answer's next token, and its bytes."""
        self.generated += 1
        released = self._text.feed(token_id, piece)
        if self._text.stopped:
            self._last = released
        elif released is not None:
            self._show(released)

    def finish(self, reason: FinishReason) -> None:
        """No more tokens: show what was held back and say why, at once: nobody could go on from between."""
        last = self._last if self._text.stopped else self._text.flush()
        text, token_ids = ("", None) if last is None else (last.text, last.token_ids)
        sse_json = self._shape.finish(reason, text)
        self._send.send_nowait(Chunk(sse_json=sse_json, text=text, token_ids=token_ids))

    def end(self, *, cached_tokens: int) -> None:
        """Everything is done, and the cache's events were told."""
        usage = Usage(prompt_tokens=len(self.tokens), completion_tokens=self.generated)
        self._send.send_nowait(End(usage=usage, cached_tokens=cached_tokens))

    def fail(self, error: Exception) -> None:
        """The reader gets this error in place of the rest of the answer."""
        self._send.send_nowait(error)

    def cancel(self) -> None:
        """Stop the work at once; `done` tells when it has stopped."""
        self.scope.cancel()
        if self.abort is not None:
            self.abort()

    def close(self) -> None:
        """Nobody works on this job any more."""
        self._send.close()
        self.done.set()

    def _show(self, released: Released) -> None:
        sse_json = self._shape.text(released.text)
        self._send.send_nowait(Chunk(sse_json=sse_json, text=released.text, token_ids=released.token_ids))


class Answer:
    """The reader's side: chunks, then one `End`; raises the error that came instead."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Chunk | End | Exception]) -> None:
        self._receive = receive
        self._over = False
        self._in_a_row = 0

    def __aiter__(self) -> AsyncIterator[Chunk | End]:
        return self

    async def __anext__(self) -> Chunk | End:
        if self._over:
            raise StopAsyncIteration
        try:
            item = await self._next()
        except trio.EndOfChannel:
            item = EngineError("the engine stopped before the answer was complete")
        self._over = not isinstance(item, Chunk)
        if isinstance(item, Exception):
            raise item
        return item

    async def _next(self) -> Chunk | End | Exception:
        """Without letting others run while there is more: what came together goes on together."""
        if self._in_a_row < IN_A_ROW_MAX:
            try:
                item = self._receive.receive_nowait()
            except trio.WouldBlock:
                pass
            else:
                self._in_a_row += 1
                await trio.lowlevel.checkpoint_if_cancelled()
                return item
        self._in_a_row = 0
        return await self._receive.receive()


class Refused:
    """The answer to a request that was refused at the door."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __aiter__(self) -> AsyncIterator[Chunk | End]:
        return self

    async def __anext__(self) -> Chunk | End:
        await trio.lowlevel.checkpoint()
        raise self._error
