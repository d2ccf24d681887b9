"""The JSON of stream chunks as OpenAI has them, for engines that speak no HTTP of their own.

Chunks are always stream-shaped, also when the body says `stream: false`: the HTTP face assembles whole
answers, adds the usage chunk where it is asked for, and ends the stream.
"""

from __future__ import annotations

import json
from typing import Literal

from peerinfer.core.types import Endpoint

FinishReason = Literal["stop", "length"]


class StreamShape:
    """One answer's chunks: same id, time and model in all; the first one of a chat carries the role."""

    def __init__(self, endpoint: Endpoint, *, request_id: str, model: str, created_s: int) -> None:
        self._chat = endpoint == "chat"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created_s,
            "model": model,
        }
        self._begun = False

    def text(self, text: str) -> bytes:
        """A chunk with a piece of the answer."""
        return self._chunk(text, None)

    def finish(self, reason: FinishReason, text: str = "") -> bytes:
        """The last chunk, which says why the answer ended, with the last of its text."""
        return self._chunk(text, reason)

    def _chunk(self, text: str, reason: FinishReason | None) -> bytes:
        choice: dict[str, object] = {"index": 0}
        if self._chat:
            choice["delta"] = self._delta(text)
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": reason}
        self._begun = True
        chunk = self._head | {"choices": [choice]}
        return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()

    def _delta(self, text: str) -> dict[str, str]:
        if not self._begun:
            return {"role": "assistant", "content": text}
        return {"content": text} if text else {}
