"""An SGLang-shaped HTTP server without a model: real sockets, and answers that a test writes down.

By itself it makes answers of numbered words, streamed and whole, shaped as SGLang 0.5.23 shapes them. A test
can have it replay recorded ones, wait between any two pieces, break off, refuse, or be unhealthy; it keeps
what it received to the byte, and how each request was left.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import hypercorn.config
import hypercorn.trio
import trio
from starlette.types import Message, Receive, Scope, Send

MODEL = "mock/tiny"
PAGE = 16
CONTEXT = 4096


@dataclass
class Head:
    """How a response begins, where it is not 200 and a stream or JSON."""

    status: int = 200
    kind: str = "application/json"


class Break:
    """The connection is cut here."""


Step = bytes | trio.Event | Head | Break
Script = Sequence[Step]


@dataclass
class Received:
    """One request, and how it was left."""

    path: str
    raw: bytes
    headers: dict[str, str]
    client: tuple[str, int] = ("", 0)
    left: trio.Event = field(default_factory=trio.Event)
    whole: bool = False
    """Whether its answer was sent to the end; else the client went away before."""

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed


class MockServer:
    """See the module; `serving` runs one."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        """Chats and completions only."""
        self.aborted: list[str] = []
        self.health: int = 200
        self.infos: dict[str, Any] = {"/server_info": server_info(), "/model_info": {"model_path": MODEL}}
        self.cached_tokens = 0
        self.script: Callable[[Received], Script] = self.words
        self.tokenize: Callable[[dict[str, Any]], Any] = lambda body: None
        """The tokens of a body, or a coroutine of them; None: it is refused."""
        self._more = trio.Event()

    async def receives(self, count: int) -> Received:
        """Wait for so many requests; the last of them."""
        with trio.fail_after(20):
            while len(self.received) < count:
                await self._more.wait()
        return self.received[count - 1]

    def words(self, request: Received) -> Script:
        """The default answer: words up to `max_tokens`, one a chunk."""
        body, chat = request.body, request.path.startswith("/v1/chat")
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 4
        usage = {
            "prompt_tokens": len(json.dumps(body.get("messages") or body.get("prompt")).split()),
            "total_tokens": 0,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "reasoning_tokens": 0,
        }
        usage["total_tokens"] = usage["prompt_tokens"] + count
        head = {"id": body.get("rid", "0" * 32), "created": 1796025426, "model": body["model"]}
        words = [f" w{n}" for n in range(count)]
        if not body.get("stream"):
            text = "".join(words)
            choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice |= {"index": 0, "logprobs": None, "finish_reason": "length", "matched_stop": None}
            kind = "chat.completion" if chat else "text_completion"
            whole = {**head, "object": kind, "choices": [choice], "usage": usage}
            return [compact({**whole, "metadata": {"weight_version": "default"}})]
        steps = [sse(chunk) for chunk in stream_chunks(head, words, chat=chat)]
        if (body.get("stream_options") or {}).get("include_usage"):
            kind = "chat.completion.chunk" if chat else "text_completion"
            steps.append(sse({**head, "object": kind, "choices": [], "usage": usage}))
        return [*steps, b"data: [DONE]\n\n"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError  # hypercorn goes on without
        raw, more = b"", True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["path"]
        if path in ("/v1/chat/completions", "/v1/completions"):
            request = Received(path=path, raw=raw, headers=headers, client=scope["client"])
            await self._answer(request, receive, send)
        else:
            status, body = await self._small(path, raw)
            await respond(send, status, body)

    async def _small(self, path: str, raw: bytes) -> tuple[int, Any]:
        if path == "/health":
            return self.health, None
        if path == "/abort_request":
            self.aborted.append(json.loads(raw)["rid"])
            return 200, None
        if path == "/v1/tokenize":
            tokens = self.tokenize(json.loads(raw))
            if inspect.isawaitable(tokens):
                tokens = await tokens
            if tokens is None:
                return 400, error_json("no tokens")
            return 200, {"tokens": list(tokens), "count": len(tokens), "max_model_len": CONTEXT}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": MODEL, "max_model_len": CONTEXT}]}
        if path in self.infos:
            return 200, self.infos[path]
        return 404, {"detail": "Not Found"}

    async def _answer(self, request: Received, receive: Receive, send: Send) -> None:
        self.received.append(request)
        self._more.set()
        self._more = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, receive, nursery.cancel_scope)
                await self._perform(request, send)
                nursery.cancel_scope.cancel()
        finally:
            request.left.set()

    async def _perform(self, request: Received, send: Send) -> None:
        steps = list(self.script(request))
        head = Head(kind="text/event-stream; charset=utf-8" if request.body.get("stream") else Head.kind)
        if steps and isinstance(steps[0], Head):
            head = steps.pop(0)  # type: ignore[assignment]
        begun = False
        for step in steps:
            if isinstance(step, trio.Event):
                await step.wait()
            elif isinstance(step, Break):
                raise ConnectionResetError("as the test wants it")
            elif isinstance(step, bytes):
                if not begun:
                    await send(start(head))
                    begun = True
                await send({"type": "http.response.body", "body": step, "more_body": True})
        if not begun:
            await send(start(head))
        request.whole = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def serving() -> AsyncIterator[MockServer]:
    """A mock that listens on a port of its own."""
    config = hypercorn.config.Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    mock = MockServer()
    async with trio.open_nursery() as nursery:
        (mock.url,) = await nursery.start(hypercorn.trio.serve, mock, config)
        mock.url = mock.url.removesuffix("/")
        yield mock
        nursery.cancel_scope.cancel()


async def watch(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def start(head: Head) -> Message:
    headers = [(b"content-type", head.kind.encode())]
    return {"type": "http.response.start", "status": head.status, "headers": headers}


async def respond(send: Send, status: int, body: Any) -> None:
    await send(start(Head(status=status)))
    raw = b"" if body is None else json.dumps(body).encode()
    await send({"type": "http.response.body", "body": raw, "more_body": False})


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sse(value: Any) -> bytes:
    return b"data: " + compact(value) + b"\n\n"


def error_json(message: str, **fields: Any) -> dict[str, Any]:
    """An error as SGLang's responses have it."""
    error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    return error | fields


