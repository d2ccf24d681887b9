"""What request continues a broken answer from exactly what the client has of it?

By tokens where the engine told them: prompt and answer so far are one prompt, and at temperature 0 the rest
comes out as if nothing had happened. Else by text: a completion's prompt grows by it, and a chat gets it as
a last message to be continued. Lengths are corrected by what is there already. What a request has set up
besides its text (a grammar's state, tools, penalties over past tokens, log-probabilities) is not carried by
either, and `uncarried` names it: such an answer is not continued. docs/deviations.md tells the difference
to the paper, which lets a broken request begin anew (§3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from peerinfer.core.openai_defaults import DEFAULT_COMPLETION_TOKENS, INERT, NO_OP, is_one_of
from peerinfer.core.stream_json import printed
from peerinfer.core.types import Endpoint, InferRequest

_PROMPT = {"messages", "prompt", "add_generation_prompt", "continue_final_message"}
_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"}
_LENGTH = {"max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos"}
_NO_MATTER = {"model", "stream", "stream_options", "rid"} | INERT
_CARRIED = _PROMPT | _SAMPLING | _LENGTH | _NO_MATTER | {"skip_special_tokens", "cache_salt", "lora_path"}
_HARMLESS: Mapping[str, tuple[object, ...]] = {**NO_OP, "n": (1,)}

Body = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the client has of an answer."""

    text: str = ""
    token_ids: tuple[int, ...] | None = ()
    """The tokens that spell the text; None where they were not told."""
    pieces: int = 0
    """Chunks that brought text: about a token each."""


def uncarried(body: Body) -> str | None:
    """The member of a body whose state neither text nor tokens carry; None if there is none."""
    for name, value in body.items():
        if value is None or name in _CARRIED:
            continue
        if not is_one_of(value, _HARMLESS.get(name, ())):
            return name
    return None


def by_tokens(request: InferRequest, answered: Answered) -> InferRequest | None:
    """The request that goes on behind the answer's tokens; None where they or the prompt's are not known."""
    if request.token_ids is None or answered.token_ids is None:
        return None
    return replace(
        request,
        token_ids=request.token_ids + answered.token_ids,
        answered_token_ids=answered.token_ids,
    )


def by_text(request: InferRequest, answered: Answered) -> InferRequest | None:
    """The request that goes on behind the answer's text, its tokens yet to be told; None where no body can
    say so."""
    body = _with_text(request.endpoint, request.body, answered.text)
    return None if body is None else replace(request, body=body, raw=printed(body), token_ids=None)


def shortened(request: InferRequest, count: int) -> InferRequest | None:
    """The request with `count` tokens less to answer; None if there are none left.

    It asks for a stream, whatever the client asked for: only pieces can be put behind what is there.
    """
    body = {**request.body, "stream": True}
    limits = [name for name in ("max_completion_tokens", "max_tokens") if type(body.get(name)) is int]
    if request.endpoint == "completions":
        limits = ["max_tokens"]
        if body.get("max_tokens") is None:
            body["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    left = {name: _whole(body[name]) - count for name in limits}
    if limits and left[limits[0]] <= 0:
        return None
    body |= {name: max(1, tokens) for name, tokens in left.items()}
    if type(body.get("min_tokens")) is int:
        body["min_tokens"] = max(0, _whole(body["min_tokens"]) - count)
    return replace(request, body=body, raw=printed(body))


def stops(body: Body) -> tuple[str, ...]:
    """The body's stop strings."""
    stop = body.get("stop")
    listed = stop if isinstance(stop, list) else [stop]
    return tuple(item for item in listed if isinstance(item, str) and item)


def _with_text(endpoint: Endpoint, body: Body, text: str) -> dict[str, object] | None:
    if endpoint == "completions":
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        return {**body, "prompt": prompt + text} if isinstance(prompt, str) else None
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(messages, list) or not isinstance(last, Mapping):
        return None
    if last.get("role") != "assistant":
        if body.get("add_generation_prompt") is False:
            return None
        messages = [*messages, {"role": "assistant", "content": text}]
    else:
        # Without the flag an engine may take such a message for a user's, as SGLang does.
        content = last.get("content")
        if body.get("continue_final_message") is not True or not isinstance(content, str):
            return None
        messages = [*messages[:-1], {**last, "content": content + text}]
    return {**body, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _whole(limit: object) -> int:
    assert isinstance(limit, int)
    return limit
