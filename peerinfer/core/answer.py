"""An answer as its client gets it: one stream, however many engines it takes.

Feed it what engines say; it returns what goes out. It notes what the client has, so that another engine can
go on from there (core/continuation.py), and makes what that one says the same stream (core/seam.py).

What would end the answer is held back until the engine's `End` is there, and so is a beginning that says
nothing: an engine that dies in between has not said it. An answer that could not be continued is held back
as a whole from a client that reads no stream: it can begin anew as long as nothing went out.
"""

from __future__ import annotations

from peerinfer.core.continuation import Answered, stops, uncarried
from peerinfer.core.seam import Seam
from peerinfer.core.stream_json import ends_answer, finish_chunk, parsed, says_something
from peerinfer.core.types import Chunk, End, InferRequest, Usage


class Answer:
    """See the module. node/continuation.py drives it."""

    def __init__(self, request: InferRequest) -> None:
        self.uncarried = uncarried(request.body)
        """What of the request, or of the answer so far, another engine could not know; None if nothing."""
        self.begun = False
        """Whether the client has any of it."""
        self.over = False
        """The end went out."""
        self._request = request
        self._holds_all = self.uncarried is not None and request.body.get("stream") is not True
        self._held: list[Chunk] = []
        self._first: Chunk | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] | None = []
        self._seam: Seam | None = None
        self._pieces_before = 0
        self._progressed = False

    @property
    def answered(self) -> Answered:
        """What the client has."""
        token_ids = None if self._token_ids is None else tuple(self._token_ids)
        return Answered(text="".join(self._texts), token_ids=token_ids, pieces=len(self._texts))

    def take(self, item: Chunk | End) -> list[Chunk | End]:
        """What goes out now that an engine said this."""
        if isinstance(item, End):
            self.over = True
            return [*self._held, self._seam.end(item) if self._seam else item]
        if self._seam is not None:
            if item.text and self._seam.stopped(item.text):
                return self.finish("stop")
            joined = self._seam.join(item)
            if joined is None:
                return []
            item = joined
        if self._holds(item):
            self._held.append(item)
            return []
        out: list[Chunk | End] = [*self._held, item]
        self._first = self._first or (self._held[0] if self._held else item)
        self._held.clear()
        self._note(item)
        return out

    def broke(self) -> bool:
        """The engine is gone: what was held back was never said. Did it bring a part of the answer?"""
        self._held.clear()
        progressed, self._progressed = self._progressed, False
        return progressed

    def goes_on(self, token_ids: tuple[int, ...] | None) -> None:
        """What comes next is from an engine that has prompt and answer so far as its prompt: these tokens."""
        prompt = self._request.token_ids
        counted = prompt is not None and token_ids is not None
        self._pieces_before = len(self._texts)
        self._seam = Seam(
            self._envelope(),
            before="".join(self._texts),
            stops=stops(self._request.body),
            count=max(0, len(token_ids or ()) - len(prompt or ())) if counted else len(self._texts),
            prompt_tokens=None if prompt is None else len(prompt),
        )

    @property
    def count(self) -> int:
        """The answer's tokens so far, as well as they can be told; a piece of text counts as one."""
        return (self._seam.count if self._seam else 0) + len(self._texts) - self._pieces_before

    def finish(self, reason: str) -> list[Chunk | End]:
        """The end of an answer that is whole, though no engine says so."""
        self.over = True
        sse_json = finish_chunk(self._request.endpoint, self._envelope(), reason)
        usage = Usage(prompt_tokens=len(self._request.token_ids or ()), completion_tokens=self.count)
        return [Chunk(sse_json=sse_json), End(usage=usage, cached_tokens=0)]

    def _holds(self, chunk: Chunk) -> bool:
        if chunk.whole or self._holds_all or ends_answer(chunk.sse_json):
            return True
        return not self.begun and not chunk.text and not says_something(chunk.sse_json)

    def _note(self, chunk: Chunk) -> None:
        self.begun = self._progressed = True
        if chunk.text:
            self._texts.append(chunk.text)
            if chunk.token_ids is None:
                self._token_ids = None
        elif says_something(chunk.sse_json):
            self.uncarried = self.uncarried or "an answer of more than text"
        if chunk.token_ids and self._token_ids is not None:
            self._token_ids += chunk.token_ids

    def _envelope(self) -> dict[str, object]:
        """What surrounds the choices in the stream that the client reads."""
        first = parsed(self._first.sse_json) if self._first is not None else None
        return {key: value for key, value in (first or {}).items() if key not in ("choices", "usage")}
