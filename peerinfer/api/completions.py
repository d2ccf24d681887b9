"""`/v1/chat/completions` and `/v1/completions`: from a client's bytes to the node, and back.

Theory of operation. While the node works, a second task waits for the client's disconnect and cancels
everything when it comes, before the first chunk as after it: leaving `node.handle` early is what stops
the engine. The server reports the same disconnect also once a response is complete, so the last bytes
are sent after that task and `node.handle` have ended: an answer that is whole is never cancelled, and
no engine is held by a client that reads slowly at the end. Chunks are relayed as they are, unparsed.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

import trio
from starlette.types import Message, Receive, Scope, Send

from peerinfer.api.assemble import DONE, Assembler, bad_chunk, has_usage, sse, usage_chunk, usage_json
from peerinfer.api.body import ClientGoneError, parse_object, read_body
from peerinfer.api.errors import (
    BadRequestError,
    ErrorResponse,
    Headers,
    error_headers,
    error_json,
    internal_error,
)
from peerinfer.api.event_writer import EventWriter
from peerinfer.api.ports import Serving
from peerinfer.api.security import check_content_type
from peerinfer.api.validate import check_body, include_usage
from peerinfer.config import HttpConfig
from peerinfer.core.policies import POLICIES
from peerinfer.core.types import Chunk, End, Endpoint, PeerId, RequestError
from peerinfer.node.reply import Incoming, Reply

log = logging.getLogger("peerinfer.api")

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Last:
    """What ends a response; `start` is None where the response has begun."""

    start: Message | None
    body: bytes


class Completions:
    """The ASGI application of one of the two endpoints."""

    def __init__(self, node: Serving, config: HttpConfig, endpoint: Endpoint) -> None:
        self._node = node
        self._config = config
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        headers = request_headers(request_id)
        raw = None
        try:
            check_content_type(scope["headers"])
            policy, target = self._overrides(scope)
            raw = await read_body(scope["headers"], receive, bytes_max=self._config.body_bytes_max)
            body = parse_object(raw)
            check_body(self._endpoint, body, models=self._node.models())
        except ClientGoneError:
            return
        except RequestError as error:
            if isinstance(error, BadRequestError):
                self._node.dropped_http(error.reason)
            response = ErrorResponse(error, headers, body_was_read=raw is not None)
            await response(scope, receive, send)
            return
        incoming = Incoming(
            id=request_id, endpoint=self._endpoint, raw=raw, body=body, policy=policy, target=target
        )
        with self._node.at_work():
            await self._answer(incoming, headers, receive, send)

    async def _answer(self, incoming: Incoming, headers: Headers, receive: Receive, send: Send) -> None:
        last = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
            last = await Exchange(self._node, incoming, headers, send, nursery).run()
            nursery.cancel_scope.cancel()
        if last is not None:
            if last.start is not None:
                await send(last.start)
            await send({"type": "http.response.body", "body": last.body, "more_body": False})

    def _overrides(self, scope: Scope) -> tuple[str | None, PeerId | None]:
        """What the client wants in place of the node's own routing."""
        found = {}
        for name, value in scope["headers"]:
            if name in (b"x-peerinfer-policy", b"x-peerinfer-target"):
                found[name.decode()] = value.decode("latin-1").strip()
        if not found:
            return None, None
        if not self._config.allow_overrides:
            name = min(found)
            raise BadRequestError(
                f"The header {name} is not allowed here; start the node with --allow-overrides.",
                reason="override",
                status=403,
                code="overrides_not_allowed",
                param=name,
            )
        policy, target = found.get("x-peerinfer-policy"), found.get("x-peerinfer-target")
        if policy is not None and policy not in POLICIES:
            raise BadRequestError(
                f"There is no policy {policy[:50]!r}; choose one of {', '.join(POLICIES)}.",
                reason="override",
                code="unknown_policy",
                param="x-peerinfer-policy",
            )
        return policy, PeerId(target) if target else None


def new_request_id() -> str:
    """Names one request on every node that it touches."""
    return f"req-{secrets.token_hex(12)}"