def stream_chunks(head: dict[str, Any], words: Sequence[str], *, chat: bool) -> list[dict[str, Any]]:
    """Chunks as SGLang has them: a chat's first one carries the role, its last one the reason."""
    end = {"logprobs": None, "finish_reason": None, "matched_stop": None}
    if not chat:
        reasons = [None] * (len(words) - 1) + ["length"]
        return [
            {
                **head,
                "object": "text_completion",
                "choices": [{"index": 0, "text": word, **end, "finish_reason": reason}],
                "usage": None,
            }
            for word, reason in zip(words, reasons, strict=True)
        ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in words]
    choices = [{"index": 0, "delta": {"reasoning_content": None, **delta}, **end} for delta in deltas]
    choices.append({"index": 0, "delta": {"reasoning_content": None}, **end, "finish_reason": "length"})
    return [{**head, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]


def server_info(**changes: Any) -> dict[str, Any]:
    """The part of SGLang's `/server_info` that matters."""
    return {
        "model_path": MODEL,
        "tokenizer_path": MODEL,
        "served_model_name": MODEL,
        "version": "0.5.23",
        "page_size": PAGE,
        "context_length": CONTEXT,
        "max_total_num_tokens": 4096,
        "max_running_requests": 4,
        "dtype": "bfloat16",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "chat_template": None,
        "reasoning_parser": None,
        "tool_call_parser": None,
        "enable_cache_report": True,
        "disable_radix_cache": False,
        "dp_size": 1,
        "kv_events": None,
        "internal_states": [{"effective_max_running_requests_per_dp": 4}],
    } | changes
