"""What a node adds to a call of its SGLang: against the same call made directly, and through a bare proxy.

The server is a mock that answers at once, shaped as SGLang is: a real one's spread would hide what is
measured here. The proxy is the least that can stand in between on the same stack (hypercorn's trio worker in
front, httpx behind): it parses the body, sends it on and passes the answer on as it comes. The node is a real
`peerinfer serve --engine-url`. Each is a process of its own; one client asks them in turn, one request at a
time, so that all three see the same machine. Run it as

    python benchmarks/bench_upstream.py [--rounds 10] [--requests 40]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import hypercorn.config
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from peerinfer.api.assemble import sse
from peerinfer.engine.sglang_model import converted_model_path

PROMPT_WORDS = 508
"""540 tokens with the default model's chat template."""
CHUNKS = 64
"""Pieces of a long stream."""
WAYS = ("direct", "proxy", "node")
READY_WITHIN_S = 60.0


# The mock and the proxy, each in a process of its own


def server_info(model: str) -> dict[str, object]:
    """What of SGLang's `/server_info` a node needs."""
    return {
        "model_path": model,
        "tokenizer_path": model,
        "served_model_name": "mock",
        "version": "0.5.23",
        "page_size": 16,
        "context_length": 4096,
        "max_total_num_tokens": 65536,
        "max_running_requests": 4,
        "enable_cache_report": True,
        "dp_size": 1,
    }


def chunk_json(**choice: object) -> bytes:
    """A chunk as SGLang makes it."""
    end = {"index": 0, "logprobs": None, "finish_reason": None, "matched_stop": None}
    head = {"id": "0" * 32, "object": "chat.completion.chunk", "created": 1796025426, "model": "mock"}
    return sse(json.dumps({**head, "choices": [end | choice]}, separators=(",", ":")).encode())


def usage_json(count: int) -> dict[str, object]:
    """The usage of an answer of so many tokens."""
    details = {"cached_tokens": 512}
    total = {"prompt_tokens": 540, "completion_tokens": count, "total_tokens": 540 + count}
    return {**total, "prompt_tokens_details": details}


async def answer(request: Request) -> Response:
    """An answer of `max_tokens` tokens at once, one a chunk if it is streamed."""
    body = json.loads(await request.body())
    count = body["max_tokens"]
    if not body.get("stream"):
        message = {"role": "assistant", "content": " word" * count}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
        head = {"id": "0" * 32, "object": "chat.completion", "created": 1796025426, "model": "mock"}
        return JSONResponse({**head, "choices": [choice], "usage": usage_json(count)})

    async def events() -> AsyncIterator[bytes]:
        yield chunk_json(delta={"role": "assistant", "content": ""})
        for _ in range(count):
            yield chunk_json(delta={"content": " word"})
        yield chunk_json(delta={}, finish_reason="length")
        if (body.get("stream_options") or {}).get("include_usage"):
            yield sse(json.dumps({"id": "0" * 32, "choices": [], "usage": usage_json(count)}).encode())
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def mock(model: str) -> Starlette:
    """An SGLang without a model."""

    async def info(_: Request) -> Response:
        return JSONResponse(server_info(model))

    async def healthy(_: Request) -> Response:
        return Response()

    return Starlette(
        routes=[
            Route("/v1/chat/completions", answer, methods=["POST"]),
            Route("/server_info", info),
            Route("/health", healthy),
        ]
    )


def proxy(upstream: str, client: httpx.AsyncClient) -> Starlette:
    """The least that can stand before a server: each body is read, sent on, and answered as it comes."""

    async def relay(request: Request) -> Response:
        body = json.loads(await request.body())
        sent = client.build_request("POST", f"{upstream}/v1/chat/completions", json=body)
        got = await client.send(sent, stream=True)
        if not body.get("stream"):
            return Response(await got.aread(), media_type="application/json")

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in got.aiter_raw():
                yield piece
            await got.aclose()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", relay, methods=["POST"])])