def request_headers(request_id: str) -> Headers:
    """`x-request-id` is where OpenAI's clients look for it."""
    value = request_id.encode()
    return [(b"x-peerinfer-request-id", value), (b"x-request-id", value)]


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] == "http.request":
        pass
    scope.cancel()


class Exchange:
    """One request that the node answers, streamed or whole."""

    def __init__(
        self, node: Serving, incoming: Incoming, headers: Headers, send: Send, nursery: trio.Nursery
    ) -> None:
        """The nursery is around the exchange, and ends with it."""
        self._node = node
        self._incoming = incoming
        self._headers = headers
        self._send = send
        self._nursery = nursery
        self._writer: EventWriter | None = None
        """Once a stream has begun."""

    async def run(self) -> Last:
        """Everything but the end of the response, which is returned; never raises an `Exception`."""
        try:
            async with self._node.handle(self._incoming) as reply:
                self._headers += reply_headers(reply)
                # Caught in here, so that the node never sees its own error pass through it.
                try:
                    if self._incoming.body.get("stream"):
                        last = await self._stream(reply)
                    else:
                        last = await self._whole(reply)
                except RequestError as error:
                    last = await self._failed(error)
        except RequestError as error:
            last = await self._failed(error)
        except Exception:
            log.exception("request=%s failed by a bug", self._incoming.id)
            last = await self._failed(internal_error())
        return last

    async def _stream(self, reply: Reply) -> Last:
        start = {"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *self._headers]}
        await self._send(start)
        writer = self._writer = EventWriter(self._send_piece)
        self._nursery.start_soon(writer.run)
        previous: bytes | None = None
        end: End | None = None
        async for item in reply.chunks:
            if isinstance(item, Chunk):
                if item.whole:
                    raise bad_chunk("it is no piece but a whole answer")
                previous = item.sse_json
                await writer.write(sse(previous))
            else:
                end = item
        if end is None:
            raise broken_off()
        if not include_usage(self._incoming.body) or has_usage(previous):
            return Last(None, await writer.rest() + DONE)
        usage = usage_json(end.usage, end.cached_tokens)
        chunk = usage_chunk(
            self._incoming.endpoint, previous, usage, request_id=self._incoming.id, model=self._model
        )
        return Last(None, await writer.rest() + sse(chunk) + DONE)

    async def _send_piece(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def _whole(self, reply: Reply) -> Last:
        pieces = Assembler(self._incoming.endpoint, request_id=self._incoming.id, model=self._model)
        body = b""
        end: End | None = None
        async for item in reply.chunks:
            if not isinstance(item, Chunk):
                end = item
            elif item.whole:
                body += item.sse_json
            else:
                pieces.add(item.sse_json)
        if end is None:
            raise broken_off()
        body = body or pieces.whole(usage_json(end.usage, end.cached_tokens))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *self._headers,
        ]
        return Last({"type": "http.response.start", "status": 200, "headers": headers}, body)

    async def _failed(self, error: RequestError) -> Last:
        """An error as a response of its own, or as the last event of a stream; no `[DONE]` follows it."""
        body = error_json(error)
        if self._writer is not None:
            return Last(None, await self._writer.rest() + b"data: " + body + b"\n\n")
        headers = error_headers(error, body, self._headers)
        return Last({"type": "http.response.start", "status": error.status, "headers": headers}, body)

    @property
    def _model(self) -> str:
        return str(self._incoming.body["model"])


def reply_headers(reply: Reply) -> Headers:
    """Where the answer comes from, and what was expected to be cached there."""
    return [
        (b"x-peerinfer-served-by", reply.served_by.encode()),
        (b"x-peerinfer-route", reply.route.encode()),
        (b"x-peerinfer-expected-cached-tokens", b"%d" % reply.expected_cached_tokens),
    ]


def broken_off() -> RequestError:
    """The answer stopped without its end."""
    return RequestError("The answer broke off before its end.", status=502, code="stream_broken")
