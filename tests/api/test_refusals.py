"""What the face refuses, how it says so, and that it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import trio

from tests.api.scripted import MODEL, Face, chat_body, raw_post

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which has exactly OpenAI's four fields."""
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'{"model": NaN}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' * 20_000,
        b'{"a":' + b"9" * 5_000 + b"}",
    ],
)
async def test_body_that_is_no_json_object_is_a_bad_request(face: Face, raw: bytes) -> None:
    response = await face.post(CHAT, content=raw, headers=JSON)
    assert response.status_code == 400
    assert error_of(response)["code"] == "bad_json"
    assert face.node.dropped["bad_json"] == 1
    assert face.node.incoming == []
    assert response.headers["x-peerinfer-request-id"].startswith("req-")


async def test_escaped_emoji_is_no_half_character(face: Face) -> None:
    """Clients that write ASCII only send surrogate pairs."""
    body = chat_body(messages=[{"role": "user", "content": "\N{GRINNING FACE}"}])
    response = await face.post(CHAT, content=json.dumps(body, ensure_ascii=True), headers=JSON)
    assert response.is_success


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"model": None}, "model"),
        (CHAT, {"model": 7}, "model"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "Hi"}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [USER, "Hi"]}, "messages[1]"),
        (CHAT, {"messages": [{"content": "Hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content[0]"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"stream": True, "stream_options": 1}, "stream_options"),
        (CHAT, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": "9"}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        (CHAT, {"n": True}, "n"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"top_p": [1]}, "top_p"),
        (CHAT, {"seed": 0.5}, "seed"),
        (CHAT, {"stop": 7}, "stop"),
        (CHAT, {"stop": ["a", 7]}, "stop"),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": 7}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": ["a", 1]}, "prompt"),
        (TEXT, {"prompt": [-1]}, "prompt"),
        (TEXT, {"prompt": [True]}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt"),
    ],
)
async def test_wrong_field_is_named(face: Face, path: str, fields: dict[str, Any], param: str) -> None:
    response = await face.post(path, json=chat_body(**fields))
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert f"`{param}`" in error["message"]
    assert face.node.dropped["bad_body"] == 1
    assert face.node.incoming == []


async def test_missing_model_names_the_served_one(face: Face) -> None:
    response = await face.post(CHAT, json={"messages": [USER]})
    assert MODEL in error_of(response)["message"]


async def test_nulls_and_content_parts_are_fine(face: Face) -> None:
    """What OpenAI's clients send for 'not given', and messages in parts."""
    parts = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    nulls = dict.fromkeys(["stream", "stream_options", "max_tokens", "n", "temperature", "seed", "stop"])
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": []}]
    assert (await face.post(CHAT, json=chat_body(messages=messages, **nulls))).is_success


async def test_unknown_model_is_not_found(face: Face) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await face.openai(lambda c: c.chat.completions.create(model="gpt-9", messages=[USER]))
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
async def test_body_that_is_not_called_json_is_refused(face: Face, kind: str) -> None:
    response = await face.post(CHAT, content=json.dumps(chat_body()), headers={"content-type": kind})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]
    assert face.node.dropped["content_type"] == 1


async def test_compressed_body_is_refused(face: Face) -> None:
    response = await face.post(CHAT, content=b"x", headers={**JSON, "content-encoding": "gzip"})
    assert response.status_code == 415


async def test_client_that_sends_all_before_it_reads_gets_its_answer(face: Face) -> None:
    """Most do: a connection closed under the rest of a refused body would end in a broken pipe."""
    client = await face.connect()
    async with client:
        with trio.fail_after(10):
            await client.send_all(raw_post(CHAT, "x" * 30_000_000))
            assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("size", [100_001, 1_000_000])
async def test_too_large_body_is_refused(face: Face, size: int) -> None:
    response = await face.post(CHAT, content=b"x" * size, headers=JSON)
    assert response.status_code == 413
    assert "100000 bytes" in error_of(response)["message"]
    assert face.node.dropped["too_large"] == 1


async def test_too_large_body_in_pieces_is_cut_off(face: Face) -> None:
    """No content-length tells beforehand."""

    async def pieces() -> Any:
        for _ in range(300):
            yield b" " * 1000

    response = await face.post(CHAT, content=pieces(), headers=JSON)
    assert response.status_code == 413


async def test_body_in_pieces_is_taken(face: Face) -> None:
    async def pieces() -> Any:
        raw = json.dumps(chat_body()).encode()
        for i in range(0, len(raw), 7):
            yield raw[i : i + 7]

    assert (await face.post(CHAT, content=pieces(), headers=JSON)).is_success


async def test_client_that_waits_for_continue_is_told_to(face: Face) -> None:
    """Expect: 100-continue, as curl sends it for long bodies."""
    head, _, body = raw_post(CHAT, chat_body(), "expect: 100-continue").partition(b"\r\n\r\n")
    client = await face.connect()
    async with client:
        with trio.fail_after(10):
            await client.send_all(head + b"\r\n\r\n")
            assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 100 ")
            await client.send_all(body)
            assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 200 ")


async def test_body_that_does_not_come_is_given_up(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peerinfer.api.body.BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("peerinfer.api.errors.DRAIN_TIMEOUT_S", 0.05)
    client = await face.connect()
    async with client:
        with trio.fail_after(10):
            await client.send_all(raw_post(CHAT, chat_body())[:-5])
            assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 408 ")
    assert face.node.dropped["timeout"] == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_wrong_method_is_refused(face: Face, method: str) -> None:
    async with face.http() as client:
        response = await client.request(method, CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions/", "/admin", "/peerinfer/v1/none"])
async def test_unknown_path_is_not_found(face: Face, path: str) -> None:
    response = await face.post(path, content=b"x" * 50_000)
    assert response.status_code == 404
    assert error_of(response)["code"] == "unknown_url"


@pytest.fixture
def garbage() -> Iterator[bytes]:
    """Bytes that are not HTTP: noise, TLS, HTTP/2, a request gone wrong within its body."""
    chunked = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return iter(
        [
            b"\x00\xff garbage\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"GET /\xff HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
            chunked + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        ]
    )


async def test_garbage_is_answered_and_counted(
    face: Face, garbage: Iterator[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Each gets a 4xx and its connection closed; nothing is logged and the face goes on."""
    for count, noise in enumerate(garbage, 1):
        client = await face.connect()
        async with client:
            with trio.fail_after(10):
                await client.send_all(noise)
                assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 4")
        assert face.node.dropped["not_http"] == count, noise[:50]
    assert caplog.records == []
    assert (await face.get("/healthz")).is_success


async def test_upgrade_to_http2_is_ignored(face: Face) -> None:
    """HTTP/2 without TLS is nothing that a client needs."""
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "%%%"}
    response = await face.get("/healthz", headers=headers)
    assert (response.status_code, response.http_version) == (200, "HTTP/1.1")
