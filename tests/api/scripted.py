"""A scripted node behind the real face: real HTTP over real sockets, and answers that a test writes down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import httpx
import openai
import trio

from peerinfer.core.types import Chunk, End, PeerId, Usage
from peerinfer.node.events import Events
from peerinfer.node.reply import Incoming, Reply
from peerinfer.node.totals import Totals

ME = PeerId("12D3KooWEntry")
OTHER = PeerId("12D3KooWOther")
MODEL = "org/tiny"

Step = Chunk | End | Exception | trio.Event


class ScriptedNode:
    """Answers each request by its script: yields chunks, waits for events, raises exceptions."""

    peer_id = ME

    def __init__(self) -> None:
        self.ready = True
        self.prefill: list[Step] = []
        """Before the first chunk."""
        self.steps: Any = [*self.chat_chunks("Hello", " world"), self.end()]
        """The answer: a list, or an iterable of steps without end."""
        self.incoming: list[Incoming] = []
        self.outcomes: list[str] = []
        """How each request was left: `whole`, or `cancelled` before its script was over."""
        self.started = trio.Event()
        self.left = trio.Event()
        self._more = trio.Event()
        self.dropped: Counter[str] = Counter()
        self.decisions: dict[str, dict[str, object]] = {}
        self.status_json: dict[str, object] = {"peer_id": ME}
        self.peers_json: dict[str, object] = {"peers": []}
        self._events = Events()
        self._totals = Totals()

    @asynccontextmanager
    async def handle(self, incoming: Incoming) -> AsyncIterator[Reply]:
        self.incoming.append(incoming)
        self._more.set()
        self._more = trio.Event()
        self.started.set()
        whole: list[bool] = []
        try:
            for step in self.prefill:
                await self._do(step)
            yield Reply(
                request_id=incoming.id,
                served_by=OTHER,
                route="forwarded",
                expected_cached_tokens=32,
                chunks=self._chunks(whole),
            )
        finally:
            self.outcomes.append("whole" if whole else "cancelled")
            self.left.set()

    async def received(self, count: int) -> None:
        """Wait until so many requests have come."""
        while len(self.incoming) < count:
            await self._more.wait()

    async def _chunks(self, whole: list[bool]) -> AsyncIterator[Chunk | End]:
        for step in self.steps:
            if isinstance(step, Chunk | End):
                await trio.lowlevel.checkpoint()
                yield step
            else:
                await self._do(step)
        whole.append(True)

    async def _do(self, step: Step) -> None:
        if isinstance(step, trio.Event):
            await step.wait()
        elif isinstance(step, Exception):
            raise step

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def models(self) -> list[str]:
        return [MODEL]

    def status(self) -> dict[str, object]:
        return self.status_json

    def peers(self) -> dict[str, object]:
        return self.peers_json

    def decision(self, request_id: str) -> dict[str, object] | None:
        return self.decisions.get(request_id)

    def totals(self) -> Totals:
        return self._totals

    def events(self) -> Events:
        return self._events

    def dropped_http(self, reason: str) -> None:
        self.dropped[reason] += 1

    @staticmethod
    def chunk(**choice: Any) -> Chunk:
        """A chat chunk of one choice, oddly spaced so that a re-serialised one shows."""
        chunk = {
            "id": "chatcmpl-7",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": MODEL,
            "choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}],
        }
        return Chunk(sse_json=json.dumps(chunk, separators=(",  ", ":")).encode())

    @classmethod
    def chat_chunks(cls, *texts: str) -> list[Step]:
        """An answer in pieces: role first, the reason to stop last."""
        return [
            cls.chunk(delta={"role": "assistant", "content": ""}),
            *(cls.chunk(delta={"content": text}) for text in texts),
            cls.chunk(finish_reason="stop"),
        ]

    @staticmethod
    def text_chunk(text: str, *, finish_reason: str | None = None) -> Chunk:
        """A chunk of `/v1/completions`."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        chunk = {"id": "cmpl-7", "object": "text_completion", "created": 1700000000, "model": MODEL}
        return Chunk(sse_json=json.dumps({**chunk, "choices": [choice]}).encode())

    @staticmethod
    def end() -> End:
        return End(usage=Usage(prompt_tokens=40, completion_tokens=2), cached_tokens=32)


class Face:
    """A running face and its clients."""

    def __init__(self, url: str, node: ScriptedNode) -> None:
        self.url = url
        self.node = node
        self.port = int(url.rpartition(":")[2])

    async def openai(self, call: Callable[[openai.OpenAI], Any]) -> Any:
        """Run a call of the real client in a thread; it retries nothing."""

        def run() -> Any:
            with openai.OpenAI(
                base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20
            ) as client:
                return call(client)

        return await trio.to_thread.run_sync(run)

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=self.url, timeout=20, trust_env=False) as client:
            yield client

    async def post(self, path: str, **options: Any) -> httpx.Response:
        async with self.http() as client:
            return await client.post(path, **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        async with self.http() as client:
            return await client.get(path, **options)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def send_chat(self, *, stream: bool) -> trio.SocketStream:
        """Post a chat over a socket of its own and leave the answer unread."""
        client = await self.connect()
        await client.send_all(raw_post("/v1/chat/completions", chat_body(stream=stream)))
        return client


def chat_body(**fields: Any) -> dict[str, Any]:
    """The smallest good chat, and what a test adds or (as None) sets to null."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}


def raw_post(path: str, body: object, *headers: str) -> bytes:
    """A request as bytes."""
    raw = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw
