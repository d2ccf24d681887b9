"""Completions as the real `openai` client and a plain HTTP client see them."""

from __future__ import annotations

import json
import re

import openai
import pytest
import trio

from peerinfer.core.types import Chunk, RequestError
from tests.api.scripted import ME, MODEL, OTHER, Face, ScriptedNode, chat_body

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_openai_client_gets_a_whole_chat(face: Face) -> None:
    """The chunks arrive as one object, with usage and the cached tokens in it."""
    answer = await face.openai(lambda c: c.chat.completions.create(model=MODEL, messages=MESSAGES))
    assert answer.object == "chat.completion"
    assert answer.id == "chatcmpl-7"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 40
    assert answer.usage.completion_tokens == 2
    assert answer.usage.total_tokens == 42
    assert answer.usage.prompt_tokens_details.cached_tokens == 32
    assert answer._request_id == face.node.incoming[0].id


async def test_openai_client_streams_a_chat(face: Face) -> None:
    """Without include_usage no chunk has usage."""

    def call(client: openai.OpenAI) -> list[object]:
        return list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))

    chunks = await face.openai(call)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(c.usage is None for c in chunks)


async def test_usage_chunk_comes_last_when_it_is_asked_for(face: Face) -> None:
    """Its choices are empty and its id is that of the other chunks."""

    def call(client: openai.OpenAI) -> list[object]:
        options = {"include_usage": True}
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options=options
        )
        return list(stream)

    last = (await face.openai(call))[-1]
    assert last.choices == []
    assert last.id == "chatcmpl-7"
    assert last.usage.total_tokens == 42
    assert last.usage.prompt_tokens_details.cached_tokens == 32


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [1, 2, 3], [[1, 2, 3]]])
async def test_openai_client_gets_a_text_completion(face: Face, prompt: object) -> None:
    """Text and token arrays are taken, streamed and not."""
    face.node.steps = [
        ScriptedNode.text_chunk(" upon"),
        ScriptedNode.text_chunk(" a", finish_reason="length"),
    ]
    face.node.steps.append(ScriptedNode.end())
    whole = await face.openai(lambda c: c.completions.create(model=MODEL, prompt=prompt, max_tokens=2))
    assert (whole.object, whole.choices[0].text) == ("text_completion", " upon a")
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.total_tokens == 42
    pieces = await face.openai(
        lambda c: list(c.completions.create(model=MODEL, prompt=prompt, max_tokens=2, stream=True))
    )
    assert [p.choices[0].text for p in pieces] == [" upon", " a"]
    assert [i.endpoint for i in face.node.incoming] == ["completions", "completions"]


