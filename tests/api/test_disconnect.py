"""A client that goes away cancels the node's work at once, whatever it was waiting for."""

from __future__ import annotations

import itertools
import socket
import struct
from contextlib import suppress

import pytest
import trio
import trio.testing

from peerinfer.api.server import serve_http
from peerinfer.config import HttpConfig
from tests.api.scripted import Face, ScriptedNode, chat_body, raw_post

CHAT = "/v1/chat/completions"


async def left(face: Face) -> list[str]:
    """How the node's work ended, once it did; far less than a second on a quiet machine."""
    with trio.fail_after(5):
        await face.node.left.wait()
    return face.node.outcomes


def reset(client: trio.SocketStream) -> None:
    """Close with a TCP reset in place of a FIN, as a killed process may."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_during_prefill_cancels(face: Face, stream: bool, how: str) -> None:
    """Nothing was sent yet, so only the socket's end tells."""
    face.node.prefill = [trio.Event()]
    client = await face.send_chat(stream=stream)
    await face.node.started.wait()
    if how == "fin":
        await client.aclose()
    else:
        reset(client)
    assert await left(face) == ["cancelled"]


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_between_chunks_cancels(face: Face, stream: bool, how: str) -> None:
    """The engine decodes on and no chunk is due: only the socket's end tells."""
    face.node.steps[2:2] = [trio.Event()]
    client = await face.send_chat(stream=stream)
    with trio.fail_after(10):
        await face.node.started.wait()
        if stream:
            begun = b""
            while b"data: {" not in begun:
                begun += await client.receive_some(65536)
    if how == "fin":
        await client.aclose()
    else:
        reset(client)
    assert await left(face) == ["cancelled"]


async def test_disconnect_while_chunks_flow_cancels(face: Face) -> None:
    """The next send fails, or the reader sees the end first; the answer has no end of its own."""
    face.node.steps = itertools.repeat(ScriptedNode.chunk(delta={"content": "x"}))
    client = await face.send_chat(stream=True)
    with trio.fail_after(10):
        await client.receive_some(100)
    await client.aclose()
    assert await left(face) == ["cancelled"]


async def test_disconnect_of_a_client_with_requests_ahead_leaves_nothing(
    nursery: trio.Nursery, node: ScriptedNode
) -> None:
    """It sent its next request early, so nobody reads: the send that fails must end all."""
    config = HttpConfig(port=0, port_is_default=False, connections_max=1)
    face = Face(await nursery.start(serve_http, node, config), node)
    face.node.steps = itertools.repeat(ScriptedNode.chunk(delta={"content": "x"}))
    client = await face.connect()
    with trio.fail_after(10):
        await client.send_all(raw_post(CHAT, chat_body(stream=True)) * 2)
        await client.receive_some(100)
        reset(client)
        assert await left(face) == ["cancelled"]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await face.get("/healthz")).is_success


async def test_client_that_stops_reading_is_given_up(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the connection open but takes nothing: its engine slot must not be held for ever."""
    monkeypatch.setattr("peerinfer.api.client_socket.SEND_TIMEOUT_S", 0.2)
    big = ScriptedNode.chunk(delta={"content": "x" * 1_000_000})
    face.node.steps = [big] * 50
    client = await face.send_chat(stream=True)
    assert await left(face) == ["cancelled"]
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        while await client.receive_some(1 << 20):
            pass
    await client.aclose()


async def test_disconnect_within_the_body_reaches_no_node(face: Face) -> None:
    """Half a body is no request."""
    client = await face.connect()
    await client.send_all(raw_post(CHAT, chat_body())[:-5])
    await client.aclose()
    assert (await face.get("/healthz")).is_success
    assert face.node.incoming == []
    assert face.node.dropped == {}


async def test_one_disconnect_leaves_the_others_alone(face: Face) -> None:
    """Two streams wait; one client goes, the other gets its answer."""
    more = trio.Event()
    face.node.steps[2:2] = [more]
    going = await face.send_chat(stream=True)
    staying = await face.send_chat(stream=True)
    with trio.fail_after(10):
        await face.node.received(2)
        await going.aclose()
        await face.node.left.wait()
        more.set()
        answer = b""
        while b"[DONE]" not in answer:
            answer += await staying.receive_some(65536)
    await staying.aclose()
    assert sorted(face.node.outcomes) == ["cancelled", "whole"]


async def test_connection_serves_the_next_request_after_an_error(face: Face) -> None:
    """Keep-alive survives refusals and errors whose bodies were read."""
    async with face.http() as client:
        for _ in range(3):
            assert (await client.post(CHAT, json={})).status_code == 400
            assert (await client.post(CHAT, json=chat_body())).is_success
        (connection,) = client._transport._pool.connections  # type: ignore[attr-defined]
        assert "Request Count: 6" in connection.info()


@pytest.mark.parametrize("ahead", [b"\r\n", b"GET /healthz HTTP/1.1\r\n"])
async def test_disconnect_of_a_client_that_sent_more_than_its_request_cancels(
    face: Face, ahead: bytes
) -> None:
    """Nothing is sent to it for a long time: a byte too many must not hide that it is gone."""
    face.node.prefill = [trio.Event()]
    client = await face.connect()
    with trio.fail_after(10):
        await client.send_all(raw_post(CHAT, chat_body()) + ahead)
        await face.node.started.wait()
    await client.aclose()
    assert await left(face) == ["cancelled"]
