"""From a model's tokens to text that may be shown: whole characters, and never a piece of a stop string.

Text is released in whole tokens, so that the released tokens spell exactly the released text and a broken
answer can be continued elsewhere from either. A token is held back while it ends within a character, or
while the text that it belongs to may turn out to be the beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may go out now, and the tokens that spell it."""

    text: str
    token_ids: tuple[int, ...]


class TokenText:
    """Feed it an answer's tokens; it returns what may be shown."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        """A stop string has appeared; the answer is over."""
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        """Held back; what was shown can hold no beginning of a stop string."""
        self._ends: list[tuple[int, int | None]] = []
        """Tokens held back, each with where in the text it ends; None where it ends within a character."""

    def feed(self, token_id: int, piece: bytes) -> Released | None:
        """Take the next token and its bytes."""
        assert not self.stopped
        self._text += self._decoder.decode(piece)
        whole = not self._decoder.getstate()[0]
        self._ends.append((token_id, len(self._text) if whole else None))
        found = [at for at in map(self._text.find, self._stops) if at >= 0]
        if found:
            self.stopped = True
            return self._release(min(found), partial=True)
        return self._release(self._certain(), partial=False)

    def flush(self) -> Released | None:
        """What is left when the answer has ended; an unfinished character is none."""
        return self._release(len(self._text), partial=True)

    def _certain(self) -> int:
        """Up to where the text cannot be the beginning of a stop string."""
        text = self._text
        for at in range(max(0, len(text) - max(map(len, self._stops), default=1) + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)

    def _release(self, until: int, *, partial: bool) -> Released | None:
        count, end = 0, 0
        for at, (_, token_end) in enumerate(self._ends, start=1):
            if token_end is not None and token_end <= until:
                count, end = at, token_end
        if partial:
            end = until
        if not end:
            return None  # tokens without text wait for text to go out with
        released = Released(self._text[:end], tuple(token for token, _ in self._ends[:count]))
        self._text = self._text[end:]
        self._ends = [(token, at and at - end) for token, at in self._ends[count:]]
        return released
