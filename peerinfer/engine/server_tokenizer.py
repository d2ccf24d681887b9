"""The tokens of prompts for a server: told by its model's files where they agree with it, else by itself.

The files are fast, and there before the server is. Once it answers it is asked about a few prompts of every
kind; a kind that comes out otherwise is asked for from then on, which costs some milliseconds a request. A
prompt whose cached blocks depend on more than its tokens (an adapter, a salt, an image, log-probabilities of
the prompt) has none here: it is placed by load alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

from peerinfer.core.types import Endpoint
from peerinfer.engine.hf_tokenizer import KINDS, HfTokenizer
from peerinfer.engine.openai_upstream import OpenAIUpstream
from peerinfer.engine.sglang_chat import Kind
from peerinfer.node.ports import EngineError

log = logging.getLogger("peerinfer.engine")

Body = Mapping[str, object]

_MORE_THAN_TOKENS = ("lora_path", "cache_salt", "extra_key", "session_params", "session_id")
_CHAT_FIELDS = (
    *("messages", "tools", "tool_choice", "continue_final_message", "add_generation_prompt"),
    *("chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "task"),
)

_USER = {"role": "user", "content": "Wie spät ist es? \U0001f98a 日本\u200b <|im_end|>\n\n  1+1=2\t"}
_ANSWER = {"role": "assistant", "content": " It's ten,  I think"}
_TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string", "default": "é<b>"}}},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"zone": "UTC"}'}}
_ASKED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "10:00"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}

PROBES: tuple[tuple[Kind, Endpoint, Body], ...] = (
    ("text", "completions", {"prompt": _USER["content"]}),
    ("text", "completions", {"prompt": "  two spaces"}),
    ("chat", "chat", {"messages": [_USER]}),
    ("chat", "chat", {"messages": [{"role": "system", "content": "Be brief."}, _USER]}),
    ("chat", "chat", {"messages": [_USER, _ANSWER, _USER]}),
    ("answered", "chat", {"messages": [_USER, _ANSWER]}),
    ("continued", "chat", {"messages": [_USER, _ANSWER], "continue_final_message": True}),
    ("parts", "chat", {"messages": [_PARTS]}),
    ("tools", "chat", {"messages": [_USER], "tools": [_TOOL]}),
    ("tools", "chat", {"messages": [_USER, _ASKED, _TOLD, _USER], "tools": [_TOOL]}),
)
"""Asked of a server when it has started."""


class ServerTokenizer:
    """A `Tokenizer` (node/ports.py); it never refuses a prompt, since the server has better words for it."""

    def __init__(self, local: HfTokenizer | None) -> None:
        self._local = local
        self._upstream: OpenAIUpstream | None = None
        self._is_sglang = False

    @property
    def source(self) -> Literal["files", "files and server", "server", "none"]:
        """Who tells the tokens at present."""
        if self._local is None or not self._local.trusted:
            return "server" if self._upstream else "none"
        return "files" if self._local.trusted >= KINDS else "files and server"

    async def attach(self, upstream: OpenAIUpstream, *, is_sglang: bool) -> None:
        """The server answers: ask it from now on, and compare the files with it. Raises `EngineError`."""
        self._is_sglang = is_sglang
        if self._local is not None:
            trusted = await self._agreed(self._local, upstream)
            if wrong := sorted(KINDS - trusted):
                log.warning("tokens=server its model's files tell other tokens for: %s", ", ".join(wrong))
            self._local.trusted = trusted
        self._upstream = upstream

    def detach(self) -> None:
        """The server is away."""
        self._upstream = None

    async def encode(self, endpoint: Endpoint, body: Body) -> tuple[int, ...] | None:
        """The tokens of a body's prompt; None where they cannot be told, or do not decide what is cached."""
        if any(body.get(name) is not None for name in _MORE_THAN_TOKENS):
            return None
        if endpoint == "completions":
            prompt = _single(body.get("prompt"))
            if prompt is None or (body.get("echo") and body.get("logprobs") is not None):
                return None
            if not isinstance(prompt, str):
                return prompt
            body = {"prompt": prompt}
        elif body.get("input_ids") is not None:
            return _tokens(body["input_ids"])
        elif not _is_text(body):
            return None
        if self._local is not None:
            tokens = await self._local.encode(endpoint, body)
            if tokens is not None:
                return tokens
        if self._upstream is None:
            return None
        try:
            return await _asked(self._upstream, endpoint, body, is_sglang=self._is_sglang)
        except EngineError as error:
            log.debug("tokens=none %s", error)
            return None

    async def _agreed(self, local: HfTokenizer, upstream: OpenAIUpstream) -> frozenset[Kind]:
        """The kinds of prompts whose probes come out as the server has them."""
        wrong: set[Kind] = set()
        local.trusted = KINDS
        for kind, endpoint, body in PROBES:
            ours = await local.encode(endpoint, body)
            theirs = await _asked(upstream, endpoint, body, is_sglang=self._is_sglang)
            if theirs is not None and ours != theirs:
                wrong.add(kind)
        return KINDS - wrong


async def _asked(
    upstream: OpenAIUpstream, endpoint: Endpoint, body: Body, *, is_sglang: bool
) -> tuple[int, ...] | None:
    """The server's word; None where it refuses the prompt. Raises `EngineError` if it cannot be asked."""
    fields = ("prompt",) if endpoint == "completions" else _CHAT_FIELDS
    question = {name: body[name] for name in fields if body.get(name) is not None}
    if is_sglang:
        question.pop("add_generation_prompt", None)  # its chats do not know it
    answer = await upstream.post_or_refused("/v1/tokenize" if is_sglang else "/tokenize", question)
    return _tokens(answer.get("tokens")) if isinstance(answer, Mapping) else None


def _single(prompt: object) -> str | tuple[int, ...] | None:
    """The one prompt of a completion, as text or as tokens."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else _tokens(prompt)


def _tokens(value: object) -> tuple[int, ...] | None:
    """Token ids as page keys can be made of, which no vocabulary exceeds."""
    if not isinstance(value, list) or not value:
        return None
    return tuple(value) if all(type(token) is int and 0 <= token < 2**32 for token in value) else None


def _is_text(body: Body) -> bool:
    """Whether a chat is made of text alone."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, Mapping) or part.get("type") != "text":
                return False
    return True
