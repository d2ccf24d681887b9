"""Reading a request's body: never more than the limit in memory, never for ever, and JSON or nothing."""

from __future__ import annotations

import json
import re
from typing import NoReturn

import trio
from starlette.types import Receive

from peerinfer.api.errors import BadRequestError
from peerinfer.api.security import RawHeaders

BODY_TIMEOUT_S = 60.0  # guess
"""From a request's headers to the end of its body."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""The JSON escape of half a character; only bodies with one can hold text that is not Unicode."""


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(headers: RawHeaders, receive: Receive, *, bytes_max: int) -> bytes:
    """The whole body.

    Raises:
        BadRequestError: 413 beyond `bytes_max`, as soon as that is known; 408 if it takes too long.
        ClientGoneError: there is nobody to answer.
    """
    for name, value in headers:
        if name == b"content-length" and int(value) > bytes_max:
            raise _too_large(bytes_max)
    body = bytearray()  # the pieces by themselves may take fifty times their size
    with trio.move_on_after(BODY_TIMEOUT_S):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            piece = message.get("body", b"")
            if len(body) + len(piece) > bytes_max:
                raise _too_large(bytes_max)
            body += piece
            if not message.get("more_body", False):
                return bytes(body)
    raise BadRequestError(
        f"The body did not arrive within {BODY_TIMEOUT_S:.0f} s.",
        reason="timeout",
        status=408,
        code="request_timeout",
    )


def _too_large(bytes_max: int) -> BadRequestError:
    return BadRequestError(
        f"The body is longer than this node takes ({bytes_max} bytes).",
        reason="too_large",
        status=413,
        code="request_too_large",
    )


def parse_object(raw: bytes) -> dict[str, object]:
    """The JSON object in a body.

    Raises:
        BadRequestError: 400; it is not UTF-8, not JSON (RFC 8259: no NaN), nested beyond reason, or not
            an object.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        if SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise _bad_json("it is not valid Unicode (UTF-8)") from None
    except ValueError as error:
        raise _bad_json(str(error)) from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise _bad_json("an object was expected")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bad_json(why: str) -> BadRequestError:
    return BadRequestError(
        f"The body could not be read as a JSON object: {why}.", reason="bad_json", code="bad_json"
    )
