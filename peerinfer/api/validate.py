"""What the face checks in a completion's body: the types of the fields that it or the router reads.

The rest travels as it came, and the engine that serves it says what it cannot do. Ranges that differ
between engines (temperature, the context's length) are the engine's to check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn, TypeGuard

from peerinfer.api.errors import BadRequestError
from peerinfer.core.types import Endpoint, RequestError

Body = Mapping[str, object]

COUNTS = ("max_tokens", "max_completion_tokens", "n")
NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def check_body(endpoint: Endpoint, body: Body, *, models: list[str]) -> None:
    """Let a body pass that is shaped as OpenAI's endpoint has it.

    Raises:
        RequestError: 400 with `param`, or 404 for a model that is not served.
    """
    _check_model(body, models)
    if endpoint == "chat":
        _check_messages(body)
    else:
        _check_prompt(body)
    _check_stream(body)
    for name in COUNTS:
        value = body.get(name)
        if value is not None and not (_is_int(value) and value >= 1):
            _refuse(name, "must be a whole number of at least 1")
    for name in NUMBERS:
        value = body.get(name)
        if value is not None and not _is_number(value):
            _refuse(name, "must be a number")
    if body.get("seed") is not None and not _is_int(body["seed"]):
        _refuse("seed", "must be a whole number")
    _check_stop(body)


def include_usage(body: Body) -> bool:
    """Whether the client of a stream asked for the chunk with `usage`."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _check_model(body: Body, models: list[str]) -> None:
    model = body.get("model")
    served = ", ".join(f"`{name}`" for name in models) or "none yet"
    if model is None:
        _refuse("model", f"is missing; this node serves: {served}")
    if not isinstance(model, str):
        _refuse("model", f"must be a string; this node serves: {served}")
    if model not in models:
        raise RequestError(
            f"The model {model[:200]!r} does not exist here; this node serves: {served}",
            status=404,
            code="model_not_found",
            param="model",
        )


def _check_messages(body: Body) -> None:
    messages = body.get("messages")
    if messages is None:
        _refuse("messages", "is missing")
    if not isinstance(messages, list) or not messages:
        _refuse("messages", "must be a list of at least one message")
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            _refuse(at, "must be an object")
        if not isinstance(message.get("role"), str):
            _refuse(f"{at}.role", "must be a string")
        content = message.get("content")
        if isinstance(content, list):
            _check_parts(f"{at}.content", content)
        elif content is not None and not isinstance(content, str):
            _refuse(f"{at}.content", "must be a string or a list of content parts")


def _check_parts(at: str, parts: list[object]) -> None:
    for i, part in enumerate(parts):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            _refuse(f"{at}[{i}]", "must be an object with a `type`")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            _refuse(f"{at}[{i}].text", "must be a string")


def _check_prompt(body: Body) -> None:
    prompt = body.get("prompt")
    if prompt is None:
        _refuse("prompt", "is missing")
    if isinstance(prompt, str):
        return
    if isinstance(prompt, list) and prompt:
        if _is_strings(prompt) or _is_tokens(prompt):
            return
        if all(isinstance(item, list) and item and _is_tokens(item) for item in prompt):
            return
    _refuse("prompt", "must be a string, or a list of strings or of token ids that is not empty")


def _check_stream(body: Body) -> None:
    stream, options = body.get("stream"), body.get("stream_options")
    if stream is not None and not isinstance(stream, bool):
        _refuse("stream", "must be true or false")
    if options is None:
        return
    if not isinstance(options, dict):
        _refuse("stream_options", "must be an object")
    if not stream:
        _refuse("stream_options", "is only allowed when `stream` is true")
    usage = options.get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        _refuse("stream_options.include_usage", "must be true or false")


def _check_stop(body: Body) -> None:
    stop = body.get("stop")
    if stop is not None and not isinstance(stop, str) and not (isinstance(stop, list) and _is_strings(stop)):
        _refuse("stop", "must be a string or a list of strings")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_strings(items: list[object]) -> bool:
    return all(isinstance(item, str) for item in items)


def _is_tokens(items: list[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in items)


def _refuse(param: str, what: str) -> NoReturn:
    raise BadRequestError(f"`{param}` {what}.", reason="bad_body", param=param, code="invalid_value")
