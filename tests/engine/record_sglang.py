"""Writes recordings/sglang.json: what a real SGLang answers to each request, streamed and whole.

    python -m tests.engine.record_sglang URL

The server is one as the tests' fixture `sglang_server` starts it. Every request is sent once before it is
recorded, so that both answers are made from the same cached prefix.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx

RECORDINGS = Path(__file__).with_name("recordings") / "sglang.json"
MODEL = "SmolLM2-135M-Instruct"
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

FACTS = [{"role": "user", "content": "Name two fruits, and an emoji of each."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", {"messages": FACTS, "max_tokens": 12}),
    "chat with everything that shapes sampling": (
        "chat",
        {
            "messages": FACTS,
            "max_completion_tokens": 10,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 1,
            "min_p": 0.05,
            "seed": 7,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "repetition_penalty": 1.1,
            "logit_bias": {"28": -5},
            "user": "somebody",
            "min_tokens": 2,
        },
    ),
    "chat that ends itself": ("chat", {"messages": [{"role": "user", "content": "Say only: OK"}]}),
    "chat with stops": ("chat", {"messages": FACTS, "max_tokens": 24, "stop": [" never", " familiar"]}),
    "chat with a stop token": ("chat", {"messages": FACTS, "max_tokens": 24, "stop_token_ids": [28]}),
    "chat of two choices": ("chat", {"messages": FACTS, "max_tokens": 6, "n": 2}),
    "chat that goes on": (
        "chat",
        {
            "messages": [*FACTS, {"role": "assistant", "content": "Apple \U0001f34e and"}],
            "continue_final_message": True,
            "max_tokens": 8,
        },
    ),
    "chat past its end": (
        "chat",
        {
            "messages": [{"role": "user", "content": "Say only: OK"}],
            "max_tokens": 16,
            "ignore_eos": True,
            "skip_special_tokens": False,
        },
    ),
    "chat in JSON": (
        "chat",
        {"messages": FACTS, "max_tokens": 10, "response_format": {"type": "json_object"}},
    ),
    "chat held to a schema": (
        "chat",
        {
            "messages": FACTS,
            "max_tokens": 24,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "fruits",
                    "schema": {
                        "type": "object",
                        "properties": {"first": {"enum": ["apple", "plum"]}, "count": {"type": "integer"}},
                        "required": ["first", "count"],
                        "additionalProperties": False,
                    },
                },
            },
        },
    ),
    "chat with tools": ("chat", {"messages": FACTS, "max_tokens": 8, "tools": [TOOL]}),
    "chat that must call a tool": (
        "chat",
        {"messages": FACTS, "max_tokens": 32, "tools": [TOOL], "tool_choice": "required"},
    ),
    "chat with log-probabilities": (
        "chat",
        {"messages": FACTS, "max_tokens": 4, "logprobs": True, "top_logprobs": 2},
    ),
    "text": ("completions", {"prompt": "One, two, three,", "max_tokens": 8}),
    "text in many scripts": ("completions", {"prompt": "日本語の \U0001f98a Привет, ", "max_tokens": 12}),
    "text of tokens": ("completions", {"prompt": [504, 2365, 6354, 16438], "max_tokens": 6}),
    "text of two choices": ("completions", {"prompt": "The sky is", "max_tokens": 5, "n": 2}),
    "text with a stop": ("completions", {"prompt": "1 2 3 4", "max_tokens": 20, "stop": " 7"}),
    "text with log-probabilities": ("completions", {"prompt": "The sky is", "max_tokens": 3, "logprobs": 2}),
    "texts": ("completions", {"prompt": ["The sky is", "Grass is"], "max_tokens": 3}),
    "text that is echoed": ("completions", {"prompt": "The sky is", "max_tokens": 3, "echo": True}),
}


def record(client: httpx.Client, endpoint: str, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": MODEL, "temperature": 0, **fields}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    client.post(PATHS[endpoint], json=body)
    stream = client.post(PATHS[endpoint], json=streamed)
    whole = client.post(PATHS[endpoint], json=body)
    assert (stream.status_code, whole.status_code) == (200, 200), (stream.text, whole.text)
    return {"endpoint": endpoint, "body": body, "stream": stream.text, "whole": whole.text}


def main() -> None:
    with httpx.Client(base_url=sys.argv[1], timeout=120, trust_env=False) as client:
        recorded = {name: record(client, *case) for name, case in CASES.items()}
    RECORDINGS.parent.mkdir(exist_ok=True)
    text = json.dumps(recorded, indent=1, ensure_ascii=False) + "\n"
    RECORDINGS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
