"""What an engine says is passed on as it is: whole answers, and its own word on usage."""

from __future__ import annotations

import json

import openai

from peerinfer.core.types import Chunk
from tests.api.scripted import Face, ScriptedNode, chat_body

CHAT = "/v1/chat/completions"
ODD = b'{ "id":"x",  "choices":[{"index":0,"message":{"content":"\\u00e9"}}], "usage":null, "v":1.0}'
USAGE = {"prompt_tokens": 40, "total_tokens": 49, "completion_tokens": 9, "reasoning_tokens": 7}


def usage_chunk() -> Chunk:
    """What an engine ends its stream with, with a field that is not OpenAI's."""
    head = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    return Chunk(sse_json=json.dumps(head | {"usage": USAGE}, separators=(",  ", ":")).encode())


async def test_a_whole_answer_reaches_the_client_byte_for_byte(face: Face) -> None:
    """Also in pieces, as a peer sends long ones."""
    for pieces in ([ODD], [ODD[:30], ODD[30:31], ODD[31:]]):
        face.node.steps = [*(Chunk(sse_json=piece, whole=True) for piece in pieces), ScriptedNode.end()]
        response = await face.post(CHAT, json=chat_body())
        assert response.status_code == 200
        assert response.content == ODD
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-peerinfer-route"] == "forwarded"


async def test_a_whole_answer_within_a_stream_is_an_error_of_the_serving_node(face: Face) -> None:
    face.node.steps = [Chunk(sse_json=ODD, whole=True), ScriptedNode.end()]
    response = await face.post(CHAT, json=chat_body(stream=True))
    assert b'"malformed_answer"' in response.content
    assert b"[DONE]" not in response.content


async def test_the_engines_own_usage_chunk_is_the_only_one(face: Face) -> None:
    own = usage_chunk()
    face.node.steps = [*ScriptedNode.chat_chunks("Hello"), own, ScriptedNode.end()]
    body = chat_body(stream=True, stream_options={"include_usage": True})
    response = await face.post(CHAT, json=body)
    assert response.content.endswith(b"data: " + own.sse_json + b"\n\ndata: [DONE]\n\n")
    assert response.content.count(b'"usage"') == 1


async def test_an_assembled_answer_has_the_engines_own_usage(face: Face) -> None:
    """What it lacks is filled in."""
    face.node.steps = [*ScriptedNode.chat_chunks("Hello"), usage_chunk(), ScriptedNode.end()]
    response = await face.post(CHAT, json=chat_body())
    assert response.json()["usage"] == USAGE | {"prompt_tokens_details": {"cached_tokens": 32}}


async def test_openai_client_reads_a_whole_answer(face: Face) -> None:
    face.node.steps = [Chunk(sse_json=ODD, whole=True), ScriptedNode.end()]

    def call(client: openai.OpenAI) -> object:
        message = {"role": "user", "content": "Hi"}
        return client.chat.completions.create(model="org/tiny", messages=[message])  # type: ignore[list-item]

    answer = await face.openai(call)
    assert answer.choices[0].message.content == "é"
