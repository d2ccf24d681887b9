"""HTTP/1.1 as the face frames it: what a connection says, byte by byte, and when it stays open."""

from __future__ import annotations

import pytest
import trio

from tests.api.scripted import Face, chat_body, raw_post

CHAT = "/v1/chat/completions"


async def talk(face: Face, *requests: bytes, until: bytes = b"") -> bytes:
    """What the face answers, up to `until`, else until it closes."""
    answer = b""
    client = await face.connect()
    async with client:
        with trio.fail_after(10):
            for request in requests:
                await client.send_all(request)
            while data := await client.receive_some(65536):
                answer += data
                if until and until in answer:
                    break
    return answer


async def test_pipelined_requests_are_answered_in_order(face: Face) -> None:
    """Both are there before the first is read; the connection closes where the last one asks for it."""
    face.node.status_json = {"first": 1}
    first = b"GET /peerinfer/v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n"
    second = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = await talk(face, first + second)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert answer.index(b'{"first":1}') < answer.index(b"connection: close")


async def test_old_client_gets_an_unframed_stream_that_ends_with_its_connection(face: Face) -> None:
    request = raw_post(CHAT, chat_body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await talk(face, request)
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\n\ndata: [DONE]\n\n")


async def test_head_has_the_length_and_no_body(face: Face) -> None:
    answer = await talk(face, b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert b"content-length: " in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_request_with_an_unread_body_closes_the_connection(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rest of the body would be read as the next request."""
    monkeypatch.setattr("peerinfer.api.errors.DRAIN_TIMEOUT_S", 0.05)
    answer = await talk(face, raw_post("/nowhere", "x" * 50_000)[:-10])
    assert answer.startswith(b"HTTP/1.1 404 ")


async def test_streams_first_event_comes_with_the_head(face: Face) -> None:
    """One packet for both: a client that reads them apart waits twice."""
    face.node.steps[1:] = [trio.Event()]
    answer = await talk(face, raw_post(CHAT, chat_body(stream=True)), until=b"data: {")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"date: " in head
    assert body.partition(b"\r\n")[0] == b"%x" % (len(body.partition(b"\r\n")[2]) - 2)


async def test_two_lengths_of_one_body_close_the_connection(face: Face) -> None:
    """A proxy that went by the other length sees another request behind it (RFC 9112, 6.1)."""
    framed = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    first = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + framed
    answer = await talk(face, first + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in answer


async def test_refused_websocket_closes_the_connection_as_it_says(face: Face) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\r\n"
    answer = await talk(face, first + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
CLOSE = b"connection: close\r\n\r\n"


@pytest.mark.parametrize("pieces", [1, 40_000])
async def test_a_head_that_is_too_long_is_refused_in_whatever_pieces_it_comes(
    face: Face, pieces: int
) -> None:
    """Complete in one read, or never complete; one that is just short enough is not."""
    for pad, status in ((15_000, b"200 OK"), (16_500, b"431 Request Header Fields Too Large")):
        head = HEALTH + b"x-pad: " + b"p" * pad + b"\r\n" + CLOSE
        parts = (
            [head[begin : begin + pieces] for begin in range(0, len(head), pieces)] if pieces > 1 else [head]
        )
        answer = await talk(face, *parts)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1 ") == 1
    assert face.node.dropped == {"not_http": 1}
    many = b"".join(b"x-%d: y\r\n" % number for number in range(2_000))
    assert (await talk(face, HEALTH + many + CLOSE)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("blank", [[b"\r\n"], [b"\n"], [b"\r", b"\n"], [b"\r\n\r\n"]])
async def test_empty_lines_before_a_request_are_ignored(face: Face, blank: list[bytes]) -> None:
    """RFC 9112, 2.2: some clients send one behind a body. The first request, and one behind another."""
    answer = await talk(face, *blank, HEALTH + b"\r\n", *blank, HEALTH + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert not face.node.dropped


async def test_nothing_but_empty_lines_is_no_http(face: Face) -> None:
    answer = await talk(face, *[b"\r\n"] * 20)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert face.node.dropped == {"not_http": 1}