async def test_stream_relays_the_bytes_of_each_chunk(face: Face) -> None:
    """Byte for byte, also where our own JSON would look different."""
    response = await face.post(CHAT, json=chat_body(stream=True))
    chunks = [step.sse_json for step in face.node.steps if isinstance(step, Chunk)]
    assert response.content == b"".join(b"data: " + c + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


async def test_first_chunk_reaches_the_client_before_the_second_exists(face: Face) -> None:
    """Nothing is held back: the script waits until the client has read the first chunk."""
    read = trio.Event()
    face.node.steps[1:1] = [read]
    async with face.http() as client, client.stream("POST", CHAT, json=chat_body(stream=True)) as response:
        lines = response.aiter_lines()
        with trio.fail_after(10):
            assert (await anext(lines)).startswith("data: {")
            read.set()
            assert [line async for line in lines][-2:] == ["data: [DONE]", ""]


async def test_node_gets_the_body_as_it_came(face: Face) -> None:
    """Raw and parsed, unknown fields included."""
    raw = b'{ "model":"org/tiny",\n "messages":[{"role":"user","content":"\\u00e9"}], "mirostat": 2 }'
    await face.post(CHAT, content=raw, headers={"content-type": "application/json; charset=utf-8"})
    (incoming,) = face.node.incoming
    assert incoming.raw == raw
    assert incoming.body == json.loads(raw)
    assert (incoming.endpoint, incoming.policy, incoming.target) == ("chat", None, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_headers_tell_where_the_answer_was_made(face: Face, stream: bool) -> None:
    response = await face.post(CHAT, json=chat_body(stream=stream))
    request_id = response.headers["x-peerinfer-request-id"]
    assert re.fullmatch("req-[0-9a-f]{24}", request_id)
    assert request_id == face.node.incoming[0].id == response.headers["x-request-id"]
    assert response.headers["x-peerinfer-served-by"] == OTHER
    assert response.headers["x-peerinfer-route"] == "forwarded"
    assert response.headers["x-peerinfer-expected-cached-tokens"] == "32"
    assert "access-control-allow-origin" not in response.headers


async def test_error_before_the_first_chunk_is_a_response_of_its_own(face: Face) -> None:
    """Status, Retry-After rounded up, the request's id; streamed or not."""
    face.node.prefill = [RequestError("all busy", status=503, code="overloaded", retry_after_s=1.2)]
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            await face.openai(
                lambda c, s=stream: c.chat.completions.create(model=MODEL, messages=MESSAGES, stream=s)
            )
        assert caught.value.status_code == 503
        assert caught.value.code == "overloaded"
        assert caught.value.response.headers["retry-after"] == "2"
        assert caught.value.response.headers["x-peerinfer-request-id"].startswith("req-")
        assert caught.value.response.json()["error"]["type"] == "server_error"


async def test_error_within_a_stream_ends_it_without_done(face: Face) -> None:
    """The openai client raises after the text that came before."""
    face.node.steps[3:] = [RequestError("the peer is gone", status=502, code="stream_broken")]
    texts = []

    def call(client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        texts.extend(chunk.choices[0].delta.content for chunk in stream)

    with pytest.raises(openai.APIError, match="the peer is gone") as caught:
        await face.openai(call)
    assert texts == ["", "Hello", " world"]
    assert caught.value.body["code"] == "stream_broken"
    raw = await face.post(CHAT, json=chat_body(stream=True))
    assert b"[DONE]" not in raw.content


async def test_error_within_a_whole_answer_names_the_server(face: Face) -> None:
    """Nothing was sent yet, so the status is the error's, and the headers say who broke off."""
    face.node.steps[2:] = [RequestError("the peer is gone", status=502, code="stream_broken")]
    response = await face.post(CHAT, json=chat_body())
    assert response.status_code == 502
    error = response.json()["error"]
    assert (error["message"], error["code"]) == ("the peer is gone", "stream_broken")
    assert response.headers["x-peerinfer-served-by"] == OTHER


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_without_its_end_is_an_error(face: Face, stream: bool) -> None:
    face.node.steps.pop()
    response = await face.post(CHAT, json=chat_body(stream=stream))
    assert "broke off" in response.text
    assert '"code": "stream_broken"' in response.text
    assert "[DONE]" not in response.text
    assert response.status_code == (200 if stream else 502)


@pytest.mark.parametrize("sse_json", [b"{", b"[]", b"{}", b'{"choices":[{}]}', b'{"choices":7}'])
async def test_malformed_chunk_is_an_error_of_the_serving_node(face: Face, sse_json: bytes) -> None:
    face.node.steps[1:1] = [Chunk(sse_json=sse_json)]
    response = await face.post(CHAT, json=chat_body())
    assert (response.status_code, response.json()["error"]["code"]) == (502, "malformed_answer")


async def test_line_break_in_a_chunk_cannot_forge_an_event(face: Face) -> None:
    face.node.steps[1:1] = [Chunk(sse_json=b"{}\n\ndata: [DONE]")]
    response = await face.post(CHAT, json=chat_body(stream=True))
    assert "malformed" in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["prefill", "steps"])
async def test_bug_is_logged_once_and_not_shown(
    face: Face, stream: bool, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns that there was one, and the request's id."""
    getattr(face.node, where)[0:0] = [KeyError("secret")]
    response = await face.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == (200 if stream and where == "steps" else 500)
    assert "internal_error" in response.text
    assert "secret" not in response.text
    assert [r.getMessage() for r in caplog.records] == [f"request={face.node.incoming[0].id} failed by a bug"]


@pytest.mark.parametrize("stream", [False, True])
async def test_whole_answer_is_never_cancelled(face: Face, stream: bool) -> None:
    """The server says "disconnected" after each response as well; the node must not take that for one."""
    async with face.http() as client:
        for _ in range(20):
            assert (await client.post(CHAT, json=chat_body(stream=stream))).is_success
    assert face.node.outcomes == ["whole"] * 20


async def test_requests_at_once_do_not_mix(face: Face) -> None:
    """32 clients, streaming and not, over connections of their own."""
    texts: list[str] = []

    async def one(stream: bool) -> None:
        response = await face.post(CHAT, json=chat_body(stream=stream))
        texts.append(response.text)

    async with trio.open_nursery() as nursery:
        for i in range(32):
            nursery.start_soon(one, i % 2 == 0)
    assert sum("[DONE]" in text for text in texts) == 16
    assert sum("Hello world" in text for text in texts) == 16
    assert len({incoming.id for incoming in face.node.incoming}) == 32


async def test_overrides_need_permission(face: Face) -> None:
    for header in ("x-peerinfer-policy", "x-peerinfer-target"):
        response = await face.post(CHAT, json=chat_body(), headers={header: "local"})
        assert (response.status_code, response.json()["error"]["param"]) == (403, header)
        assert "--allow-overrides" in response.text
    assert face.node.incoming == []
    assert face.node.dropped["override"] == 2


async def test_overrides_reach_the_node_where_they_are_allowed(open_face: Face) -> None:
    headers = {"x-peerinfer-policy": "round-robin", "x-peerinfer-target": ME}
    await open_face.post(CHAT, json=chat_body(), headers=headers)
    (incoming,) = open_face.node.incoming
    assert (incoming.policy, incoming.target) == ("round-robin", ME)


async def test_unknown_policy_is_refused_with_the_known_ones(open_face: Face) -> None:
    response = await open_face.post(CHAT, json=chat_body(), headers={"x-peerinfer-policy": "best"})
    assert response.status_code == 400
    assert "longest-prefix" in response.json()["error"]["message"]
