"""What the HTTP face costs: requests per second and CPU, against bare Starlette in the same run.

The face runs on its own server, the bare application on hypercorn's trio worker, both in one process; the
answers are made up at once, so that all that is measured is HTTP and the face. The bare application reads
and parses the body too, and sends as many bytes in as many pieces. Rounds alternate. Run it as

    python benchmarks/bench_http.py [--rounds 5] [--requests 2000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import selectors
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import hypercorn.config
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from peerinfer.api.assemble import sse
from peerinfer.api.server import serve_http
from peerinfer.config import HttpConfig
from peerinfer.core.types import Chunk, End, PeerId, Usage
from peerinfer.node.events import Events
from peerinfer.node.reply import Incoming, Reply
from peerinfer.node.totals import Totals

MODEL = "instant"
CHUNKS = 64
"""Pieces of a long stream."""
CONNECTIONS = 8
WORDS = 400
"""Of the prompt: about 2 kB of body."""


def chunk_json(text: str, *, finish_reason: str | None = None) -> bytes:
    """A chunk as an engine makes it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": MODEL}
    return json.dumps({**head, "choices": [choice]}, separators=(",", ":")).encode()


class InstantNode:
    """Answers at once, with as many chunks as `max_tokens` says."""

    peer_id = PeerId("12D3KooWInstant")
    ready = True

    @asynccontextmanager
    async def handle(self, incoming: Incoming) -> AsyncIterator[Reply]:
        count = incoming.body["max_tokens"]
        assert isinstance(count, int)
        yield Reply(
            request_id=incoming.id,
            served_by=self.peer_id,
            route="local",
            expected_cached_tokens=0,
            chunks=self._chunks(count),
        )

    async def _chunks(self, count: int) -> AsyncIterator[Chunk | End]:
        chunk = Chunk(sse_json=chunk_json(" word"))
        for _ in range(count):
            yield chunk
        yield End(usage=Usage(prompt_tokens=1, completion_tokens=count), cached_tokens=0)

    def models(self) -> list[str]:
        return [MODEL]

    def status(self) -> dict[str, object]:
        return {}

    def peers(self) -> dict[str, object]:
        return {}

    def decision(self, _request_id: str) -> dict[str, object] | None:
        return None

    def totals(self) -> Totals:
        return Totals()

    def events(self) -> Events:
        return Events()

    def dropped_http(self, reason: str) -> None:
        raise AssertionError(reason)


async def bare(request: Request) -> Response:
    """The least that an endpoint of this kind can do."""
    body = json.loads(await request.body())
    event = sse(chunk_json(" word"))
    if not body["stream"]:
        return Response(event * 2, media_type="application/json")

    async def events() -> AsyncIterator[bytes]:
        for _ in range(body["max_tokens"]):
            yield event
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def cpu(_: Request) -> Response:
    """CPU seconds of the server process."""
    return Response(str(time.process_time()))


async def serve() -> None:
    """Both servers; prints their ports."""
    config = hypercorn.config.Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    routes = [Route("/v1/chat/completions", bare, methods=["POST"]), Route("/cpu", cpu)]
    app = Starlette(routes=routes)
    async with trio.open_nursery() as nursery:
        face = await nursery.start(serve_http, InstantNode(), HttpConfig(port=0, port_is_default=False))
        (stock,) = await nursery.start(hypercorn.trio.serve, app, config)
        print(json.dumps({"face": port_of(face), "bare": port_of(stock)}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)  # Until the parent is done with us.
        nursery.cancel_scope.cancel()


def port_of(url: str) -> int:
    """The port in a base URL."""
    return int(url.rpartition(":")[2])


@dataclass
class Round:
    """One measurement."""

    requests_per_s: float
    cpu_us: float
    """Server CPU per request, in microseconds."""


def measure(ports: dict[str, int], which: str, *, requests: int, stream: bool, chunks: int) -> Round:
    """Keep a few connections busy until so many requests are answered."""
    messages = [{"role": "user", "content": "word " * WORDS}]
    body = {"model": MODEL, "messages": messages, "max_tokens": chunks, "stream": stream}
    raw = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw
    selector = selectors.DefaultSelector()
    for _ in range(CONNECTIONS):
        sock = socket.create_connection(("127.0.0.1", ports[which]))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ, bytearray())
        sock.sendall(request)
    used, start = cpu_s(ports), time.perf_counter()
    answered = 0
    while answered < requests:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            answer: bytearray = key.data
            answer += key.fileobj.recv(1 << 20)
            if is_whole(answer, stream=stream):
                assert answer.startswith(b"HTTP/1.1 200"), bytes(answer)
                answer.clear()
                answered += 1
                key.fileobj.sendall(request)
    took, used = time.perf_counter() - start, cpu_s(ports) - used
    for key in list(selector.get_map().values()):
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
    return Round(requests_per_s=answered / took, cpu_us=used / answered * 1e6)


def is_whole(answer: bytearray, *, stream: bool) -> bool:
    """Whether a response is complete."""
    if stream:
        return answer.endswith(b"\r\n0\r\n\r\n")
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
    return bool(separator) and len(body) == int(length)


def cpu_s(ports: dict[str, int]) -> float:
    """CPU seconds of the server process so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['bare']}/cpu") as response:
        return float(response.read())


def report(name: str, rounds: dict[str, list[Round]]) -> dict[str, float]:
    """Print the raw numbers of one case and return the medians of CPU per request."""
    print(f"\n{name}")
    used = {}
    rate = {}
    for server, measured in rounds.items():
        rate[server] = statistics.median(r.requests_per_s for r in measured)
        used[server] = statistics.median(r.cpu_us for r in measured)
        raw = " ".join(f"{r.requests_per_s:.0f}/{r.cpu_us:.0f}" for r in measured)
        print(f"  {server}: {rate[server]:.0f} requests/s, {used[server]:.0f} us CPU each; rounds: {raw}")
    print(f"  face/bare: {rate['face'] / rate['bare']:.2f} of the requests/s")
    return used


def main() -> None:
    """Start the servers, measure in turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--requests", type=int, default=2000, help="per round; a sixteenth of it for long streams"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve)
        return
    print(f"command: {shlex.join([sys.executable, *sys.argv])}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"machine: {platform.platform()}, {os.cpu_count()} CPUs, load {load}, "
        f"Python {platform.python_version()}"
    )
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        ports: dict[str, int] = json.loads(server.stdout.readline())
        cases = {
            "whole answer": (options.requests, False, 2),
            "stream of 1 chunk": (options.requests, True, 1),
            f"stream of {CHUNKS} chunks": (options.requests // 16, True, CHUNKS),
        }
        used = []
        for name, (requests, stream, chunks) in cases.items():
            rounds: dict[str, list[Round]] = {"face": [], "bare": []}
            for _ in range(options.rounds):
                for which, measured in rounds.items():
                    args = {"requests": requests, "stream": stream, "chunks": chunks}
                    measured.append(measure(ports, which, **args))
            used.append(report(name, rounds))
        print()
        for which in ("face", "bare"):
            each = (used[2][which] - used[1][which]) / (CHUNKS - 1)
            print(f"{which}: {each:.1f} us CPU for each further chunk")
        server.stdin.close()


if __name__ == "__main__":
    main()
