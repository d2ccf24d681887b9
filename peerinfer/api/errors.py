"""Errors as OpenAI writes them: `{"error": {"message", "type", "param", "code"}}`.

A response to a request whose body has not been read is followed by draining that body for a while: a
socket closed with bytes unread resets the connection, and a client that is still sending would see the
reset in place of the answer.
"""

from __future__ import annotations

import json
import math

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from peerinfer.core.types import RequestError

Headers = list[tuple[bytes, bytes]]

DRAIN_TIMEOUT_S = 2.0  # guess
"""How long the rest of a refused body is read and thrown away."""

NOT_AGAIN = frozenset({"engine_failed"})
"""Codes of requests that harm: OpenAI's clients would send them again by themselves, twice."""

INTERNAL_ERROR = "This node failed to answer; its log says why."


class BadRequestError(RequestError):
    """The face refuses a request for what it is; `reason` is the word it is counted under."""

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, status=status, code=code, param=param)
        self.reason = reason


def internal_error() -> RequestError:
    """What a client is told about a bug of ours: that there was one."""
    return RequestError(INTERNAL_ERROR, status=500, code="internal_error")


def shutting_down() -> RequestError:
    """What a client is told whose request this node will not get to answer any more."""
    return RequestError(
        "This node is shutting down; send the request to another one.", status=503, code="shutting_down"
    )


def error_json(error: RequestError) -> bytes:
    """The error object."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return json.dumps({"error": body}, ensure_ascii=False).encode("utf-8", "replace")


def error_headers(error: RequestError, body: bytes, extra: Headers) -> Headers:
    """The headers of an error response; `Retry-After` is in whole seconds, at least one."""
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *extra,
    ]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if error.code in NOT_AGAIN:
        headers.append((b"x-should-retry", b"false"))
    return headers


class ErrorResponse(Response):
    """A response to a request whose body may still be on its way, unless it says that it was read."""

    def __init__(
        self, error: RequestError, extra: Headers | None = None, *, body_was_read: bool = False
    ) -> None:
        body = error_json(error)
        super().__init__(body, status_code=error.status)
        self._body_was_read = body_was_read
        self.raw_headers = error_headers(error, body, extra or [])

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        if not self._body_was_read:
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            await drain(receive)
        last = self.body if self._body_was_read else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def drain(receive: Receive) -> None:
    """Read the rest of a body and keep none of it, for a bounded time."""
    with trio.move_on_after(DRAIN_TIMEOUT_S):
        while True:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
