"""One request at a server, and the answer as its reader sees it."""

from __future__ import annotations

import contextlib

import trio

from peerinfer.core.types import Chunk, End, InferRequest
from peerinfer.engine.job import Answer
from peerinfer.engine.server_load import ServerLoad

ANSWER_ITEMS_MAX = 16384  # guess: a chunk a token; a reader that is slower than this holds the server up


class Flight:
    """A request on its way through a server, from the moment that the node handed it over."""

    def __init__(self, request: InferRequest, load: ServerLoad) -> None:
        self.request = request
        uncached_tokens = max(0, len(request.token_ids or ()) - request.expected_cached_tokens)
        self._counted = load.sent(uncached_tokens=uncached_tokens, now=trio.current_time())
        self.begun = False
        """Whether a part of the answer is there: then it cannot be given to another node any more."""
        self.rids: tuple[str, ...] = ()
        """What the server calls it, from when it is sent there."""
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self._send, receive = trio.open_memory_channel[Chunk | End | Exception](ANSWER_ITEMS_MAX)
        self._error: Exception | None = None
        self.answer = Answer(receive)

    async def send(self, item: Chunk | End) -> None:
        """The answer's next item."""
        if not self.begun:
            self.begun = True
            self._counted.first_token(now=trio.current_time())
        try:
            self._send.send_nowait(item)
        except trio.WouldBlock:
            await self._send.send(item)

    def answered(self, end: End) -> None:
        """The server is done with it."""
        now = trio.current_time()
        self._counted.first_token(now=now)
        self._counted.ended(now=now, completion_tokens=end.usage.completion_tokens)

    def fail(self, error: Exception) -> None:
        """The reader gets this error in place of the rest of the answer."""
        self._error = error

    def give_back(self, error: Exception) -> None:
        """Stop the work, because it will not be done here."""
        self.fail(error)
        self.scope.cancel()

    def close(self) -> None:
        """Nobody works on this request any more."""
        self._counted.ended(now=trio.current_time())
        if self._error is not None:
            # Where the channel is full, its end says that the answer is not complete.
            with contextlib.suppress(trio.WouldBlock):
                self._send.send_nowait(self._error)
        self._send.close()
        self.done.set()
