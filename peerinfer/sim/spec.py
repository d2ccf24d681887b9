"""What a simulated world is made of, and what one of its requests came to: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from peerinfer.config import Config
from peerinfer.core.types import PeerId
from peerinfer.node.reply import Route
from peerinfer.sim.weather import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node's engine. Its page size is the config's."""

    cache_pages: int = 4096
    prefill_tokens_per_s: float = 480.0  # measured: SGLang, SmolLM2-135M, one thread
    prefill_s_per_pair: float = 0.0
    """Attention: seconds for each pair of a computed token and one at or before it."""
    decode_tokens_per_s: float = 40.0
    """Of each running request."""
    slots: int = 2
    overhead_s: float = 0.01
    """Of each request, besides prefill and decode."""
    load_s: float = 0.0
    """Until the engine is ready after a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a node's own computing takes, which virtual time does not see; each request pays it at its entry.

    Constants, so that one seed gives one result on every machine.
    """

    hash_s_per_page: float = 1.2e-6  # measured: benchmarks/test_core_a.py, 540 tokens in 40 µs
    decide_s: float = 20e-6  # measured: benchmarks/test_core_b.py
    insert_s_per_page: float = 3e-6  # measured: the engine's event to the own tree
    processing_s: float = 1e-3  # guess: HTTP, the body, tokenising

    def trees_s(self, pages: int) -> float:
        """Hashing a prompt of so many pages, deciding, and updating a tree with it."""
        return self.decide_s + pages * (self.hash_s_per_page + self.insert_s_per_page)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """A world: the same spec gives the same history, in every process."""

    seed: int = 0
    nodes: tuple[NodeSpec, ...]
    conditions: Conditions = field(default_factory=Conditions)
    """Of every link that is not among `links`."""
    links: tuple[tuple[int, int, Conditions], ...] = ()
    """Links between two nodes that differ."""
    linked: bool = False
    """Whether all nodes are linked from the start, as in a swarm that has lived for long; else they join."""
    config: Config = field(default_factory=Config)
    """Of every node: policy, poll interval, page size (`engine.page_size`) and so on."""
    costs: Costs = field(default_factory=Costs)
    context_tokens: int = 1 << 20
    """Prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request as its client saw it; times are the world's."""

    request_id: str
    entry: int
    served_by: int | None
    """Whose first token it was; None if there was none."""
    route: Route | None
    prompt_tokens: int
    expected_cached_tokens: int
    cached_tokens: int
    output: tuple[int, ...]
    """The tokens that came."""
    output_tokens: int
    """As the end says; of a broken answer, those that came."""
    started_at: float
    first_chunk_at: float | None
    ended_at: float
    error: str | None
    """What the client was told instead of an end; None if all went well."""
    attempts: tuple[tuple[PeerId, str], ...]
    """Targets in the order in which they were tried, each with what came of it."""
    engine_s: float = 0.0
    """At the engine that served it: waiting, prefill and decoding."""
    trees_s: float = 0.0
    """Hashing, matching and updating trees."""
    processing_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """From the client's request to the end of the answer."""
        return self.ended_at - self.started_at

    @property
    def network_s(self) -> float:
        """What is left: the way there and back, and whatever was waited for targets that failed."""
        return max(0.0, self.latency_s - self.engine_s - self.trees_s - self.processing_s)
