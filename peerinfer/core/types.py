"""The words of the domain: values that cross the borders between core, node and adapters.

Everything here is immutable. Durations are seconds, sizes are tokens, pages or bytes, and the unit
ends the name. Vocabulary: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, NewType

PeerId = NewType("PeerId", str)
"""A node's libp2p peer id in base58, e.g. `12D3KooW…`."""

PageKey = int
"""Names one whole prefix: the 8-byte chained hash of its last page, read as an unsigned little-endian."""

Endpoint = Literal["chat", "completions"]
"""Which OpenAI endpoint a body was posted to: `/v1/chat/completions` or `/v1/completions`."""


class EngineState(StrEnum):
    """Whether the node's own engine can answer."""

    LOADING = "loading"
    READY = "ready"
    FAILING = "failing"
    RESTARTING = "restarting"


class NodeState(StrEnum):
    """What a node tells its peers about itself; only `ALIVE` ones are forwarded to."""

    ALIVE = "alive"
    LOADING = "loading"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work an engine has at hand, and how fast it has been measured to do it."""

    running: int = 0
    """Requests that hold a slot."""
    queued: int = 0
    """Requests that wait for a slot."""
    queued_prefill_tokens: int = 0
    """Uncached prompt tokens still to be prefilled, of queued and running requests."""
    recent_prefill_tokens: int = 0
    """Prompt tokens computed lately, the older the less: what the placement of cold prompts evens out."""
    prefill_tokens_per_s: float = 0.0
    """Measured; 0 means not measured yet."""
    decode_tokens_per_s: float = 0.0
    """Measured, per running request; 0 means not measured yet."""
    slots: int = 1
    """Requests the engine runs at the same time."""


@dataclass(frozen=True, slots=True)
class Given:
    """Requests that one node has given to another, and that have not ended."""

    requests: int = 0
    tokens: int = 0
    """Of their prompts, what the giver expected to have to be computed. It stays the same until they end."""

    def plus(self, other: Given) -> Given:
        """Both."""
        return Given(self.requests + other.requests, self.tokens + other.tokens)

    def minus(self, other: Given) -> Given:
        """What is left without the other; never less than nothing."""
        return Given(max(0, self.requests - other.requests), max(0, self.tokens - other.tokens))


class Holding(NamedTuple):
    """What a node has of a prompt right now, in whole pages from its begin."""

    cached_pages: int
    coming_pages: int
    """The same with those behind them that it computes for requests which it was given before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer, as OpenAI's `usage` has them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One streamed piece of an answer."""

    sse_json: bytes
    """The JSON object as it goes out behind `data: `, shaped as OpenAI's stream chunk of that endpoint."""
    text: str = ""
    """The text in it, so that a broken answer can be continued elsewhere."""
    token_ids: tuple[int, ...] | None = None
    """The tokens behind the text, where the engine tells them."""
    whole: bool = False
    """The JSON is not shaped as a stream's: it is a whole answer, to be sent as it is, or a piece of one.
    Then all chunks are, and their bytes together are the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The engine finished an answer; nothing follows."""

    usage: Usage
    cached_tokens: int
    """Prompt tokens the engine took from its cache: the actual hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """One request as an engine gets it."""

    id: str
    endpoint: Endpoint
    body: Mapping[str, object]
    """The client's JSON body, unchanged but for `model`."""
    raw: bytes = b""
    """The same as the client sent it, for engines that send it on; empty where it exists only parsed."""
    token_ids: tuple[int, ...] | None = None
    """The prompt as this node's tokeniser encodes it; None where it cannot."""
    answered_token_ids: tuple[int, ...] = ()
    """The answer's tokens that the client has already: the end of `token_ids`, though not in `body`. Only
    engines that tell their tokens are ever given them; those answer `token_ids`, whatever the body says."""
    expected_cached_tokens: int = 0
    """How much of the prompt will be cached when its turn comes, as far as this node's tree and the requests
    before it tell; the rest is to be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What is fixed about an engine before it starts."""

    kind: str
    """`sglang`, `openai` (another server that is attached), `embedded` or `simulated`."""
    model: str
    """The name under which the engine serves the model."""
    page_size: int
    """Tokens per cache page."""
    capacity_pages: int
    slots: int
    context_tokens_max: int
    """Prompt and answer together."""
    reuse_tokens: int = 1
    """The engine reuses cached tokens in multiples of this; expectations are rounded down to it."""
    source: Literal["events", "history"] = "events"
    """Whether the node's tree follows the engine's own cache events or only what it was sent."""
    fingerprint_fields: Mapping[str, str] = field(default_factory=dict)
    """What must be equal for two nodes to trust each other's page keys (see core/fingerprint.py)."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """The engine's cache holds these consecutive pages now (SGLang's and vLLM's event of that name)."""

    block_hashes: tuple[int, ...]
    """The engine's own name for each page; ours are computed from the tokens."""
    parent_block_hash: int | None
    """The page before the first; None at the start of a prompt."""
    token_ids: tuple[int, ...]
    """The tokens of all the pages, one page after the other."""
    block_size: int
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """The engine evicted these pages from one medium."""

    block_hashes: tuple[int, ...]
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The engine's cache is empty now."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class RequestError(Exception):
    """A request cannot be answered; carries what OpenAI's error object needs.

    Raised by engines (a parameter that is not supported, a prompt that is too long) and by the node
    (nobody can serve). `status` is the HTTP status that a client is told.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """OpenAI's `error.type`: who has to act."""
        return "invalid_request_error" if self.status < 500 else "server_error"
