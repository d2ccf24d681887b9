"""What the JSON of a stream's chunk says, as far as joining two streams needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from peerinfer.core.types import Endpoint

Json = dict[str, object]

_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
"""Within a string of the JSON the quotes would be escaped."""
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


def ends_answer(sse_json: bytes) -> bool:
    """Whether a chunk says why an answer is over, or counts its tokens."""
    return _FINISHED.search(sse_json) is not None or _NO_CHOICES.search(sse_json) is not None


def says_something(sse_json: bytes) -> bool:
    """Whether a chunk brings a client anything but the role and empty strings; the unknown counts as that."""
    chunk = parsed(sse_json)
    choices = chunk.get("choices") if chunk is not None else None
    if not isinstance(choices, list):
        return True
    return any(_has_content(choice) for choice in choices)


def _has_content(choice: object) -> bool:
    if not isinstance(choice, Mapping):
        return True
    delta = choice.get("delta", choice)
    if not isinstance(delta, Mapping):
        return True
    return any(value for key, value in delta.items() if key not in ("role", "index"))


def parsed(sse_json: bytes) -> Json | None:
    """The chunk; None for what is no object."""
    try:
        chunk = json.loads(sse_json)
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def printed(chunk: Mapping[str, object]) -> bytes:
    """A chunk's bytes."""
    return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def finish_chunk(endpoint: Endpoint, envelope: Mapping[str, object], reason: str) -> bytes:
    """The chunk that says why an answer is over."""
    said: Json = {"delta": {}} if endpoint == "chat" else {"text": ""}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
    return printed({**envelope, "choices": [choice]})
