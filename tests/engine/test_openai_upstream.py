"""One server's client, against an SGLang-shaped server on real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import trio

from peerinfer.core.types import Chunk, End, Endpoint, InferRequest, RequestError, Usage
from peerinfer.engine.openai_upstream import OpenAIUpstream, open_client
from peerinfer.engine.upstream_body import outgoing
from peerinfer.node.ports import EngineError
from tests.engine.mock_server import MODEL, Break, Head, MockServer, compact, error_json, serving, sse
from tests.engine.record_sglang import RECORDINGS

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
RECORDED: dict[str, Any] = json.loads(RECORDINGS.read_text(encoding="utf-8"))


@pytest.fixture
async def mock() -> AsyncIterator[MockServer]:
    async with serving() as server:
        yield server


async def ask(mock: MockServer, body: dict[str, Any], endpoint: Endpoint = "chat") -> list[Chunk | End]:
    request = InferRequest(id="r1", endpoint=endpoint, body=body, raw=json.dumps(body).encode())
    async with open_client() as client:
        upstream = OpenAIUpstream(client, mock.url)
        made = outgoing(request, model=MODEL, is_sglang=True, assembles_chats=True)
        return [item async for item in upstream.answer(made)]


def chunks(items: list[Chunk | End]) -> list[bytes]:
    assert all(isinstance(item, Chunk) for item in items[:-1])
    return [item.sse_json for item in items if isinstance(item, Chunk)]


def events(stream: str) -> list[bytes]:
    """The data of a recorded stream's events, without `[DONE]`."""
    return [event.removeprefix("data: ").encode() for event in stream.split("\n\n") if "{" in event]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("piece", [37, 100_000])
async def test_a_stream_is_passed_on_byte_for_byte(mock: MockServer, name: str, piece: int) -> None:
    """Method: what a real SGLang said, cut into pieces of different sizes; only the usage is taken out."""
    case = RECORDED[name]
    wire = case["stream"].encode()
    mock.script = lambda _: [wire[begin : begin + piece] for begin in range(0, len(wire), piece)]
    body = case["body"] | {"stream": True}
    items = await ask(mock, body, case["endpoint"])
    recorded = events(case["stream"])
    assert chunks(items) == recorded[:-1]
    usage = json.loads(recorded[-1])["usage"]
    end = items[-1]
    assert isinstance(end, End)
    assert end.usage == Usage(
        prompt_tokens=usage["prompt_tokens"], completion_tokens=usage["completion_tokens"]
    )
    assert end.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
    asked = await ask(mock, body | {"stream_options": {"include_usage": True}}, case["endpoint"])
    assert chunks(asked) == recorded


async def test_text_is_told_with_each_chunk(mock: MockServer) -> None:
    """That of the first choice: a broken answer could go on from it."""
    for name in ("chat", "text of two choices"):
        case = RECORDED[name]
        mock.script = lambda _, case=case: [case["stream"].encode()]  # type: ignore[misc]
        items = await ask(mock, case["body"] | {"stream": True}, case["endpoint"])
        choice = json.loads(case["whole"])["choices"][0]
        text = choice["message"]["content"] if case["endpoint"] == "chat" else choice["text"]
        assert "".join(item.text for item in items if isinstance(item, Chunk)) == text


async def test_a_whole_answer_is_passed_on_byte_for_byte(mock: MockServer) -> None:
    case = RECORDED["chat with tools"]
    mock.script = lambda _: [case["whole"].encode()[:99], case["whole"].encode()[99:]]
    whole, end = await ask(mock, case["body"])
    assert isinstance(whole, Chunk)
    assert isinstance(end, End)
    assert whole.whole
    assert whole.sse_json == case["whole"].encode()
    assert whole.text == json.loads(case["whole"])["choices"][0]["message"]["content"]
    assert end.usage.completion_tokens == 8


async def test_refusals_are_told_in_the_servers_words(mock: MockServer) -> None:
    """As a response, and as the first event of a stream that has begun."""
    refusal = error_json("max_completion_tokens is too large: 99999.")
    for script in (
        [Head(status=400), compact(refusal)],
        [sse({"error": refusal}), b"data: [DONE]\n\n"],
    ):
        mock.script = lambda _, script=script: script  # type: ignore[misc]
        with pytest.raises(RequestError, match="too large: 99999") as caught:
            await ask(mock, CHAT | {"stream": True})
        assert caught.value.status == 400


