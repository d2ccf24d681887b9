"""The client of an engine's server, against scripted bytes on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from peerinfer.engine.http_client import HttpClient, HttpError, UnreachableError

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\n1\r\n,\r\n10\r\n sixteen letters\r\n0\r\nTrailer: t\r\n\r\n"
)


class Server:
    """Answers each request on each connection by the next script: pieces of bytes; then it may close."""

    def __init__(self) -> None:
        self.url = ""
        self.scripts: list[Sequence[bytes]] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.closes_after: Callable[[int], bool] = lambda _: False
        """Whether it closes the connection after so many requests in all."""
        self.left = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            async for data in stream:
                self.requests.append(bytes(data))
                for piece in self.scripts.pop(0):
                    await stream.send_all(piece)
                    await trio.lowlevel.checkpoint()
                if self.closes_after(len(self.requests)):
                    break
        self.left.set()


@asynccontextmanager
async def serving(*scripts: Sequence[bytes]) -> AsyncIterator[tuple[Server, HttpClient]]:
    server = Server()
    server.scripts = list(scripts)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        client = HttpClient(key="secret")
        with trio.fail_after(20):
            yield server, client
        client.close()
        nursery.cancel_scope.cancel()


async def ask(client: HttpClient, url: str) -> tuple[int, bytes]:
    """Status and body."""
    body = b""
    async with client.request("POST", f"{url}/v1/x?y=z", b"{}") as response:
        while data := await response.receive():
            body += data
    return response.status, body


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
async def test_chunks_come_out_as_they_went_in(size: int) -> None:
    """However the network cuts them; an interim response, extensions and trailers are passed over."""
    pieces = [CHUNKED[begin : begin + size] for begin in range(0, len(CHUNKED), size)]
    async with serving(pieces, [LENGTH]) as (server, client):
        assert await ask(client, server.url) == (201, b"hello, sixteen letters")
        assert await ask(client, server.url) == (200, b"hello")
        assert server.connections == 1


async def test_the_request_is_whole_and_names_its_sender() -> None:
    async with serving([LENGTH]) as (server, client):
        await ask(client, server.url)
        host = server.url.removeprefix("http://").encode()
        assert server.requests == [
            b"POST /v1/x?y=z HTTP/1.1\r\nhost: " + host + b"\r\naccept-encoding: identity\r\n"
            b"content-type: application/json\r\ncontent-length: 2\r\nauthorization: Bearer secret\r\n\r\n{}"
        ]


async def test_body_without_a_length_ends_with_its_connection() -> None:
    async with serving([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"], [LENGTH]) as (server, client):
        server.closes_after = lambda count: count == 1
        assert await ask(client, server.url) == (200, b"hello")
        assert await ask(client, server.url) == (200, b"hello")
        assert server.connections == 2


async def test_no_body_is_waited_for_where_there_is_none() -> None:
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with serving([empty], [LENGTH.replace(b"5", b"0")[:-5]]) as (server, client):
        assert await ask(client, server.url) == (204, b"")
        assert await ask(client, server.url) == (200, b"")


async def test_connection_that_the_server_means_to_close_is_not_used_again() -> None:
    closing = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with serving([closing], [LENGTH]) as (server, client):
        await ask(client, server.url)
        await ask(client, server.url)
        assert server.connections == 2


async def test_request_on_a_connection_that_just_died_is_sent_again() -> None:
    """Method: the server reads the second request and closes without a word, as one does that restarts."""
    async with serving([LENGTH], [], [LENGTH]) as (server, client):
        server.closes_after = lambda count: count == 2
        await ask(client, server.url)
        assert await ask(client, server.url) == (200, b"hello")
        assert (len(server.requests), server.connections) == (3, 2)


async def test_request_on_a_new_connection_is_sent_once() -> None:
    async with serving([]) as (server, client):
        server.closes_after = lambda _: True
        with pytest.raises(HttpError, match="without an answer"):
            await ask(client, server.url)
        assert len(server.requests) == 1


async def test_answer_that_has_begun_is_not_asked_for_again() -> None:
    """A second answer could differ from what the reader has."""
    async with serving([LENGTH], [LENGTH[:-3]]) as (server, client):
        server.closes_after = lambda count: count == 2
        await ask(client, server.url)
        with pytest.raises(HttpError, match="before the end"):
            await ask(client, server.url)
        assert len(server.requests) == 2


async def test_leaving_an_answer_closes_its_connection() -> None:
    """That is how a server learns that nobody reads any more."""
    async with serving([CHUNKED[:-30]]) as (server, client):
        async with client.request("POST", server.url, b"{}") as response:
            await response.receive()
        await server.left.wait()


async def test_nobody_listening_is_told_apart() -> None:
    with pytest.raises(UnreachableError):
        await ask(HttpClient(), "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "script",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000,
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
    ids=["ssh", "status", "size", "negative", "long size", "length", "long head"],
)
async def test_what_is_no_http_is_an_error(script: bytes) -> None:
    async with serving([script]) as (server, client):
        with pytest.raises(HttpError):
            await ask(client, server.url)
