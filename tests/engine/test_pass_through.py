"""From a client through a node to a server and back: all that OpenAI's API has passes, here and forwarded.

The server is a mock that says what a real SGLang said (recordings/sglang.json); that a real one still says so
is for test_sglang_answers.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trio

from tests.engine.hf_files import make_model
from tests.engine.mock_server import (
    MODEL,
    Head,
    MockServer,
    Received,
    Script,
    compact,
    error_json,
    server_info,
    serving,
    sse,
)
from tests.engine.record_sglang import PATHS, RECORDINGS
from tests.engine.served_nodes import pair, until

RECORDED: dict[str, Any] = json.loads(RECORDINGS.read_text(encoding="utf-8"))
PIECE = sse({"choices": [{"index": 0, "delta": {"content": "x"}}]})
WHERE = ("here", "forwarded")


@dataclass
class Swarm:
    """Two nodes, each on a mock of its own, and a client of the first."""

    client: httpx.AsyncClient
    mocks: list[MockServer]
    target: dict[str, dict[str, str]]
    """Headers that have a request served here, or forwarded."""

    def mock(self, where: str) -> MockServer:
        return self.mocks[WHERE.index(where)]

    async def post(self, where: str, endpoint: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.target[where] | {"content-type": "application/json"}
        response = await self.client.post(PATHS[endpoint], content=content, headers=headers, **options)
        if response.status_code == 200:
            route = {"here": "local", "forwarded": "forwarded"}[where]
            assert response.headers["x-peerinfer-route"] == route
        return response


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    model = str(make_model(tmp_path / "model", vocabulary=49152))
    async with serving() as first, serving() as second:
        for mock in (first, second):
            mock.infos["/server_info"] = server_info(model_path=model, tokenizer_path=model)
        async with pair(first.url, second.url) as (client, nodes):
            target = {
                where: {"x-peerinfer-target": node.peer_id} for where, node in zip(WHERE, nodes, strict=True)
            }
            yield Swarm(client, [first, second], target)


def replay(case: dict[str, Any]) -> Any:
    """A server that says what was recorded, streamed or whole as it is asked."""

    def script(received: Received) -> Script:
        return [case["stream" if received.body.get("stream") else "whole"].encode()]

    return script


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is new in each, or SGLang's own and in whole answers alone."""
    kept = {name: value for name, value in answer.items() if name not in ("id", "created", "metadata")}
    kept["usage"] = {name: value for name, value in answer["usage"].items() if value is not None}
    return kept


@pytest.mark.parametrize("where", WHERE)
async def test_recorded_answers_reach_the_client(swarm: Swarm, where: str) -> None:
    """Streams byte for byte, with their usage or without; whole ones with the same members and values."""
    for name, case in RECORDED.items():
        swarm.mock(where).script = replay(case)
        body = case["body"] | {"model": MODEL}
        stream = await swarm.post(where, case["endpoint"], body | {"stream": True})
        events = case["stream"].rstrip("\n").split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["choices"] == [], name
        assert stream.text == "\n\n".join([*events[:-2], events[-1]]) + "\n\n", name
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await swarm.post(where, case["endpoint"], body | options)
        assert stream.text == case["stream"], name
        whole = await swarm.post(where, case["endpoint"], body)
        assert told(whole.json()) == told(json.loads(case["whole"])), name
        if not swarm.mock(where).received[-1].body.get("stream"):
            assert whole.text == case["whole"], name


