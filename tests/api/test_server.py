"""Where the face listens, and that it ends at once, quietly, whatever its clients do."""

from __future__ import annotations

import json
import logging
import socket
from contextlib import suppress

import httpx
import pytest
import trio
import trio.testing

from peerinfer.api import server
from peerinfer.api.server import ListenError, base_url, open_listener, serve_http
from peerinfer.config import HttpConfig
from tests.api.scripted import Face, ScriptedNode, chat_body, raw_post


def taken_port() -> socket.socket:
    """A listening socket on a free port whose next one is free as well, in all likelihood."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def test_defaulted_port_moves_on() -> None:
    with taken_port() as taken:
        port = taken.getsockname()[1]
        with open_listener(HttpConfig(port=port)) as first, open_listener(HttpConfig(port=port)) as second:
            assert port < first.getsockname()[1] < second.getsockname()[1] < port + server.PORTS_TRIED


def test_port_that_was_asked_for_does_not() -> None:
    with taken_port() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"Port {port} of 127.0.0.1 is taken; .*--http HOST:PORT"):
            open_listener(HttpConfig(port=port, port_is_default=False))


def test_bound_but_not_yet_listening_port_is_shared_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that start at once may both bind; the one whose listen fails moves on."""
    with socket.socket() as racing:
        racing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        racing.bind(("127.0.0.1", 0))
        port = racing.getsockname()[1]
        with open_listener(HttpConfig(port=port)) as first:
            assert first.getsockname()[1] >= port
            if first.getsockname()[1] == port:
                with pytest.raises(OSError, match="in use"):
                    racing.listen()


