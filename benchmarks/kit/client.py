"""A client of an OpenAI endpoint on kept-open connections, and when its answers began and ended.

It counts events instead of parsing them, so that it stays cheap beside what it measures.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.kit.http_parts import Message, take_chunks, take_head

_CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
_SERVED = re.compile(rb'"system_fingerprint": ?"([^"]*)"')
_CONTENT = (b'"content":" ', b'"content": " ', b'"text":" ', b'"text": " ')


@dataclass(slots=True)
class Answer:
    """One request's outcome; times in seconds since it was due."""

    error: str = ""
    ttft_s: float = 0.0
    took_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    events: int = 0
    worker: str = ""
    """Who answered, as the engine says it."""


class _Wire(asyncio.Protocol):
    """One connection, and the answer that it carries at the moment."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.head: Message | None = None
        self.body = bytearray()
        self.first_at = 0.0
        self.whole = False
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, request: bytes) -> asyncio.Future[None]:
        assert self.transport is not None
        self.head, self.body, self.first_at, self.whole = None, bytearray(), 0.0, False
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        # Some servers hold a small packet back until the one before is acknowledged: 40 ms on Linux.
        self._acknowledge_at_once()
        return self.done

    def data_received(self, data: bytes) -> None:
        self._acknowledge_at_once()
        self._buffer += data
        if self.head is None:
            self.head = take_head(self._buffer)
            if self.head is None:
                return
        if self.head.chunked:
            content, self.whole = take_chunks(self._buffer)
        else:
            content = bytes(self._buffer)
            self._buffer.clear()
            self.whole = len(self.body) + len(content) >= (self.head.length or 0)
        self.body += content
        if not self.first_at and any(mark in content for mark in _CONTENT):
            self.first_at = time.perf_counter()
        if self.whole and self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed before the end"))

    def _acknowledge_at_once(self) -> None:
        if self.transport is not None:
            self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class Client:
    """A pool of connections to one endpoint."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{extra}"
        self._idle: list[_Wire] = []

    async def ask(self, body: bytes, *, due: float | None = None, timeout_s: float = 120.0) -> Answer:
        """Send a body and read its answer to the end; `due` is when it should have been sent."""
        due = time.perf_counter() if due is None else due
        answer = Answer()
        head = f"{self._head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            wire = await self._wire()
            async with asyncio.timeout(timeout_s):
                await wire.begin(head.encode() + body)
        except (OSError, TimeoutError) as error:
            answer.error = type(error).__name__
            return answer
        answer.took_s = time.perf_counter() - due
        assert wire.head is not None
        self._read(answer, wire, due)
        if wire.head.headers.get(b"connection", b"").lower() != b"close":
            self._idle.append(wire)
        return answer

    def close(self) -> None:
        """Close what is open."""
        for wire in self._idle:
            if wire.transport is not None:
                wire.transport.close()

    async def _wire(self) -> _Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.transport is not None:
                return wire
        _, wire = await asyncio.get_running_loop().create_connection(_Wire, self._host, self._port)
        return wire

    def _read(self, answer: Answer, wire: _Wire, due: float) -> None:
        assert wire.head is not None
        status = wire.head.first_line.split(b" ", 2)[1].decode()
        streamed = wire.head.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if status != "200":
            answer.error = f"status {status}"
        elif streamed and (b"data: [DONE]" not in wire.body or b'"error"' in wire.body):
            answer.error = "broken stream"
        answer.ttft_s = (wire.first_at - due) if wire.first_at and streamed else answer.took_s
        answer.events = wire.body.count(b"data: ") if streamed else 0
        tail = bytes(wire.body[-2000:])
        if cached := _CACHED.search(tail):
            answer.cached_tokens = int(cached[1])
        if prompt := _PROMPT.search(tail):
            answer.prompt_tokens = int(prompt[1])
        if served := _SERVED.search(bytes(wire.body[:2000])):
            answer.worker = served[1].decode()


def chat(text: str, *, max_tokens: int, stream: bool) -> bytes:
    """The body of a chat of one message."""
    body: dict[str, object] = {"model": "bench", "messages": [{"role": "user", "content": text}]}
    body |= {"max_tokens": max_tokens, "temperature": 0}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()
