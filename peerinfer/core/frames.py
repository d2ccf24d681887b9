"""The frames of `/peerinfer/request/1`: what two nodes say to each other about one request.

A frame is a CBOR map whose `t` names its kind and whose `id` names the exchange; on a stream each is
preceded by its length as an uvarint (the overlay's part). An exchange is opened by `Request` or `Ask`
and closed by exactly one terminal frame: `Refuse`, `Wait`, `End` or `Error`. Between them the opener
may send `Cancel`, which the other side answers with a terminal frame. An exchange whose stream breaks
before its terminal frame has failed, whatever was received. Fields and limits: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peerinfer.core.types import Endpoint, Given, Holding, Load, PageKey, Usage

ASKED_PAGES_MAX = 4096
"""Of a longer prompt so many pages, the first, are asked for: half of what a frame may have beyond a body."""

RefuseCode = Literal["overloaded", "draining", "not_ready", "wrong_model", "bad_request", "slower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Serve this; it has been forwarded once and is not to be forwarded again."""

    id: str
    endpoint: Endpoint
    body: bytes
    """The client's JSON body as it came; only `model` has been rewritten."""
    fingerprint: bytes
    """Whose page keys the entry node reckoned with; the peer refuses another one with `wrong_model`."""
    prompt_pages: int
    """Whole pages of the prompt; 0 when the entry node could not tokenise it."""
    expected_cached_tokens: int
    time_left_s: float
    """After this the entry node has given up."""
    wait_at_most_s: float | None = None
    """Refuse it as `slower` if it would wait longer than this for its prefill; None: however long."""
    after: Given | None = None
    """What the opener had given to this peer before: it knows of that wait, and of what it gives it later."""
    answered_token_ids: tuple[int, ...] = ()
    """The answer's tokens that the client has already: serve what follows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """The request is in; frames follow."""

    id: str
    incarnation: int
    seq: int
    load: Load
    yours: Given | None = None
    """What the receiver has given to the sender and is in `load`: what it has given beyond that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Terminal: not here. `bad_request` is final for the client; else the next target is tried."""

    id: str
    code: RefuseCode
    message: str
    status: int = 503
    """The HTTP status for the client, of `bad_request`."""
    param: str | None = None
    error_code: str | None = None
    """OpenAI's `error.code`, of `bad_request`."""
    wait_s: float = 0.0
    """The true wait here, of `overloaded` and `slower`."""
    incarnation: int = 0
    seq: int = 0
    load: Load | None = None
    yours: Given | None = None
    """As in `Accept`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """One chunk of the answer."""

    id: str
    sse_json: bytes
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    whole: bool = False
    """Not a stream's chunk: (a piece of) the whole answer, as it goes out to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Still at it: queued, prefilling or between tokens."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What would the wait be for a request of this size? Reserves nothing; also measures the round trip."""

    id: str
    prompt_tokens: int
    expected_cached_tokens: int
    keys: tuple[PageKey, ...] = ()
    """The prompt's whole pages: what is there of them? Empty where only the wait is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Terminal: the answer to `Ask`."""

    id: str
    wait_s: float
    incarnation: int
    seq: int
    load: Load
    holding: Holding | None = None
    """What is here of the pages that were asked for; None if none were."""
    known_incarnation: int = 0
    """The asker's incarnation as this node knows it; an asker that finds it above its own goes beyond it."""
    yours: Given | None = None
    """As in `Accept`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The client is gone: stop the work. Answered by a terminal frame."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFrame:
    """Terminal: the answer is complete."""

    id: str
    usage: Usage
    cached_tokens: int
    incarnation: int
    tree_version: int
    """The version of the owner's tree that first covers this request."""
    seq: int
    load: Load
    yours: Given | None = None
    """As in `Accept`, without this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFrame:
    """Terminal: the work failed after it was accepted."""

    id: str
    code: str
    message: str


Frame = Request | Accept | Refuse | Data | Heartbeat | Ask | Wait | Cancel | EndFrame | ErrorFrame
Terminal = Refuse | Wait | EndFrame | ErrorFrame