@pytest.mark.parametrize(
    "script",
    [
        [Head(status=500), compact(error_json("boom"))],
        [Break()],
        [sse({"choices": [{"index": 0, "delta": {"content": "x"}}]}), Break()],
        [sse({"choices": [{"index": 0, "delta": {"content": "x"}}]})],
        [sse({"error": error_json("Generation aborted.", code=500)}), b"data: [DONE]\n\n"],
        [sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}), b"data: [DONE]\n\n"],
        [b"data: {not json\n\n"],
        [b"data: [1]\n\n"],
    ],
    ids=["status", "no answer", "cut", "no end", "error event", "aborted", "no json", "no object"],
)
async def test_a_servers_failure_is_an_engine_error(mock: MockServer, script: list[Any]) -> None:
    mock.script = lambda _: script
    with pytest.raises(EngineError):
        await ask(mock, CHAT | {"stream": True})


async def test_a_whole_answer_that_is_none_is_an_engine_error(mock: MockServer) -> None:
    mock.script = lambda _: [b"[]"]
    with pytest.raises(EngineError):
        await ask(mock, CHAT | {"tools": [{}]})


async def test_a_server_that_is_not_there_is_an_engine_error(mock: MockServer) -> None:
    mock.url = "http://127.0.0.1:9"
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        await ask(mock, CHAT)


async def test_leaving_closes_the_connection_before_and_after_the_first_chunk(mock: MockServer) -> None:
    """Which is how a server learns that nobody reads."""
    never = trio.Event()
    first = sse({"choices": [{"index": 0, "delta": {"content": "x"}}]})
    request = InferRequest(id="r1", endpoint="chat", body=CHAT | {"stream": True})
    async with open_client() as client:
        upstream = OpenAIUpstream(client, mock.url)
        made = outgoing(request, model=MODEL, is_sglang=True, assembles_chats=True)
        for number, script in enumerate(([never], [first, never]), start=1):
            mock.script = lambda _, script=script: script  # type: ignore[misc]
            async with trio.open_nursery() as nursery, aclosing(upstream.answer(made)) as answer:
                nursery.start_soon(mock.receives, number)
                with trio.move_on_after(0.3):
                    await anext(answer)
                    if number == 1:
                        raise AssertionError("there is nothing to read")
            with trio.fail_after(5):
                await mock.received[number - 1].left.wait()
            assert not mock.received[number - 1].whole


async def test_connections_are_used_again(mock: MockServer) -> None:
    """Method: all requests come from one port of the client."""
    request = InferRequest(id="r1", endpoint="chat", body=CHAT)
    async with open_client() as client:
        upstream = OpenAIUpstream(client, mock.url)
        for _ in range(3):
            made = outgoing(request, model=MODEL, is_sglang=True, assembles_chats=True)
            assert [item async for item in upstream.answer(made)]
    assert len({request.client for request in mock.received}) == 1


async def test_aborts_name_every_part_of_a_request(mock: MockServer) -> None:
    async with open_client() as client:
        await OpenAIUpstream(client, mock.url).abort(("a", "b"))
        await OpenAIUpstream(client, "http://127.0.0.1:9").abort(("c",))  # nobody is there to be told
    assert mock.aborted == ["a", "b"]


async def test_small_calls_fail_as_engine_errors(mock: MockServer) -> None:
    async with open_client() as client:
        upstream = OpenAIUpstream(client, mock.url)
        assert (await upstream.get("/server_info"))["page_size"] == 16
        with pytest.raises(EngineError, match="status 404"):
            await upstream.get("/no_such_path")


async def test_the_key_is_shown_to_the_server(mock: MockServer) -> None:
    async with open_client(key="secret") as client:
        made = outgoing(
            InferRequest(id="r1", endpoint="chat", body=CHAT),
            model=MODEL,
            is_sglang=False,
            assembles_chats=False,
        )
        assert [item async for item in OpenAIUpstream(client, mock.url).answer(made)]
    assert mock.received[0].headers["authorization"] == "Bearer secret"
