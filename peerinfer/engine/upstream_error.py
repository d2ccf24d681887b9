"""What a server's refusal means for the node: the client's mistake, or a reason to serve it elsewhere.

OpenAI, vLLM and SGLang's streams wrap an error in `error`, SGLang's responses do not, and FastAPI says
`detail`. Messages, `param` and textual codes are kept. A number in `code` only repeats the status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from peerinfer.core.types import Endpoint, RequestError
from peerinfer.node.ports import EngineError

MESSAGE_CHARS_MAX = 1000  # guess: SGLang's longest has 600
_TOO_LONG = re.compile(r"maximum context length|model's context length", re.IGNORECASE)
_OURS = (401, 403, 407)
"""The node's own credentials are refused; no client can help that."""
_LATER = (408, 425, 429, 503)


def refusal(endpoint: Endpoint, status: int, payload: bytes) -> Exception:
    """The exception for a response that is no answer."""
    try:
        parsed = json.loads(payload)
    except (ValueError, RecursionError):
        parsed = payload.decode("utf-8", "replace")
    return _exception(endpoint, status, parsed)


def stream_error(endpoint: Endpoint, event: Mapping[str, object]) -> Exception | None:
    """The exception for an event within a stream, or for a whole answer; None if it is no error.

    An answer that is over because the server gave it up (it restarts, or takes new weights) says so where
    others say `stop`, with status 200: whoever takes that for the end has half an answer.
    """
    if _is_aborted(event):
        return EngineError("the server aborted the answer")
    if "error" not in event and event.get("object") != "error":
        return None
    inner = event.get("error", event)
    code = inner.get("code") if isinstance(inner, Mapping) else None
    status = code if type(code) is int and 400 <= code <= 599 else 500
    return _exception(endpoint, status, event)


def _is_aborted(event: Mapping[str, object]) -> bool:
    choices = event.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, Mapping) and choice.get("finish_reason") == "abort" for choice in choices
    )


def _exception(endpoint: Endpoint, status: int, parsed: object) -> Exception:
    fields: Mapping[str, object] = parsed if isinstance(parsed, Mapping) else {}
    inner = fields.get("error")
    if isinstance(inner, Mapping):
        fields = inner
    message = fields.get("message") or fields.get("detail") or inner or parsed
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str)
    text = text.strip()[:MESSAGE_CHARS_MAX] or f"status {status}"
    if status in _LATER:
        return RequestError(text, status=503, code="overloaded", retry_after_s=1.0)
    if status >= 500 or status < 400 or status in _OURS:
        return EngineError(f"the server answered {status}: {text}")
    code, param = fields.get("code"), fields.get("param")
    code = code if isinstance(code, str) else None
    param = param if isinstance(param, str) else None
    if _TOO_LONG.search(text):
        code = code or "context_length_exceeded"
        param = param or ("messages" if endpoint == "chat" else "prompt")
    return RequestError(text, status=status, code=code, param=param)
