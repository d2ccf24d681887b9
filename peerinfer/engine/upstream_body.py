"""A client's request as it goes on to an OpenAI-compatible server: as it came, but for what we must set.

The rule: nothing that the client wrote is lost, reordered or printed anew (json_members.py). We set `model`
to the server's own name for it, and for SGLang `rid`, the id that `/abort_request` takes. A stream is asked
for its usage, since that tells what was cached; whoever did not ask for it does not see it.

A request that nobody streams is streamed even so where its answer can be put together (api/assemble.py),
since a server notices within moments that the reader of a stream is gone. It can where every member of the
body is on the list here, each of them compared with SGLang's own whole answer by a test. Any other request
goes out as it is, and its answer comes back as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from peerinfer.core.types import Endpoint, InferRequest, RequestError
from peerinfer.engine.json_members import with_members

Body = Mapping[str, object]

PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
ID_PREFIXES: Mapping[Endpoint, str] = {"chat": "chatcmpl", "completions": "cmpl"}

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"}
_SAMPLING |= {"presence_penalty", "frequency_penalty", "repetition_penalty"}
_LENGTH = {"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "n"}
_NO_MATTER = {"model", "stream", "stream_options", "user", "rid", "skip_special_tokens", "response_format"}
_EVERYWHERE = _SAMPLING | _LENGTH | _NO_MATTER
ASSEMBLED: Mapping[Endpoint, frozenset[str]] = {
    "chat": frozenset(_EVERYWHERE | {"messages", "max_completion_tokens", "continue_final_message"}),
    "completions": frozenset(_EVERYWHERE | {"prompt"}),
}
"""Members of requests whose streamed answers make up the whole one: tests/engine/test_sglang_answers.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One request, ready to be sent."""

    endpoint: Endpoint
    body: bytes
    streamed: bool
    """Whether the server will stream; else its answer is whole."""
    usage_shown: bool
    """Whether the chunk with the usage goes on to the client."""
    rids: tuple[str, ...]
    """What the server calls it; empty where it has no names for requests."""


def outgoing(
    request: InferRequest, *, model: str, is_sglang: bool, assembles_chats: bool, attempts_before: int = 0
) -> Outgoing:
    """What to send for a request. `assembles_chats` is false where a server parses what its model says."""
    body, endpoint = request.body, request.endpoint
    members: dict[str, object] = {}
    if body.get("model") != model:
        members["model"] = model
    rids: tuple[str, ...] = ()
    if is_sglang:
        rids = _own_rids(body)
        if not rids or attempts_before:
            # Before the id: SGLang aborts whatever begins with the name that it is told.
            again = f"{attempts_before}-" if attempts_before else ""
            rids = (f"{ID_PREFIXES[endpoint]}-{again}{request.id}",)
            members["rid"] = rids[0]
    asked = body.get("stream") is True
    streamed = asked or (is_sglang and _can_be_assembled(endpoint, body, assembles_chats=assembles_chats))
    usage_shown = not asked
    if streamed:
        options = body.get("stream_options")
        options = options if isinstance(options, Mapping) else {}
        usage_shown |= options.get("include_usage") is True
        if not asked:
            members["stream"] = True
        if options.get("include_usage") is not True:
            members["stream_options"] = {**options, "include_usage": True}
    return Outgoing(
        endpoint=endpoint,
        body=_with(request, members),
        streamed=streamed,
        usage_shown=usage_shown,
        rids=rids,
    )


def check_numbers(endpoint: Endpoint, body: Body, *, vocabulary: int | None) -> None:
    """Refuse numbers that point beyond the vocabulary.

    SGLang 0.5.23 uses them unchecked and dies of them, and a node that tried such a request again would take
    it from one engine to the next.

    Raises:
        RequestError: 400.
    """
    limit = vocabulary if vocabulary is not None else 2**31
    for name in ("prompt" if endpoint == "completions" else "input_ids", "stop_token_ids"):
        for token in _tokens(body.get(name)):
            if not 0 <= token < limit:
                raise RequestError(f"token ids must lie between 0 and {limit - 1}, not {token}", param=name)
    for name in ("logprobs", "top_logprobs"):
        value = body.get(name)
        if type(value) is int and not 0 <= value < limit:
            raise RequestError(f"`{name}` must lie between 0 and {limit - 1}, not {value}", param=name)


def _tokens(value: object) -> Iterator[int]:
    for item in value if isinstance(value, list) else ():
        yield from _tokens(item) if isinstance(item, list) else (item,) if type(item) is int else ()


def _with(request: InferRequest, members: Mapping[str, object]) -> bytes:
    if request.raw:
        try:
            return with_members(request.raw, members) if members else request.raw
        except ValueError:
            pass  # a peer's bytes that are JSON in another encoding than UTF-8
    return json.dumps({**request.body, **members}, ensure_ascii=False).encode()


def _own_rids(body: Body) -> tuple[str, ...]:
    """The client's own names for the request, which SGLang lets it choose."""
    rid = body.get("rid")
    if isinstance(rid, str):
        return (rid,)
    if isinstance(rid, list):
        return tuple(name for name in rid if isinstance(name, str))
    return ()


def _can_be_assembled(endpoint: Endpoint, body: Body, *, assembles_chats: bool) -> bool:
    known = ASSEMBLED[endpoint]
    if not all(name in known for name, value in body.items() if value is not None):
        return False
    if endpoint == "chat":
        return assembles_chats
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(t) is int for t in prompt))
