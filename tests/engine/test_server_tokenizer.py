"""Tokens for a server: its files' where they agree with it, its own else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from peerinfer.core.types import Endpoint
from peerinfer.engine.hf_model import read_model
from peerinfer.engine.hf_tokenizer import HfTokenizer
from peerinfer.engine.openai_upstream import OpenAIUpstream, open_client
from peerinfer.engine.server_tokenizer import PROBES, ServerTokenizer
from peerinfer.node.ports import EngineError
from tests.engine.hf_files import make_model
from tests.engine.mock_server import MockServer, serving

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TOOLS = CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}


@pytest.fixture
def local(tmp_path: Path) -> HfTokenizer:
    return HfTokenizer(read_model(make_model(tmp_path / "model")))


class Served:
    """A mock that tokenises with files of its own, and counts how often it is asked."""

    def __init__(self, mock: MockServer, upstream: OpenAIUpstream, tokenizer: HfTokenizer) -> None:
        self.mock, self.upstream = mock, upstream
        self.asked = 0
        self._tokenizer = tokenizer
        mock.tokenize = self._tokenize

    async def _tokenize(self, body: dict[str, Any]) -> tuple[int, ...] | None:
        self.asked += 1
        endpoint: Endpoint = "chat" if "messages" in body else "completions"
        return await self._tokenizer.encode(endpoint, body)


@asynccontextmanager
async def served(directory: Path, **options: Any) -> AsyncIterator[Served]:
    tokenizer = HfTokenizer(read_model(make_model(directory, **options)))
    async with serving() as mock, open_client() as client:
        yield Served(mock, OpenAIUpstream(client, mock.url), tokenizer)


async def test_files_that_agree_with_the_server_are_trusted(local: HfTokenizer, tmp_path: Path) -> None:
    """Before it is there, too, and without asking it again."""
    tokenizer = ServerTokenizer(local)
    early = await tokenizer.encode("chat", TOOLS)
    assert early is not None
    async with served(tmp_path / "same") as server:
        await tokenizer.attach(server.upstream, is_sglang=True)
        assert server.asked == len(PROBES)
        assert tokenizer.source == "files"
        assert await tokenizer.encode("chat", TOOLS) == early
        assert server.asked == len(PROBES)


async def test_what_comes_out_otherwise_is_asked_for(
    local: HfTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: the server's template shows no tools, and its tokeniser is the same."""
    tokenizer = ServerTokenizer(local)
    template = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"
    async with served(tmp_path / "other", template=template) as server:
        with caplog.at_level(logging.WARNING, "peerinfer.engine"):
            await tokenizer.attach(server.upstream, is_sglang=True)
        assert "other tokens for: answered, chat, continued, parts, tools" in caplog.text
        assert tokenizer.source == "files and server"
        asked = server.asked
        tokens = await tokenizer.encode("chat", CHAT)
        assert tokens is not None
        assert len(tokens) < 12
        assert server.asked == asked + 1
        assert await tokenizer.encode("completions", {"prompt": "hello"}) is not None
        assert server.asked == asked + 1
        tokenizer.detach()
        assert await tokenizer.encode("chat", CHAT) is None


async def test_without_files_the_server_tells_all(tmp_path: Path) -> None:
    tokenizer = ServerTokenizer(None)
    assert tokenizer.source == "none"
    assert await tokenizer.encode("chat", CHAT) is None
    async with served(tmp_path / "model") as server:
        await tokenizer.attach(server.upstream, is_sglang=True)
        assert tokenizer.source == "server"
        assert await tokenizer.encode("chat", CHAT) is not None
        server.mock.tokenize = lambda body: None
        assert await tokenizer.encode("chat", CHAT) is None


async def test_a_server_that_cannot_be_asked_is_an_engine_error_at_first_and_none_later(
    local: HfTokenizer,
) -> None:
    tokenizer = ServerTokenizer(local)
    async with open_client() as client:
        with pytest.raises(EngineError):
            await tokenizer.attach(OpenAIUpstream(client, "http://127.0.0.1:9"), is_sglang=True)


@pytest.mark.parametrize(
    ("endpoint", "body", "tokens"),
    [
        ("completions", {"prompt": [1, 2]}, (1, 2)),
        ("completions", {"prompt": [[1, 2]]}, (1, 2)),
        ("completions", {"prompt": [[1], [2]]}, None),
        ("completions", {"prompt": ["a", "b"]}, None),
        ("completions", {"prompt": [2**32]}, None),
        ("completions", {"prompt": [-1]}, None),
        ("completions", {"prompt": []}, None),
        ("completions", {"prompt": "a", "echo": True, "logprobs": 1}, None),
        ("completions", {"prompt": "a", "lora_path": "x"}, None),
        ("chat", CHAT | {"cache_salt": "x"}, None),
        ("chat", CHAT | {"input_ids": [5, 6]}, (5, 6)),
        ("chat", CHAT | {"input_ids": "x"}, None),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ("chat", {}, None),
    ],
)
async def test_prompts_are_told_where_tokens_decide_what_is_cached(
    local: HfTokenizer, endpoint: Endpoint, body: dict[str, Any], tokens: tuple[int, ...] | None
) -> None:
    assert await ServerTokenizer(local).encode(endpoint, body) == tokens


async def test_one_text_in_a_list_is_a_text(local: HfTokenizer) -> None:
    tokenizer = ServerTokenizer(local)
    alone = await tokenizer.encode("completions", {"prompt": "hello"})
    assert alone == await tokenizer.encode("completions", {"prompt": ["hello"]})
