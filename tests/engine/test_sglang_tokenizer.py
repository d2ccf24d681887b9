"""Our tokens against those of a real SGLang: by `/v1/tokenize`, and by what it says that it computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from peerinfer.config import EngineConfig
from peerinfer.core.types import Endpoint
from peerinfer.engine.openai_upstream import OpenAIUpstream, open_client
from peerinfer.engine.server_tokenizer import ServerTokenizer
from peerinfer.engine.sglang_build import build_attached
from peerinfer.engine.upstream_body import PATHS
from tests.real_sglang import RealServer

pytestmark = pytest.mark.sglang

WILD = "hé ünï \U0001f98a \U0001f468\u200d\U0001f469\u200d\U0001f467 日本語 עברית \u200b<|im_end|>"
WILD += " <|im_start|>\n\n\t x\u00a0\r\n  "
FUNCTION = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "default": "Zürich <b>"}, "days": {"default": 1.50}},
        "required": ["city"],
    },
}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"description": 'é "q"', "parameters": {}, "strict": True, "name": "g"}},
    {"function": {"name": "h"}},
]
ARGUMENTS = '{"city": "é", "n": 1.0}'
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
NAMED = {"type": "function", "function": {"name": "g"}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def system(content: str) -> dict[str, object]:
    return {"role": "system", "content": content}


CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [user("Hello!")]},
    "a system prompt": {"messages": [system("Be brief."), user("Hello!")]},
    "an empty system prompt": {"messages": [system(""), user("Hello!")]},
    "several turns": {"messages": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]},
    "many scripts": {"messages": [system(WILD), user(WILD), assistant(WILD), user(WILD)]},
    "spaces": {"messages": [user("   "), assistant("\n"), user("\t\t")]},
    "nothing": {"messages": [user("")]},
    "an answer at the end": {"messages": [user("a"), assistant("b")]},
    "an answer that goes on": {"messages": [user("a"), assistant("The ans")], "continue_final_message": True},
    "an answer that goes on with a space": {
        "messages": [user("a"), assistant(" wer")],
        "continue_final_message": True,
    },
    "an answer that goes on within an emoji": {
        "messages": [user("a"), assistant("so \U0001f468‍")],
        "continue_final_message": True,
    },
    "nothing that goes on": {"messages": [user("a")], "continue_final_message": True},
    "parts": {"messages": [user([{"type": "text", "text": "a "}, {"type": "text", "text": WILD}])]},
    "a developer and a name": {
        "messages": [{"role": "developer", "content": "x", "name": "n"}, {**user("y"), "name": "bob"}]
    },
    "tools": {"messages": [user("w?")], "tools": TOOLS},
    "tools and a system prompt": {"messages": [system("s"), user("w?")], "tools": TOOLS},
    "tools that are not to be used": {"messages": [user("w?")], "tools": TOOLS, "tool_choice": "none"},
    "a tool that is": {"messages": [user("w?")], "tools": TOOLS, "tool_choice": NAMED},
    "a tool that must be": {"messages": [user("w?")], "tools": TOOLS, "tool_choice": "required"},
    "a call and its result": {
        "messages": [
            user("w?"),
            assistant(None, tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            user("so?"),
        ],
        "tools": TOOLS,
    },
    "a result in parts": {
        "messages": [
            user("w?"),
            assistant("", tool_calls=[CALL, {**CALL, "id": "c2"}]),
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
        ]
    },
    "a long chat": {"messages": [user(f"{WILD} {n}") for n in range(300)]},
}
TEXTS: dict[str, str | list[str]] = {
    "text": "The quick brown fox",
    "text with special tokens": "<|im_start|>user\nHi<|im_end|>\n",
    "text of many scripts": WILD,
    "two spaces": "  x",
    "one text in a list": ["x y"],
    "a long text": WILD * 500,
}
CASES: list[Any] = [
    *(pytest.param("chat", body, id=name) for name, body in CHATS.items()),
    *(pytest.param("completions", {"prompt": text}, id=name) for name, text in TEXTS.items()),
]

UNCOMPUTED = ("a long chat", "a long text", "a tool that is", "a tool that must be")
"""Longer than the context, or held to a grammar, for which this server has no backend."""


@pytest.fixture
async def upstream(sglang_server: RealServer) -> AsyncIterator[OpenAIUpstream]:
    async with open_client() as client:
        yield OpenAIUpstream(client, sglang_server.url)


@pytest.fixture
async def tokenizer(sglang_server: RealServer) -> ServerTokenizer:
    _, made = await build_attached(EngineConfig(kind="sglang", url=sglang_server.url))
    return made


@pytest.mark.parametrize(("endpoint", "body"), CASES)
async def test_tokens_are_those_of_sglang(
    upstream: OpenAIUpstream, tokenizer: ServerTokenizer, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """Method: told by the files alone, as before the server is there."""
    assert tokenizer.source == "files"
    ours = await tokenizer.encode(endpoint, body)
    question = body if endpoint == "chat" else {"prompt": body["prompt"]}
    if isinstance(question.get("prompt"), list):
        question = {"prompt": question["prompt"][0]}
    theirs = await upstream.post("/v1/tokenize", question)
    assert ours is not None
    assert list(ours) == theirs["tokens"]


async def test_the_check_at_the_start_finds_nothing(
    upstream: OpenAIUpstream, tokenizer: ServerTokenizer
) -> None:
    await tokenizer.attach(upstream, is_sglang=True)
    assert tokenizer.source == "files"


@pytest.mark.parametrize(("endpoint", "body"), [case for case in CASES if case.id not in UNCOMPUTED])
async def test_as_many_tokens_are_computed(
    upstream: OpenAIUpstream, tokenizer: ServerTokenizer, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    """The endpoints count as `/v1/tokenize` does."""
    ours = await tokenizer.encode(endpoint, body)
    request = {"model": "m", "max_tokens": 1, **body}
    answer = await upstream.post(PATHS[endpoint], request)
    assert ours is not None
    assert answer["usage"]["prompt_tokens"] == len(ours)


async def test_what_only_the_server_can_tell_is_asked_of_it(
    upstream: OpenAIUpstream, tokenizer: ServerTokenizer
) -> None:
    await tokenizer.attach(upstream, is_sglang=True)
    body = {"messages": [user("x")], "chat_template_kwargs": {"enable_thinking": False}}
    plain = await tokenizer.encode("chat", {"messages": [user("x")]})
    assert await tokenizer.encode("chat", body) == plain
