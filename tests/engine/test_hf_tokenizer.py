"""A model's files as tokeniser: what SGLang would make of a prompt, or None.

That SGLang does make the same of it is for test_sglang_tokenizer.py to say, against a real one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from peerinfer.core.types import Endpoint
from peerinfer.engine.hf_model import read_model
from peerinfer.engine.hf_tokenizer import HfTokenizer
from peerinfer.node.ports import EngineError
from tests.engine.hf_files import make_model

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
SYSTEM += "<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


class Reader:
    """A tokeniser, and its tokens as text."""

    def __init__(self, directory: Path) -> None:
        self.hf = HfTokenizer(read_model(directory))
        self._plain = Tokenizer.from_file(str(directory / "tokenizer.json"))

    async def text(self, body: dict[str, Any], endpoint: Endpoint = "chat") -> str | None:
        tokens = await self.hf.encode(endpoint, body)
        return None if tokens is None else self._plain.decode(list(tokens), skip_special_tokens=False)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(make_model(tmp_path / "model"))


@pytest.fixture
def with_bos(tmp_path: Path) -> Reader:
    return Reader(make_model(tmp_path / "model", adds_bos=True))


async def test_a_chat_is_rendered_for_its_answer(reader: Reader) -> None:
    text = await reader.text({"messages": [user("hello")]})
    assert text == f"{SYSTEM}<|im_start|>user\nhello<|im_end|>\n{ASSISTANT}"


async def test_text_has_the_tokenisers_own_special_tokens_and_a_chat_only_its_templates(
    with_bos: Reader,
) -> None:
    assert await with_bos.text({"prompt": "hello"}, "completions") == "<|end|>hello"
    assert (await with_bos.text({"messages": [user("x")]}) or "").startswith("<|im_start|>system")


async def test_an_answer_goes_on_behind_the_template(with_bos: Reader) -> None:
    """Its beginning is tokenised by itself: `lo` at its start is no part of `hel`."""
    messages = [user("x"), {"role": "assistant", "content": "lo"}]
    text = await with_bos.text({"messages": messages, "continue_final_message": True})
    assert text == f"{SYSTEM}<|im_start|>user\nx<|im_end|>\n{ASSISTANT}lo"


async def test_a_last_answer_that_is_not_to_go_on_is_the_users(reader: Reader) -> None:
    """As SGLang has it."""
    text = await reader.text({"messages": [user("a"), {"role": "assistant", "content": "b"}]})
    assert text == f"{SYSTEM}<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n{ASSISTANT}"


async def test_parts_are_joined(reader: Reader) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na b<|im_end|>" in (await reader.text({"messages": [user(parts)]}) or "")


async def test_tools_are_shown_as_sglang_completes_them(reader: Reader) -> None:
    text = await reader.text({"messages": [user("x")], "tools": [TOOL]}) or ""
    shown = (
        '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, '
        '"description": null}, "defer_loading": null}'
    )
    assert f"<tools>\n{shown}\n</tools>" in text


async def test_only_the_chosen_tool_is_shown(reader: Reader) -> None:
    other = {"type": "function", "function": {"name": "g", "description": "é"}}
    body = {"messages": [user("x")], "tools": [TOOL, other]}
    chosen = {"type": "function", "function": {"name": "g"}}
    text = await reader.text(body | {"tool_choice": chosen}) or ""
    assert '"name": "g", "description": "é"' in text
    assert '"name": "f"' not in text
    assert "tools" not in (await reader.text(body | {"tool_choice": "none"}) or "tools")
    assert '"name": "f"' in (await reader.text(body | {"tool_choice": "required"}) or "")


async def test_calls_and_their_results_are_shown(reader: Reader) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.0}'}}
    messages = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
    ]
    text = await reader.text({"messages": messages}) or ""
    assert '<tool_call>{"name": "f", "arguments": {"x": 1.0}}</tool_call>' in text
    assert "<tool_response id=c1>4</tool_response>" in text


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": "x"},
        {"messages": [user(None)]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]},
        {"messages": [user("x")], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [user("x")], "reasoning_effort": "low"},
        {"messages": [{"role": "system", "content": "x", "tools": [TOOL]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]},
        {"messages": [user("x")], "tools": ["f"]},
        {"messages": [user("x")], "tools": [TOOL], "tool_choice": {"function": {"name": "h"}}},
        {"messages": [user("half a pair: \ud800")]},
    ],
)
async def test_what_only_the_server_can_tell_is_none(reader: Reader, body: dict[str, Any]) -> None:
    assert await reader.text(body) is None


async def test_a_chat_that_the_template_refuses_is_none(tmp_path: Path) -> None:
    """SGLang tries again in another way, and then says why in its own words."""
    for source in ("{{ raise_exception('no') }}", "{{ messages[0].content + 1 }}"):
        reader = Reader(make_model(tmp_path / "model", template=source))
        assert await reader.text({"messages": [user("x")]}) is None


async def test_prompts_of_other_kinds_are_none(reader: Reader) -> None:
    for prompt in (["a", "b"], [1, 2], None):
        assert await reader.hf.encode("completions", {"prompt": prompt}) is None


async def test_kinds_that_are_not_trusted_are_none(reader: Reader) -> None:
    body = {"messages": [user("x")], "tools": [TOOL]}
    reader.hf.trusted -= {"tools"}
    assert await reader.text(body) is None
    assert await reader.text({"messages": [user("x")]}) is not None
    reader.hf.trusted -= {"chat"}
    assert await reader.text({"messages": [user("x")]}) is None
    assert await reader.text({"prompt": "x"}, "completions") == "x"


async def test_long_texts_leave_the_loop_alone_and_are_the_same(reader: Reader) -> None:
    text = "hello " * 4000
    assert await reader.text({"prompt": text}, "completions") == text


async def test_a_prompt_is_read_in_well_under_a_millisecond(reader: Reader) -> None:
    """Design §4: 1 ms for 540 tokens, hashing included. Method: the best of many, on a busy machine."""
    body = {"messages": [user("hello " * 107)]}
    tokens = await reader.hf.encode("chat", body)
    assert tokens is not None
    assert 480 < len(tokens) < 600
    best = 1.0
    for _ in range(100):
        begin = time.perf_counter()
        await reader.hf.encode("chat", body)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.005


def test_files_that_are_none_are_said_in_one_line(tmp_path: Path) -> None:
    directory = make_model(tmp_path / "model", template="{% if %}")
    with pytest.raises(EngineError, match="template is broken"):
        HfTokenizer(read_model(directory))
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match="is no tokeniser"):
        HfTokenizer(read_model(directory))