async def test_an_answer_that_a_server_aborts_goes_on_at_the_other(swarm: Swarm) -> None:
    """It says so with status 200 and `finish_reason`; the client sees one answer, with the other's end."""
    aborted = {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}
    swarm.mock("here").script = lambda _: [PIECE, sse(aborted), b"data: [DONE]\n\n"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
    response = await swarm.client.post(PATHS["chat"], json=body)
    assert len(swarm.mock("here").received) == 1
    sent = swarm.mock("forwarded").received[-1].body
    assert sent["messages"][-1] == {"role": "assistant", "content": "x"}
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content") or "" for choice in choices).startswith("x")
    assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == ["length"]


@pytest.mark.parametrize("where", WHERE)
async def test_a_body_arrives_byte_for_byte(swarm: Swarm, where: str) -> None:
    """Schemas, tools, penalties, unknown fields; the server may not even know them yet."""
    parts = [
        b'"messages":[ {"role":"user","content":"\\u00fc \xf0\x9f\xa6\x8a"} ]',
        b'"response_format" : {"type":"json_schema","json_schema":{"schema":{"b":1.0,"a":1e2}, "name":'
        b'"\\u00e9"}}',
        b'"tools" : [{"function":{"parameters":{"z":1,"a":{}},"name":"f"},"type":"function"}]',
        b'"logprobs":true, "top_logprobs":2,"n":2',
        b'"seed":12345678901234567, "stop":["\\u2028","b"], "presence_penalty":-0.50',
        b'"a_field_of_tomorrow": [1.50, {"x" :null}]',
    ]
    model = json.dumps({"model": MODEL}).encode()[1:-1]
    for more in ([b'"stream":false'], [b'"stream":true'], [b'"stream":true', b'"stream_options":null']):
        raw = b"{" + b",\n ".join([model, *parts, *more]) + b"}"
        response = await swarm.post(where, "chat", raw)
        assert response.status_code == 200
        sent = swarm.mock(where).received[-1]
        for part in parts:
            for member in part.split(b", ") if part.startswith((b'"logprobs"', b'"seed"')) else [part]:
                assert member in sent.raw
        assert sent.body["model"] == MODEL


@pytest.mark.parametrize("where", WHERE)
async def test_refusals_reach_the_client_in_the_servers_words(swarm: Swarm, where: str) -> None:
    """Before a stream begins and as its first event; the client's library raises what it always raises."""
    mock = swarm.mock(where)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    message = "temperature must be a non-negative finite number, got -3.0."
    inner = {"message": "no", "type": "x", "param": "top_q", "code": "unknown_parameter"}
    for script, body, expected in (
        ([Head(400), compact(error_json(message))], chat, (message, None, None)),
        ([sse({"error": error_json(message)})], chat | {"stream": True}, (message, None, None)),
        ([Head(422), compact({"error": inner})], chat, ("no", "top_q", "unknown_parameter")),
    ):
        mock.script = lambda _, script=script: script  # type: ignore[misc]
        response = await swarm.post(where, "chat", body)
        assert response.status_code in (400, 422)
        error = response.json()["error"]
        assert (error["message"], error["param"], error["code"]) == expected
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("where", WHERE)
async def test_a_long_prompt_is_refused_as_openai_does(swarm: Swarm, where: str) -> None:
    message = "The input (5031 tokens) is longer than the model's context length (4096 tokens)."
    swarm.mock(where).script = lambda _: [Head(400), compact(error_json(message))]

    def call() -> None:
        with openai.OpenAI(base_url=f"{swarm.client.base_url}/v1", api_key="none", max_retries=0) as client:
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                extra_headers=swarm.target[where],
            )

    with pytest.raises(openai.BadRequestError) as caught:
        await trio.to_thread.run_sync(call)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    assert message in str(caught.value)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "body", [{"stream": True}, {}, {"tools": [{"type": "function", "function": {"name": "f"}}]}]
)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_frees_the_server(
    swarm: Swarm, where: str, body: dict[str, Any], begun: bool
) -> None:
    """Situation 16: in prefill and after, streamed, assembled and whole, wherever it is served."""
    mock, never = swarm.mock(where), trio.Event()
    streams = "tools" not in body
    mock.script = lambda _: [PIECE, never] if begun and streams else [never]
    request = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **body}
    with trio.CancelScope() as client_scope:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                await mock.receives(1)
                await trio.sleep(0.1)  # the first piece is on its way
                client_scope.cancel()

            nursery.start_soon(leave)
            await swarm.post(where, "chat", request)
    left_at = trio.current_time()
    received = mock.received[0]
    with trio.fail_after(5):
        await received.left.wait()
        await until(lambda: bool(mock.aborted))
    assert trio.current_time() - left_at < 2.0
    assert not received.whole
    assert mock.aborted[0] == received.body["rid"]


async def test_an_answer_longer_than_a_frame_is_forwarded_whole(swarm: Swarm) -> None:
    """Method: log-probabilities without end."""
    case = RECORDED["chat with log-probabilities"]
    whole = json.loads(case["whole"])
    whole["choices"][0]["logprobs"]["content"] *= 6000
    text = compact(whole)
    assert len(text) > 5 * 1024 * 1024
    swarm.mock("forwarded").script = lambda _: [text]
    answer = await swarm.post("forwarded", "chat", case["body"] | {"model": MODEL})
    assert answer.content == text
