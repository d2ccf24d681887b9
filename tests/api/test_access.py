"""The API key: everything but the probes is behind it, and nothing of it is repeated or logged."""

from __future__ import annotations

import base64
import logging

import openai
import pytest
import trio

from peerinfer.api.access import KeyPolicy
from peerinfer.api.app import ENDPOINTS
from peerinfer.api.errors import BadRequestError
from peerinfer.api.server import serve_http
from peerinfer.config import HttpConfig
from tests.api.scripted import Face, ScriptedNode, chat_body

KEY = "s3cret-of-this-node"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
async def closed_face(nursery: trio.Nursery, node: ScriptedNode) -> Face:
    """A face with a key."""
    config = HttpConfig(port=0, port_is_default=False, api_key=KEY)
    return Face(await nursery.start(serve_http, node, config), node)


def test_it_is_open_without_a_key() -> None:
    KeyPolicy("").check("/v1/models", [])


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer   {KEY} ", basic("", KEY), basic("me", KEY)])
def test_the_key_is_let_through(value: str) -> None:
    KeyPolicy(KEY).check("/v1/models", [(b"host", b"x"), (b"authorization", value.encode())])


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Token {KEY}",
        KEY,
        basic(KEY, ""),
        basic("", "other"),
        "Basic !",
        "Basic " + base64.b64encode(KEY.encode()).decode(),
        "Bearer \xff",
    ],
)
def test_anything_else_is_refused_and_not_repeated(value: str) -> None:
    headers = [(b"authorization", value.encode("latin-1"))]
    with pytest.raises(BadRequestError) as caught:
        KeyPolicy(KEY).check("/v1/models", headers)
    error = caught.value
    assert (error.status, error.type, error.code) == (401, "invalid_request_error", "invalid_api_key")
    assert KEY[:5] not in error.message


async def test_every_path_but_the_probes_needs_it(closed_face: Face) -> None:
    """Method: all paths that the index names, one that does not exist, and the index itself."""
    paths = [tuple(each.split()) for each in ENDPOINTS] + [
        ("GET", "/"),
        ("GET", "/nothing"),
        ("GET", "/metrics"),
    ]
    async with closed_face.http() as client:
        for method, path in paths:
            refused = await client.request(method, path, json=chat_body() if method == "POST" else None)
            if path in ("/healthz", "/readyz"):
                assert refused.status_code == 200
                continue
            assert refused.status_code == 401, path
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert "didn't provide an API key" in refused.json()["error"]["message"]
            assert refused.headers.get_list("www-authenticate") == [
                'Bearer realm="peerinfer"',
                'Basic realm="peerinfer"',
            ]
            headers = {"authorization": f"Bearer {KEY}"}
            body = chat_body() if method == "POST" else None
            async with client.stream(method, path, headers=headers, json=body) as let_in:
                assert let_in.status_code != 401, path
    assert closed_face.node.dropped["api_key"] == len(paths) - 2
    assert len(closed_face.node.incoming) == 1, "the chat with the key, and nothing without it"


async def test_the_real_client_is_told_as_openai_tells_it(closed_face: Face) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        await closed_face.openai(lambda client: client.models.list())
    assert caught.value.code == "invalid_api_key"


async def test_a_foreign_page_is_refused_even_with_the_key(closed_face: Face) -> None:
    """A browser that was told the key sends it along wherever it is led, to a rebound name as well."""
    for header, value in (("host", "evil.example"), ("origin", "http://evil.example")):
        headers = {header: value, "authorization": basic("", KEY)}
        response = await closed_face.get("/peerinfer/v1/status", headers=headers)
        assert response.status_code == 403


async def test_no_log_shows_a_key(closed_face: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for key in (KEY, "wr0ng-key"):
        await closed_face.get("/peerinfer/v1/status", headers={"authorization": f"Bearer {key}"})
        await closed_face.post(
            "/v1/chat/completions", content=b"{", headers={"authorization": f"Bearer {key}"}
        )
    assert KEY not in caplog.text
    assert "wr0ng" not in caplog.text
