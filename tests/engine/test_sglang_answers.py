"""A real SGLang behind a node: the same answers as from a direct call, and slots that come free at once."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

from peerinfer.engine.upstream_body import ASSEMBLED
from tests.engine.record_sglang import CASES, PATHS
from tests.engine.served_nodes import alone
from tests.real_sglang import RealServer

pytestmark = pytest.mark.sglang

FREE_WITHIN_S = 5.0  # 0.06 s where a stream has begun and 0.3 s in prefill, on a quiet machine
TOKENS = 8
"""Of an answer at most: a CPU makes some ten a second."""
LONG = "All work and no play makes Jack a dull boy. " * 250


@pytest.fixture
async def node(sglang_server: RealServer) -> AsyncIterator[httpx.AsyncClient]:
    async with alone(sglang_server.url) as (client, node):
        served.update(model=node.info.model)
        yield client


@pytest.fixture
async def direct(sglang_server: RealServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=sglang_server.url, timeout=120, trust_env=False) as client:
        yield client


served = {"model": ""}


def body_of(name: str, **more: Any) -> dict[str, Any]:
    """A case's request, with an answer that is no longer than it must be."""
    body = {"model": served["model"], "temperature": 0, **CASES[name][1], **more}
    if body.get("max_tokens", 0) > TOKENS and "tool_choice" not in body:
        body["max_tokens"] = TOKENS
    return body


def told(answer: str) -> dict[str, Any]:
    """What is the same in every answer to one request."""
    parsed: dict[str, Any] = json.loads(re.sub("call_[0-9a-f]{24}", "call", answer))
    kept = {name: value for name, value in parsed.items() if name not in ("id", "created", "metadata")}
    usage = parsed.get("usage") or {}
    kept["usage"] = {name: value for name, value in usage.items() if value is not None}
    return kept


def chunks(stream: str) -> list[dict[str, Any]]:
    """A stream's chunks without what differs in each answer, and with its pieces of text put together: how
    many tokens come in one chunk is chance, and so is the order of several choices' chunks."""
    found: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    for event in stream.split("\n\n"):
        if not event.startswith("data: {"):
            continue
        chunk = told(event.removeprefix("data: "))
        for choice in chunk["choices"]:
            piece = choice.get("delta", choice)
            key = "text" if "text" in piece else "content"
            texts[choice["index"]] = texts.get(choice["index"], "") + (piece.pop(key, None) or "")
        if chunk not in found:
            found.append(chunk)
    return [*sorted(found, key=json.dumps), {"texts": texts}]


async def test_answers_are_those_of_a_direct_call(node: httpx.AsyncClient, direct: httpx.AsyncClient) -> None:
    """Whole and streamed, with its usage. Method: both are asked with the prompt in the cache."""
    for name, (endpoint, fields) in CASES.items():
        path, body = PATHS[endpoint], body_of(name)
        await direct.post(path, json=body | {"max_tokens": 1, "max_completion_tokens": 1})
        theirs = await direct.post(path, json=body)
        ours = await node.post(path, json=body)
        assert (ours.status_code, theirs.status_code) == (200, 200), name
        assert told(ours.text) == told(theirs.text), name
        if fields.get("logprobs"):
            continue  # streamed, they lack what is no whole character
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        theirs = await direct.post(path, json=body)
        ours = await node.post(path, json=body)
        assert chunks(ours.text) == chunks(theirs.text), name
        assert ours.text.endswith("data: [DONE]\n\n"), name


def test_every_member_that_is_assembled_is_compared() -> None:
    """The list in upstream_body.py and the cases here belong together."""
    compared: dict[str, set[str]] = {"chat": set(), "completions": set()}
    for endpoint, fields in CASES.values():
        compared[endpoint] |= set(fields)
    sampling = compared["chat"] - {"messages", "tools", "logprobs", "top_logprobs"}
    shared = {"model", "stream", "stream_options", "temperature", "rid", "max_tokens"}
    assert ASSEMBLED["chat"] <= sampling | shared | {"messages"}
    assert ASSEMBLED["completions"] <= sampling | shared | compared["completions"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -3},
        {"max_tokens": 99999},
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ],
)
async def test_a_refusal_is_that_of_a_direct_call(
    node: httpx.AsyncClient, direct: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    for stream in (False, True):
        body = body_of("chat", **wrong) | {"stream": stream}
        theirs = await direct.post(PATHS["chat"], json=body)
        ours = await node.post(PATHS["chat"], json=body)
        assert ours.status_code == 400
        message = json.loads(theirs.text.split("\n")[0].removeprefix("data: "))
        message = message.get("error", message)["message"]
        assert ours.json()["error"]["message"] == message.strip()[:1000]


async def running(direct: httpx.AsyncClient) -> int:
    loads = (await direct.get("/v1/loads", params={"include": "core"})).json()["loads"][0]
    return int(loads["num_running_reqs"]) + int(loads["num_waiting_reqs"])


@pytest.mark.parametrize("name", ["streamed", "assembled", "whole"])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_frees_its_slot(
    node: httpx.AsyncClient, direct: httpx.AsyncClient, name: str, begun: bool
) -> None:
    """Situation 16, in prefill and while it decodes."""
    body = {"model": served["model"], "max_tokens": 1000, "ignore_eos": True, "stream": name == "streamed"}
    text = "Count." if begun else f"{name} {LONG}"
    body["messages"] = [{"role": "user", "content": text}]
    if name == "whole":
        body |= {"logprobs": True}
    with trio.fail_after(60):
        while await running(direct):
            await trio.sleep(0.05)
    with trio.CancelScope() as client_scope:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                with trio.fail_after(60):
                    while not await running(direct):
                        await trio.sleep(0.02)
                await trio.sleep(1.0 if begun else 0.1)
                client_scope.cancel()

            nursery.start_soon(leave)
            await node.post(PATHS["chat"], json=body)
    left_at = trio.current_time()
    with trio.fail_after(60):
        while await running(direct):
            await trio.sleep(0.02)
    print(f"{name}, begun={begun}: free after {trio.current_time() - left_at:.2f} s")
    assert trio.current_time() - left_at < FREE_WITHIN_S


async def test_what_would_kill_it_never_reaches_it(node: httpx.AsyncClient) -> None:
    """Each of these ends SGLang 0.5.23 on a CPU."""
    for wrong in (
        {"prompt": [1, 2, 999999]},
        {"prompt": [[1], [49152]]},
        {"prompt": "x", "logprobs": 100000},
        {"prompt": "x", "min_tokens": 2, "stop_token_ids": [-5]},
    ):
        answer = await node.post(PATHS["completions"], json={"model": served["model"], **wrong})
        assert answer.status_code == 400
    answer = await node.post(PATHS["completions"], json=body_of("text"))
    assert answer.status_code == 200