async def serve(upstream: str, model: str) -> None:
    """The proxy before `upstream`, or, if that is empty, the mock; prints its URL."""
    config = hypercorn.config.Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client, trio.open_nursery() as nursery:
        app = proxy(upstream, client) if upstream else mock(model)
        (url,) = await nursery.start(hypercorn.trio.serve, app, config)
        print(json.dumps({"http": url.removesuffix("/")}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)  # until the parent is done with us
        nursery.cancel_scope.cancel()


@contextmanager
def started(command: list[str], log: Path) -> Iterator[str]:
    """Where a process listens, which it says in its first line; it ends with the block."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{shlex.join(command)} did not start:\n{log.read_text()[-2000:]}")
        try:
            yield str(json.loads(line)["http"])
        finally:
            process.terminate()


# The client


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    name: str
    stream: bool
    tokens: int


class Caller:
    """A client with one connection that stays open, and little else, so that it adds little."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, case: Case, prompt: str) -> tuple[float, float]:
        """Milliseconds to the first event of a stream, and to the end."""
        body = {
            "model": "mock",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": case.tokens,
            "temperature": 0,
            "stream": case.stream,
        }
        raw = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        begun, first = time.perf_counter(), 0.0
        self._socket.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        got = bytearray()
        while not is_whole(got, stream=case.stream):
            got += self._socket.recv(1 << 20)
            if not first and b"data: " in got:
                first = time.perf_counter() - begun
        assert got.startswith(b"HTTP/1.1 200"), bytes(got)
        return first * 1e3, (time.perf_counter() - begun) * 1e3

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def is_whole(got: bytearray, *, stream: bool) -> bool:
    """Whether an answer has ended."""
    if stream:
        return got.endswith(b"0\r\n\r\n") and b"[DONE]" in got
    head, separator, body = got.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
    return bool(separator) and len(body) == int(length or -1)


def measure(callers: dict[str, Caller], case: Case, *, rounds: int, requests: int) -> None:
    """Ask all three in turn, and print what came of it; a first round only warms up."""
    firsts: dict[str, list[float]] = {way: [] for way in WAYS}
    wholes: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(-1, rounds):
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for count in range(requests):
            prompt = f"{number} {count} " + "word " * (PROMPT_WORDS - 2)
            for way in WAYS:
                times[way].append(callers[way].ask(case, prompt))
        for way in WAYS if number >= 0 else ():
            firsts[way].append(statistics.median(first for first, _ in times[way]))
            wholes[way].append(statistics.median(whole for _, whole in times[way]))
    print(f"\n{case.name}: medians of {requests} requests in each of {rounds} rounds, in ms")
    if case.stream:
        report("to the first event", firsts)
    report("to the end", wholes)


def report(what: str, rounds: dict[str, list[float]]) -> None:
    """Print the raw numbers, then what is added, and its ratio to what the proxy adds."""
    for way in WAYS:
        raw = " ".join(f"{value:.2f}" for value in rounds[way])
        print(f"  {what}, {way + ':':7} {statistics.median(rounds[way]):6.2f}   rounds: {raw}")
    added = {
        way: [each - base for each, base in zip(rounds[way], rounds["direct"], strict=True)]
        for way in ("proxy", "node")
    }
    ratios = [node / bare for node, bare in zip(added["node"], added["proxy"], strict=True)]
    for way, values in (*added.items(), ("node/proxy", ratios)):
        label = way if way == "node/proxy" else f"added by the {way}"
        print(f"  {what}, {label}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


def until_ready(url: str) -> None:
    """Wait until the node serves through the mock."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz"):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the node is not ready")


def main() -> None:
    """Start the three, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=40, help="of each way in a round")
    parser.add_argument(
        "--model",
        type=Path,
        default=converted_model_path(),
        help="a directory with a model's tokeniser; the default is made by `make sglang-cpu`",
    )
    parser.add_argument("--serve", metavar="UPSTREAM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        trio.run(serve, options.serve, str(options.model))
        return
    if not options.model.is_dir():
        raise SystemExit(f"there is no {options.model}: run `make sglang-cpu`, or give --model DIRECTORY")
    print(f"command: {shlex.join([sys.executable, *sys.argv])}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"machine: {platform.platform()}, {os.cpu_count()} CPUs, load {load}, "
        f"Python {platform.python_version()}"
    )
    mine = [sys.executable, __file__, "--model", str(options.model), "--serve"]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(started([*mine, ""], home / "mock.log"))
        bare = stack.enter_context(started([*mine, direct], home / "proxy.log"))
        node_command = [sys.executable, "-m", "peerinfer", "serve", "--json", "--engine-url", direct]
        node_command += ["--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"]
        node_command += ["--data-dir", str(home / "node")]
        node = stack.enter_context(started(node_command, home / "node.log"))
        until_ready(node)
        callers = {way: Caller(url) for way, url in zip(WAYS, (direct, bare, node), strict=True)}
        for case in (
            Case("whole answer of 2 tokens", stream=False, tokens=2),
            Case("stream of 1 token", stream=True, tokens=1),
            Case(f"stream of {CHUNKS} tokens", stream=True, tokens=CHUNKS),
        ):
            measure(callers, case, rounds=options.rounds, requests=options.requests)
        for caller in callers.values():
            caller.close()


if __name__ == "__main__":
    main()
