"""Foreign pages and rebound names stay outside."""

from __future__ import annotations

import socket

import pytest
import trio

from peerinfer.api.errors import BadRequestError
from peerinfer.api.security import HostPolicy
from tests.api.scripted import Face, chat_body

LOOPBACK = HostPolicy("127.0.0.1", "127.0.0.1")
EVERYWHERE = HostPolicy("0.0.0.0", "0.0.0.0")
NAMED = HostPolicy("gpu.lan", "192.168.1.5")
PROXIED = HostPolicy("0.0.0.0", "0.0.0.0", ["LLM.example.org"])


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        (LOOPBACK, "127.0.0.1:8000"),
        (LOOPBACK, "127.0.0.1"),
        (LOOPBACK, "localhost:9"),
        (LOOPBACK, "LOCALHOST."),
        (LOOPBACK, "[::1]:8000"),
        (LOOPBACK, "127.9.9.9"),
        (EVERYWHERE, "192.168.1.5:8000"),
        (EVERYWHERE, "[fe80::1]:8000"),
        (EVERYWHERE, "localhost"),
        (EVERYWHERE, f"{socket.gethostname().upper()}:8000"),
        (NAMED, "gpu.lan:8000"),
        (NAMED, "192.168.1.5"),
        (PROXIED, "llm.example.org"),
    ],
)
def test_own_host_is_let_through(policy: HostPolicy, host: str) -> None:
    policy.check([(b"host", host.encode())])


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        (LOOPBACK, "evil.example"),
        (LOOPBACK, "localhost.evil.example"),
        (LOOPBACK, "127.0.0.1.evil.example"),
        (LOOPBACK, "192.168.1.5"),
        (LOOPBACK, "0.0.0.0:8000"),
        (LOOPBACK, "evil@localhost"),
        (LOOPBACK, "localhost/evil"),
        (LOOPBACK, "[::1"),
        (LOOPBACK, "localhost:x"),
        (LOOPBACK, ""),
        (EVERYWHERE, "evil.example:8000"),
        (NAMED, "other.lan"),
        (PROXIED, "example.org"),
    ],
)
def test_foreign_host_is_refused(policy: HostPolicy, host: str) -> None:
    with pytest.raises(BadRequestError, match="--http HOST:PORT") as caught:
        policy.check([(b"host", host.encode())])
    assert (caught.value.status, caught.value.reason) == (403, "host")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost", "http://localhost"),
        ("localhost", "https://localhost"),
        ("localhost:80", "http://localhost"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_own_page_is_let_through(host: str, origin: str) -> None:
    LOOPBACK.check([(b"host", host.encode()), (b"origin", origin.encode())])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://evil.example"),
        ("localhost:8000", "http://localhost:3000"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "null"),
        ("localhost:8000", "file://"),
        ("localhost:8000", "http://localhost:8000.evil.example"),
        ("localhost:8000", "chrome-extension://localhost:8000"),
        ("localhost:8000", ""),
    ],
)
def test_foreign_page_is_refused(host: str, origin: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        LOOPBACK.check([(b"host", host.encode()), (b"origin", origin.encode())])
    assert (caught.value.status, caught.value.reason) == (403, "origin")


def test_http_1_0_needs_no_host() -> None:
    """Health checks of load balancers have none; browsers always do."""
    LOOPBACK.check([])
    with pytest.raises(BadRequestError):
        LOOPBACK.check([(b"origin", b"http://evil.example")])


async def test_refusal_names_the_way_out_and_is_counted(face: Face) -> None:
    for header, value in (("host", "evil.example"), ("origin", "http://evil.example")):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/peerinfer/v1/status")):
            async with face.http() as client:
                response = await client.request(method, path, json=chat_body(), headers={header: value})
            assert response.status_code == 403
            assert response.json()["error"]["code"] == f"foreign_{header}"
    assert face.node.dropped == {"host": 2, "origin": 2}
    assert face.node.incoming == []


async def test_preflight_gets_no_permission(face: Face) -> None:
    """There is no CORS: a page of another site may send nothing."""
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    async with face.http() as client:
        response = await client.options("/v1/chat/completions", headers=headers)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_websocket_is_refused(face: Face) -> None:
    request = (
        b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    client = await face.connect()
    async with client:
        with trio.fail_after(10):
            await client.send_all(request)
            assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 403 ")
    assert face.node.dropped["websocket"] == 1
