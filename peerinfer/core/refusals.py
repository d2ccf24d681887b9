"""What a client is told whose request cannot be answered by any node, in the same words on all of them."""

from __future__ import annotations

from peerinfer.core.types import Endpoint, RequestError


def context_length_exceeded(endpoint: Endpoint, *, tokens: str, limit: int) -> RequestError:
    """The prompt leaves no room for an answer; `tokens` says how many it has."""
    return RequestError(
        f"this model's maximum context length is {limit} tokens, prompt and answer together, "
        f"but the prompt has {tokens}",
        code="context_length_exceeded",
        param="messages" if endpoint == "chat" else "prompt",
    )
