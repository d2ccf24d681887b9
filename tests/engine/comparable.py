"""What two answers of SGLang to one request have in common.

Its ids and times differ, how many tokens come in one chunk is chance, and so is the order of several choices'
chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any


def told(answer: str) -> dict[str, Any]:
    """What is the same in every answer to one request."""
    parsed: dict[str, Any] = json.loads(re.sub("call_[0-9a-f]{24}", "call", answer))
    kept = {name: value for name, value in parsed.items() if name not in ("id", "created", "metadata")}
    usage = parsed.get("usage") or {}
    kept["usage"] = {name: value for name, value in usage.items() if value is not None}
    return kept


def chunks(stream: str) -> list[dict[str, Any]]:
    """A stream's chunks without what differs in each answer, and with its pieces of text put together."""
    found: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    for event in stream.split("\n\n"):
        if not event.startswith("data: {"):
            continue
        chunk = told(event.removeprefix("data: "))
        for whose, holder, key in (each for choice in chunk["choices"] for each in _texts(choice)):
            texts[whose] = texts.get(whose, "") + (holder.pop(key, None) or "")
        if chunk not in found:
            found.append(chunk)
    return [*sorted(found, key=json.dumps), {"texts": texts}]


def _texts(choice: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Where a choice has pieces of text: the answer's own, and the arguments of its calls."""
    piece = choice.get("delta", choice)
    yield str(choice["index"]), piece, "text" if "text" in piece else "content"
    for call in piece.get("tool_calls") or ():
        yield f"{choice['index']}, call {call['index']}", call["function"], "arguments"
