"""The HTTP client of one OpenAI-compatible server: answers streamed chunk by chunk, byte for byte.

Leaving an answer closes its connection, which is how a server learns that nobody reads any more. SGLang looks
for that only when it has something to send, or every 4 s, so `abort` tells it too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import trio

from peerinfer.core.types import Chunk, End, Endpoint, Usage
from peerinfer.engine.event_stream import EventStream
from peerinfer.engine.http_client import HttpClient, HttpError, Response, UnreachableError
from peerinfer.engine.upstream_body import PATHS, Outgoing
from peerinfer.engine.upstream_error import refusal, stream_error
from peerinfer.node.ports import EngineAwayError, EngineError

log = logging.getLogger("peerinfer.engine")

CALL_TIMEOUT_S = 10.0
"""For everything but answers, which may take as long as they take."""
EVENT_BYTES_MAX = 16 * 1024 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024  # guess: log-probabilities of several long answers
ABORT_AFTER_S = (0.0, 0.2, 1.0)
"""When an abort is sent: SGLang passes over one for a request that it has not registered yet."""


class StatusError(EngineError):
    """The server answered a call with this status."""

    def __init__(self, where: str, status: int) -> None:
        super().__init__(f"{where}: status {status}")
        self.status = status


class OpenAIUpstream:
    """One server, wherever `url` says that it is now."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self.url = url
        self.reports_cached_tokens = False
        """Whether it tells what it took from its cache; one that does may still say nothing of a miss."""
        self._client = client

    async def answer(self, request: Outgoing) -> AsyncGenerator[Chunk | End, None]:
        """Chunks, then one `End`; close the iterator to cancel.

        Raises:
            RequestError: the server says that the request is wrong, or that it has too much to do.
            EngineAwayError: it cannot be reached.
            EngineError: it breaks off or fails.
        """
        path = PATHS[request.endpoint]
        try:
            async with self._client.request("POST", self.url + path, request.body) as response:
                if response.status != 200:
                    raise refusal(request.endpoint, response.status, await _read(response))
                if request.streamed:
                    async with aclosing(self._streamed(request, response)) as items:
                        async for item in items:
                            yield item
                else:
                    for item in self._whole(request, await _read(response)):
                        yield item
        except UnreachableError as error:
            raise EngineAwayError(f"{self.url}: {error}") from error
        except HttpError as error:
            raise EngineError(f"{self.url}: {error}") from error

    async def abort(self, rids: tuple[str, ...]) -> None:
        """Tell SGLang that nobody wants these requests any more; a server that is gone need not know."""
        for rid in rids:
            try:
                await self.post("/abort_request", {"rid": rid})
            except EngineError as error:
                log.debug("abort of %s: %s", rid, error)
                return

    async def get(self, path: str) -> Any:
        """The JSON behind a path. Raises `EngineError`."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: Mapping[str, object]) -> Any:
        """The JSON that a path answers to a body, None if it answers nothing. Raises `EngineError`."""
        return await self._call("POST", path, body)

    async def post_or_refused(self, path: str, body: Mapping[str, object]) -> Any:
        """The same, or None where the server says that the body is wrong, or knows no such path."""
        try:
            return await self._call("POST", path, body)
        except StatusError as error:
            if error.status in (400, 404, 405, 422):
                return None
            raise

    async def _streamed(self, request: Outgoing, response: Response) -> AsyncGenerator[Chunk | End, None]:
        """A stream's chunks without its usage, unless that is to be shown; `End` once it says `[DONE]`."""
        events = EventStream(bytes_max=EVENT_BYTES_MAX)
        usage: object = None
        pieces, done = 0, False
        while data := await response.receive():
            try:
                complete = events.feed(data)
            except ValueError as error:
                raise EngineError(f"the server sent {error}") from None
            for event in complete:
                if event == b"[DONE]":
                    done = True
                    continue
                chunk = _parse(event)
                if (problem := stream_error(request.endpoint, chunk)) is not None:
                    raise problem
                if chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict):
                    usage = chunk["usage"]
                    if not request.usage_shown:
                        continue
                text = _text(request.endpoint, chunk, "delta")
                pieces += bool(text)
                yield Chunk(sse_json=_one_line(event, chunk), text=text)
        if not done:
            raise EngineError("the server's stream broke off before its end")
        yield self._end(usage, pieces)

    def _whole(self, request: Outgoing, payload: bytes) -> tuple[Chunk, End]:
        answer = _parse(payload)
        if (problem := stream_error(request.endpoint, answer)) is not None:
            raise problem
        text = _text(request.endpoint, answer, "message")
        return Chunk(sse_json=payload, text=text, whole=True), self._end(answer.get("usage"), 0)

    def _end(self, usage: object, pieces: int) -> End:
        """The end, as the server counts; one that does not count made about a token per piece of text."""
        counts = usage if isinstance(usage, dict) else {"completion_tokens": pieces}
        details = counts.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        self.reports_cached_tokens |= cached is not None
        return End(
            usage=Usage(
                prompt_tokens=_count(counts.get("prompt_tokens")),
                completion_tokens=_count(counts.get("completion_tokens")),
            ),
            cached_tokens=_count(cached),
        )

    async def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        try:
            with trio.fail_after(CALL_TIMEOUT_S):
                async with self._client.request(method, self.url + path, content) as response:
                    payload = await _read(response)
            if response.status != 200:
                raise StatusError(self.url + path, response.status)
            return json.loads(payload) if payload else None
        except trio.TooSlowError:
            raise EngineError(f"{self.url}{path}: no answer within {CALL_TIMEOUT_S:g} s") from None
        except HttpError as error:
            raise EngineError(f"{self.url}{path}: {error}") from error
        except (ValueError, RecursionError):
            raise EngineError(f"{self.url}{path}: no JSON") from None


@asynccontextmanager
async def open_client(*, key: str = "") -> AsyncIterator[HttpClient]:
    """A client for `OpenAIUpstream`; `key` is what a server wants to see behind `Authorization: Bearer`."""
    client = HttpClient(key=key)
    try:
        yield client
    finally:
        client.close()


async def _read(response: Response) -> bytes:
    body = bytearray()
    while data := await response.receive():
        body += data
        if len(body) > ANSWER_BYTES_MAX:
            raise EngineError(f"the server's answer is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _parse(event: bytes) -> dict[str, object]:
    try:
        chunk = json.loads(event)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise EngineError("the server sent what is no JSON object")
    return chunk


def _text(endpoint: Endpoint, chunk: Mapping[str, object], where: str) -> str:
    """The text of the first choice in a chunk; the one that could be continued elsewhere."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or choice.get("index") != 0:
        return ""
    message = choice.get(where) if endpoint == "chat" else choice
    text = message.get("content" if endpoint == "chat" else "text") if isinstance(message, dict) else None
    return text if isinstance(text, str) else ""


def _one_line(event: bytes, chunk: Mapping[str, object]) -> bytes:
    """The event as it came; one of several lines could not go out as one."""
    if b"\n" in event or b"\r" in event:
        return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()
    return event


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0
