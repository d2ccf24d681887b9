"""A real SGLang behind a node: the same answers as from a direct call, and slots that come free at once."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import trio

from peerinfer.engine.upstream_body import ASSEMBLED
from tests.engine.comparable import chunks, told
from tests.engine.record_sglang import CASES, PATHS
from tests.engine.served_nodes import alone
from tests.real_sglang import RealServer

pytestmark = pytest.mark.sglang

TOKENS = 6
"""Of an answer at most: a CPU makes some ten a second."""
LONG = "All work and no play makes Jack a dull boy. " * 130
LONG_TOKENS = 130 * 11
"""Of that; the server computes 256 at a time."""


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
    body = {"model": served["model"], "temperature": 0, **CASES[name][1]}
    if body.get("max_tokens", 0) > TOKENS and "tool_choice" not in body:
        body["max_tokens"] = TOKENS
    return body | more


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
        {"messages": [{"role": "robot", "content": "x"}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ],
)
async def test_a_refusal_is_that_of_a_direct_call(
    node: httpx.AsyncClient, direct: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    """But for a prompt that is too long, which the node refuses before a server sees it."""
    for stream in (False, True):
        body = body_of("chat", **wrong) | {"stream": stream}
        theirs = await direct.post(PATHS["chat"], json=body)
        ours = await node.post(PATHS["chat"], json=body)
        assert ours.status_code == 400
        message = json.loads(theirs.text.split("\n")[0].removeprefix("data: "))
        message = message.get("error", message)["message"]
        assert ours.json()["error"]["message"] == message.strip()[:1000]


@dataclass(frozen=True, slots=True)
class Work:
    """What the server says of its work."""

    running: int
    used_tokens: int
    prefilled_tokens: int
    """Since it started; lags by a batch while it runs."""

    @classmethod
    async def at(cls, direct: httpx.AsyncClient) -> Work:
        loads = (await direct.get("/v1/loads", params={"include": "core"})).json()["loads"][0]
        running = loads["num_running_reqs"] + loads["num_waiting_reqs"]
        return cls(running, loads["num_used_tokens"], loads["total_prefill_uncached_tokens"])


async def until(direct: httpx.AsyncClient, holds: Callable[[Work], bool]) -> Work:
    with trio.fail_after(120):
        while not holds(work := await Work.at(direct)):
            await trio.sleep(0.02)
    return work


def is_idle(work: Work) -> bool:
    return not (work.running or work.used_tokens)


async def freed_after(
    client: httpx.AsyncClient, direct: httpx.AsyncClient, body: dict[str, Any], when: Callable[[Work], bool]
) -> tuple[float, int]:
    """Ask and leave then: the seconds until the server is idle again, and the tokens that it prefilled."""
    before = await until(direct, is_idle)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(client.post, PATHS["chat"], json=body))
        await until(direct, when)
        nursery.cancel_scope.cancel()
    left_at = trio.current_time()
    after = await until(direct, is_idle)
    return trio.current_time() - left_at, after.prefilled_tokens - before.prefilled_tokens


LEAVING = {"streamed": {"stream": True}, "assembled": {}, "whole": {"logprobs": True}}


async def test_a_client_that_leaves_while_it_decodes_frees_its_slot(
    node: httpx.AsyncClient, direct: httpx.AsyncClient
) -> None:
    """Situation 16: sooner than where SGLang must notice by itself that the client of a whole answer left."""
    body = {"model": served["model"], "messages": [{"role": "user", "content": "Count."}]}
    body |= {"max_tokens": 1000, "ignore_eos": True}
    theirs, _ = await freed_after(direct, direct, body, lambda work: work.running > 0)
    for name, more in LEAVING.items():
        ours, _ = await freed_after(node, direct, body | more, lambda work: work.running > 0)
        print(f"{name}: free after {ours:.2f} s; of a direct call's whole answer {theirs:.2f} s")
        assert ours < theirs


@pytest.mark.parametrize("name", LEAVING)
async def test_a_client_that_leaves_during_prefill_ends_it(
    node: httpx.AsyncClient, direct: httpx.AsyncClient, name: str
) -> None:
    """Situation 16: with the piece of the prompt that is being computed; the rest is not."""
    body = {"model": served["model"], "messages": [{"role": "user", "content": f"{name} {LONG}"}]}
    body |= {"max_tokens": 1000, "ignore_eos": True, **LEAVING[name]}
    seconds, computed = await freed_after(node, direct, body, lambda work: work.used_tokens > 0)
    print(f"{name}: free after {seconds:.2f} s, with {computed} tokens computed")
    assert 0 < computed < LONG_TOKENS


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
