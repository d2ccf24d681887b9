"""Chunks put together, beyond what the simplest answer needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerinfer.api.assemble import Assembler, usage_chunk
from peerinfer.core.types import Endpoint, RequestError

USAGE: dict[str, object] = {"total_tokens": 3}


def assemble(*choices: dict[str, Any], endpoint: Endpoint = "chat", **top: Any) -> dict[str, Any]:
    """The whole of chunks that have one choice each."""
    assembler = Assembler(endpoint, request_id="req-1", model="m")
    for choice in choices:
        assembler.add(json.dumps({**top, "choices": [{"index": 0, **choice}]}).encode())
    whole: dict[str, Any] = json.loads(assembler.whole(USAGE))
    return whole


def test_tool_calls_are_merged_by_index() -> None:
    """Name and id come once, arguments in pieces, two calls interleaved."""
    start = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    other = {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    whole = assemble(
        {"delta": {"role": "assistant", "content": None, "tool_calls": None}},
        {"delta": {"tool_calls": [start]}},
        {"delta": {"tool_calls": [other]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": '{"x":'}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    )
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_log_probabilities_are_joined() -> None:
    chat = assemble(
        {"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}},
        {"delta": {"content": "b"}, "logprobs": {"content": [{"token": "b"}]}},
        {"delta": {}, "logprobs": None, "finish_reason": "stop"},
    )
    assert chat["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}
    text = assemble(
        {"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}},
        {"text": "b", "logprobs": {"tokens": ["b"], "token_logprobs": [-2.0]}},
        endpoint="completions",
    )
    assert text["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0]}


def test_choices_are_told_apart_and_sorted() -> None:
    """n = 2, the second choice first."""
    whole = assemble(
        {"index": 1, "delta": {"content": "x"}},
        {"delta": {"content": "a"}},
        {"index": 1, "delta": {"content": "y"}},
    )
    assert [(c["index"], c["message"]["content"]) for c in whole["choices"]] == [(0, "a"), (1, "xy")]


def test_fields_beyond_openai_are_kept() -> None:
    whole = assemble(
        {"delta": {"reasoning_content": "hm", "content": None}, "matched_stop": None},
        {"delta": {"reasoning_content": "m"}, "matched_stop": 7},
        system_fingerprint="fp",
        service_tier=None,
        usage=None,
    )
    assert whole["system_fingerprint"] == "fp"
    assert whole["usage"] == USAGE
    assert "service_tier" not in whole
    assert whole["choices"][0]["matched_stop"] == 7
    assert whole["choices"][0]["message"]["reasoning_content"] == "hmm"


def test_answer_without_chunks_is_one_empty_choice() -> None:
    """An engine may end at once; the names are made here then."""
    for endpoint, kind in (("chat", "chat.completion"), ("completions", "text_completion")):
        whole = assemble(endpoint=endpoint)  # type: ignore[arg-type]
        assert whole["object"] == kind
        assert whole["model"] == "m"
        assert whole["id"].endswith("req-1")
        assert whole["created"] > 0
        assert len(whole["choices"]) == 1


def test_usage_chunk_of_an_answer_without_chunks_names_itself() -> None:
    chunk = json.loads(usage_chunk("chat", None, USAGE, request_id="req-1", model="m"))
    assert (chunk["object"], chunk["choices"], chunk["usage"]) == ("chat.completion.chunk", [], USAGE)
    assert chunk["id"] == "chatcmpl-req-1"


def test_half_of_a_surrogate_pair_stays_the_escape_that_it_was() -> None:
    """A peer's JSON may hold one; it has no UTF-8, and was an error of ours."""
    assembler = Assembler("chat", request_id="r", model="m")
    assembler.add(b'{"choices": [{"index": 0, "delta": {"content": "\\ud800"}}]}')
    assert b'"content": "\\ud800"' in assembler.whole({})
    assert b"\\udc00" in usage_chunk("chat", b'{"id": "\\udc00"}', {}, request_id="r", model="m")


def test_tool_calls_that_are_no_list_are_a_malformed_answer() -> None:
    assembler = Assembler("chat", request_id="r", model="m")
    with pytest.raises(RequestError, match="tool calls"):
        assembler.add(b'{"choices": [{"index": 0, "delta": {"tool_calls": {"0": "f"}}}]}')
