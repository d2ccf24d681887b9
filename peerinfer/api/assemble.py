"""Stream chunks put together: the one object that a client gets who did not ask for a stream.

Engines stream where they can (only then does a client that leaves free its slot at once), so the whole
`chat.completion` or `text_completion` is made here. Text is appended, lists are joined, tool calls are
merged by their index, and what a server adds beyond OpenAI's fields is kept: the last value that is not
null. `usage` is the engine's own where its stream ends with one, else made of the answer's `End`. Chunks
may come from a peer: what is no chunk raises `RequestError` 502.
"""

from __future__ import annotations

import json
import time

from peerinfer.core.types import Endpoint, RequestError, Usage

Json = dict[str, object]

DONE = b"data: [DONE]\n\n"

APPENDED = frozenset({"content", "reasoning_content", "reasoning", "refusal", "arguments", "text"})
"""String fields that come in pieces; every other string is whole."""


def sse(data: bytes) -> bytes:
    """One server-sent event.

    Raises:
        RequestError: 502; a line break in it would end the event early.
    """
    if b"\n" in data or b"\r" in data:
        raise bad_chunk("it has line breaks")
    return b"data: " + data + b"\n\n"


def usage_json(usage: Usage, cached_tokens: int) -> Json:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def has_usage(chunk: bytes | None) -> bool:
    """Whether the engine has ended its stream with the chunk of `usage` itself."""
    if chunk is None or b'"usage"' not in chunk:
        return False
    parsed = _parse(chunk)
    return parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict)


def usage_chunk(endpoint: Endpoint, last: bytes | None, usage: Json, *, request_id: str, model: str) -> bytes:
    """The chunk after the last one of a stream: no choices, only `usage`; its names are the last one's."""
    chunk = _parse(last) if last is not None else {}
    kind = "chat.completion.chunk" if endpoint == "chat" else "text_completion"
    whole = _envelope(endpoint, chunk, kind, request_id=request_id, model=model)
    return _dumped({**whole, "choices": [], "usage": usage})


class Assembler:
    """Makes one whole answer out of its chunks."""

    def __init__(self, endpoint: Endpoint, *, request_id: str, model: str) -> None:
        self._endpoint = endpoint
        self._request_id = request_id
        self._model = model
        self._first: Json = {}
        self._choices: dict[int, Json] = {}
        self._usage: Json = {}

    def add(self, sse_json: bytes) -> None:
        """Take the next chunk.

        Raises:
            RequestError: 502; it is not shaped as OpenAI's.
        """
        chunk = _parse(sse_json)
        for key, value in chunk.items():
            if self._first.get(key) is None:
                self._first[key] = value
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise bad_chunk("it has no choices")
        for choice in choices:
            if not isinstance(choice, dict) or not isinstance(choice.get("index"), int):
                raise bad_chunk("a choice has no index")
            self._add_choice(choice)

    def _add_choice(self, choice: Json) -> None:
        index = choice["index"]
        assert isinstance(index, int)
        whole = self._choices.get(index)
        if whole is None:
            whole = self._choices[index] = self._empty_choice(index)
        delta = choice.pop("delta", None)
        if self._endpoint == "chat" and delta is not None:
            if not isinstance(delta, dict):
                raise bad_chunk("its delta is no object")
            message = whole["message"]
            assert isinstance(message, dict)
            _merge(message, delta)
        _merge(whole, choice)

    def _empty_choice(self, index: int) -> Json:
        if self._endpoint == "chat":
            message: Json = {"role": "assistant", "content": None}
            return {"index": index, "message": message, "logprobs": None, "finish_reason": None}
        return {"index": index, "text": "", "logprobs": None, "finish_reason": None}

    def whole(self, usage: Json) -> bytes:
        """The whole answer as JSON; the engine's own word on its usage goes before `usage`."""
        usage = {**usage, **self._usage}
        kind = "chat.completion" if self._endpoint == "chat" else "text_completion"
        envelope = _envelope(
            self._endpoint, self._first, kind, request_id=self._request_id, model=self._model
        )
        if not self._choices:  # An answer of no tokens; clients read choices[0] even so.
            self._choices[0] = self._empty_choice(0)
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            _finish_tool_calls(choice)
        return _dumped({**envelope, "choices": choices, "usage": usage})


def _envelope(endpoint: Endpoint, chunk: Json, kind: str, *, request_id: str, model: str) -> Json:
    """What surrounds the choices; `request_id` and `model` stand in where the engine names none."""
    prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
    own: Json = {"id": f"{prefix}-{request_id}", "object": kind, "created": int(time.time()), "model": model}
    rest = {k: v for k, v in chunk.items() if k not in ("object", "choices", "usage") and v is not None}
    return {**own, **rest}


def _merge(whole: Json, piece: Json) -> None:
    for key, value in piece.items():
        old = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif key == "tool_calls":
            if not isinstance(value, list):
                raise bad_chunk("its tool calls are no list")
            _merge_tool_calls(whole, value)
        elif isinstance(value, str) and isinstance(old, str) and key in APPENDED:
            whole[key] = old + value
        elif isinstance(value, list) and isinstance(old, list):
            old.extend(value)
        elif isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        else:
            whole[key] = value


def _merge_tool_calls(message: Json, pieces: list[object]) -> None:
    calls = message.setdefault("tool_calls", {})
    if not isinstance(calls, dict):  # The engine sent it as null before.
        calls = message["tool_calls"] = {}
    for piece in pieces:
        if not isinstance(piece, dict) or not isinstance(piece.get("index"), int):
            raise bad_chunk("a tool call has no index")
        _merge(calls.setdefault(piece["index"], {}), piece)


def _finish_tool_calls(choice: Json) -> None:
    """Tool calls become a list in the order of their indices, without them, as OpenAI has it."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if isinstance(message, dict) and isinstance(calls, dict):
        ordered = [calls[index] for index in sorted(calls)]
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in ordered]


def _dumped(value: Json) -> bytes:
    """The JSON of an answer; a half of a surrogate pair, which has no UTF-8, stays the escape that it was."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _parse(sse_json: bytes) -> Json:
    try:
        chunk = json.loads(sse_json)
    except (ValueError, RecursionError):
        raise bad_chunk("it is not JSON") from None
    if not isinstance(chunk, dict):
        raise bad_chunk("it is no object")
    return chunk


def bad_chunk(why: str) -> RequestError:
    """A node sent what is no piece of an answer."""
    return RequestError(
        f"The node that serves this request sent a malformed piece of the answer ({why}).",
        status=502,
        code="malformed_answer",
    )