@pytest.mark.parametrize(
    ("host", "message"), [("no.such.host.invalid", "no address"), ("192.0.2.1", "Cannot listen on 192.0.2.1")]
)
def test_address_of_another_machine_is_a_clear_error(host: str, message: str) -> None:
    with pytest.raises(ListenError, match=message):
        open_listener(HttpConfig(host=host, port=0, port_is_default=False, insecure=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_an_address_that_others_reach_needs_a_key_or_an_explicit_word(host: str) -> None:
    with pytest.raises(ListenError, match=r"--api-key-file FILE .* or --insecure"):
        open_listener(HttpConfig(host=host, port=0, port_is_default=False))


def test_with_a_key_others_may_reach_it() -> None:
    open_listener(HttpConfig(host="0.0.0.0", port=0, port_is_default=False, api_key="k")).close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("localhost", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
    ],
)
def test_base_url_can_be_called_from_this_machine(host: str, url: str) -> None:
    with open_listener(HttpConfig(host=host, port=0, port_is_default=False, insecure=True)) as sock:
        assert base_url(sock) == f"{url}{sock.getsockname()[1]}"


async def test_ipv6_is_served_where_the_machine_has_it(nursery: trio.Nursery, node: ScriptedNode) -> None:
    try:
        listening = open_listener(HttpConfig(host="::1", port=0, port_is_default=False))
    except ListenError:
        return
    url = await nursery.start(
        lambda task_status: serve_http(node, HttpConfig(), listening=listening, task_status=task_status)
    )
    assert url.startswith("http://[::1]:")
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/healthz")).is_success


async def busy_face(nursery: trio.Nursery, node: ScriptedNode) -> tuple[Face, list[trio.SocketStream]]:
    """A face with every kind of connection open: fresh, idle, in prefill, streaming, and not reading."""
    url = await nursery.start(serve_http, node, HttpConfig(port=0, port_is_default=False))
    face = Face(url, node)
    fresh, idle = await face.connect(), await face.connect()
    await idle.send_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await idle.receive_some(4096)
    node.steps[1:1] = [trio.Event()]
    streaming = await face.send_chat(stream=True)
    await streaming.receive_some(4096)
    node.prefill = [trio.Event()]
    waiting = [await face.send_chat(stream=stream) for stream in (False, True)]
    await node.received(3)
    node.prefill = []
    node.steps = [ScriptedNode.chunk(delta={"content": "x" * 1_000_000})] * 50
    deaf = await face.send_chat(stream=True)
    await node.received(4)
    await trio.sleep(0.1)  # Its buffers fill up, and the send of the face blocks.
    return face, [fresh, idle, streaming, *waiting, deaf]


async def test_a_cancelled_face_waits_for_no_client(
    node: ScriptedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """With clients of every kind; the node's work is cancelled, and nothing is logged."""
    caplog.set_level(logging.INFO)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            face, clients = await busy_face(nursery, node)
        start = trio.current_time()
        nursery.cancel_scope.cancel()
    took = trio.current_time() - start
    assert took < 5  # a client that is waited for would hold it for ever
    assert node.outcomes == ["cancelled"] * 4
    assert caplog.records == []
    for client in clients:
        await client.aclose()
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", face.port)


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_without_an_answer_yet_are_told_that_the_node_shuts_down(
    node: ScriptedNode, stream: bool
) -> None:
    """Not that it failed: a 500 would be a bug's, and clients do not send it again to another node."""
    node.prefill = [trio.Event()]
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            url = await nursery.start(serve_http, node, HttpConfig(port=0, port_is_default=False))
            client = await Face(url, node).send_chat(stream=stream)
            await node.received(1)
        nursery.cancel_scope.cancel()
    head, _, body = (await everything(client)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("server_error", "shutting_down")


async def test_request_whose_body_is_not_here_yet_is_told_that_the_node_shuts_down(
    node: ScriptedNode,
) -> None:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            url = await nursery.start(serve_http, node, HttpConfig(port=0, port_is_default=False))
            client = await Face(url, node).connect()
            await client.send_all(raw_post("/v1/chat/completions", chat_body())[:-5])
            await trio.testing.wait_all_tasks_blocked(0.1)
        nursery.cancel_scope.cancel()
    assert (await everything(client)).startswith(b"HTTP/1.1 503 ")


async def test_stream_just_ends_when_the_node_shuts_down(node: ScriptedNode) -> None:
    node.steps[1:1] = [trio.Event()]
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            url = await nursery.start(serve_http, node, HttpConfig(port=0, port_is_default=False))
            client = await Face(url, node).send_chat(stream=True)
            begun = await client.receive_some(65536)
        nursery.cancel_scope.cancel()
    answer = begun + await everything(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"[DONE]" not in answer


async def everything(client: trio.SocketStream) -> bytes:
    """What comes until the connection ends."""
    answer = b""
    async with client:
        with trio.fail_after(10), suppress(trio.BrokenResourceError):  # a reset is an end as well
            async for piece in client:
                answer += piece
    return answer


class Wakeups(trio.abc.Instrument):
    """Counts how often trio's loop comes back from waiting for I/O."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_idle_face_does_not_poll(face: Face) -> None:
    """With idle connections open the loop sleeps: half a second brings only the wake-ups of this test."""
    async with face.http() as client:
        await client.get("/healthz")
        fresh = await face.connect()
        wakeups = Wakeups()
        trio.lowlevel.add_instrument(wakeups)
        await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(wakeups)
        await fresh.aclose()
    assert wakeups.count <= 5


async def test_connection_beyond_the_limit_is_told_to_come_back(
    nursery: trio.Nursery, node: ScriptedNode
) -> None:
    config = HttpConfig(port=0, port_is_default=False, connections_max=2)
    face = Face(await nursery.start(serve_http, node, config), node)
    face.node.prefill = [trio.Event(), trio.Event()]
    held = [await face.send_chat(stream=True) for _ in range(2)]
    with trio.fail_after(10):
        await face.node.received(2)
        third = await face.connect()
        answer = await third.receive_some(4096)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        for client in (*held, third):
            await client.aclose()
        await trio.testing.wait_all_tasks_blocked(0.1)  # Till the closed ones are noticed.
        assert (await face.get("/healthz")).is_success


async def test_connections_without_a_request_make_room_for_one(
    nursery: trio.Nursery, node: ScriptedNode
) -> None:
    """Strangers who only connect shut nobody out; the one that has been silent longest goes first."""
    config = HttpConfig(port=0, port_is_default=False, connections_max=2)
    face = Face(await nursery.start(serve_http, node, config), node)
    silent, begun = await face.connect(), await face.connect()
    with trio.fail_after(10):
        await begun.send_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert (await face.get("/healthz")).is_success
        assert await silent.receive_some(1) == b""
        await begun.send_all(b"\r\n")
        assert (await begun.receive_some(4096)).startswith(b"HTTP/1.1 200 ")
        for client in (silent, begun):
            await client.aclose()


async def test_bug_of_a_route_is_an_error_without_its_traceback(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    face.node.status_json = {"bad": object()}
    response = await face.get("/peerinfer/v1/status")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "Traceback" not in response.text
    await trio.testing.wait_all_tasks_blocked()
    assert [record.getMessage() for record in caplog.records] == ["path=/peerinfer/v1/status failed by a bug"]


async def test_index_points_to_the_endpoints(face: Face) -> None:
    index = (await face.get("/")).json()
    assert index["peer_id"] == face.node.peer_id
    assert "POST /v1/chat/completions" in index["endpoints"]


async def test_one_keep_alive_connection_serves_many(face: Face) -> None:
    async with face.http() as client:
        for _ in range(50):
            assert (await client.post("/v1/chat/completions", json=chat_body())).is_success
        assert len(client._transport._pool.connections) == 1  # type: ignore[attr-defined]
