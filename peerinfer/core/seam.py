"""Where one engine's answer ends and the next one's begins: how the second becomes a part of the first.

Its chunks get the first one's id, time and model, and lose their role; its usage counts what was answered
before as answer, not as prompt. A stop string may begin before the seam and end behind it, where an engine
streams text that may yet turn out to be one; the engine that goes on does not know how it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from peerinfer.core.stream_json import ends_answer, parsed, printed, says_something
from peerinfer.core.types import Chunk, End, Usage


class Seam:
    """One continuation. `envelope` surrounds the choices of the first engine's chunks."""

    def __init__(
        self,
        envelope: Mapping[str, object],
        *,
        before: str,
        stops: tuple[str, ...],
        count: int,
        prompt_tokens: int | None,
    ) -> None:
        """`count` tokens were answered before, the text `before`, to `prompt_tokens` if that is known."""
        self.count = count
        self._envelope = envelope
        self._prompt_tokens = prompt_tokens
        self._stops = stops
        self._reach = max(map(len, stops), default=1) - 1
        """So much text beyond the seam may still belong to a stop string that began before it."""
        self._text = before[len(before) - min(self._reach, len(before)) :]
        self._before = len(self._text)

    def stopped(self, text: str) -> bool:
        """Whether a stop string lies across the seam, now that this text follows."""
        if len(self._text) - self._before >= self._reach:
            return False
        self._text += text
        return any(0 <= self._text.find(stop) < self._before for stop in self._stops)

    def join(self, chunk: Chunk) -> Chunk | None:
        """The chunk as one of the first stream's; None if it only began a stream."""
        body = parsed(chunk.sse_json)
        if body is None:
            return chunk
        body.update({key: self._envelope[key] for key in self._envelope.keys() & body.keys()})
        choices = body.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict) and delta.pop("role", None) is not None and not delta.get("content"):
                delta.pop("content", None)  # with a stream's beginning comes a content, empty or not
        if isinstance(body.get("usage"), dict):
            body["usage"] = self._usage_json(body["usage"])  # type: ignore[arg-type]
        joined = replace(chunk, sse_json=printed(body))
        return joined if ends_answer(joined.sse_json) or says_something(joined.sse_json) else None

    def end(self, end: End) -> End:
        """The end, with the whole answer's counts."""
        prompt_tokens = self._prompt(end.usage.prompt_tokens)
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self.count + end.usage.completion_tokens)
        return End(usage=usage, cached_tokens=min(end.cached_tokens, prompt_tokens))

    def _prompt(self, told: int) -> int:
        return max(0, told - self.count) if self._prompt_tokens is None else self._prompt_tokens

    def _usage_json(self, usage: dict[str, object]) -> dict[str, object]:
        prompt_tokens, completion_tokens = (
            _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")
        )
        prompt_tokens = self._prompt(prompt_tokens)
        completion_tokens += self.count
        corrected = {
            **usage,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached_tokens = min(_count(details.get("cached_tokens")), prompt_tokens)
            corrected["prompt_tokens_details"] = {**details, "cached_tokens": cached_tokens}
        return corrected


def _count(value: object) -> int:
    return value if type(value) is int else 0
