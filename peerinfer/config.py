"""Every number that can be turned, with what it means, where it comes from and what raising it costs.

Tags: `paper §` where the paper sets it, `measured` where docs/ tells the measurement, `guess` else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

BODY_BYTES_MAX = 16 * 1024 * 1024
"""The protocol's own limit: what a frame can carry (docs/protocol.md)."""

UNFINISHED_BYTES_MIN = 32 * 1024 * 1024
"""Room for the longest frame, and as much again for others meanwhile."""

SNAPSHOT_BYTES_MAX = 256 * 1024
"""The protocol's own limit (docs/protocol.md): what a node reads, however little it sends itself."""
API_KEY = re.compile("[!-~]{1,512}")
"""What fits into a header as it is."""
RANGES: Mapping[str, tuple[float, float]] = {
    "resume_jitter": (0, 1),
    "poll_interval_s": (0.02, 300),  # paper §5: the range of Δ_poll that it tries
    "snapshot_bytes_max": (4 * 1024, SNAPSHOT_BYTES_MAX),  # one message's head; what the topic takes
    "suspect_after": (1, 1000),
    "streams_per_peer_max": (1, 256),  # measured: the 257th of a connection blocks silently
    "page_size": (1, 256),
    "slots": (1, 1024),
    "port": (0, 65535),
    "body_bytes_max": (1, BODY_BYTES_MAX),
    "unfinished_bytes_per_peer_max": (UNFINISHED_BYTES_MIN, math.inf),
    "unfinished_bytes_max": (UNFINISHED_BYTES_MIN, math.inf),
}
"""The least and the most that a number may be. Without an entry it must be more than 0, and finite."""

MAY_BE_ZERO = frozenset(
    {
        "forward_margin_s",
        "cold_round_trip_share_max",
        "placement_slack",
        "placement_gain",
        "placement_agreement",
        "ask_peers_max",
        "slower_max",
        "bias_s_max",
        "crowding_weight",
        "rent_prior_uses",
        "rent_prior_weight",
        "prior_round_trip_s",
        "pause_s_max",
        "cancel_grace_s",
        "drain_s",
        "patience_s",
        "retry_share",
        "simulated_overhead_s",
        "network_delay_s",
        "network_jitter_s",
    }
)
"""Numbers for which 0 has a meaning."""


class Section:
    """What all sections have in common: a number that makes no sense is a `ValueError` of one line."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if type(value) in (int, float):
                _check(each.name, value, is_whole=each.type == "int")


def _check(name: str, value: float, *, is_whole: bool) -> None:
    if name in RANGES:
        least, most = RANGES[name]
        good, allowed = least <= value <= most, f"{least} to {most}"
    elif name in MAY_BE_ZERO:
        good, allowed = 0 <= value < math.inf, "0 or more"
    elif is_whole:
        good, allowed = value >= 1, "1 or more"
    else:
        good, allowed = 0 < value < math.inf, "more than 0"
    if not good:
        raise ValueError(f"{name} is {value}; allowed is {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig(Section):
    """How a target is chosen (core/router.py)."""

    policy: str = "cost"
    """`cost`, or for comparison `longest-prefix` (the paper's), `local`, `round-robin`, `random`."""
    forward_margin_s: float = 0.005  # guess
    """Forward only if it is expected to save more than this. Higher: fewer forwards that win nothing."""
    cold_round_trip_share_max: float = 0.1  # guess
    """Cold prompts are placed elsewhere only where the round trip is at most this share of the prefill."""
    placement_slack: float = 0.5  # guess
    """Nodes slower than the cheapest by less than this share of its prefill take cold prompts in turn, but
    none that is slower than serving here. Higher: evener shares of work, for slower cold prompts."""
    placement_gain: float = 1.0  # measured: docs/routing.md
    """A cold prompt leaves this node only if the other one has done less lately by this many times the
    prompt's prefill. Higher: less is moved. At 0, nodes that do not hear of each other in time all move what
    comes at once to the same node."""
    placement_agreement: float = 0.1  # measured: docs/routing.md
    """Of equals, those that have done more lately than the least busy one by at most this share count as
    idle: a hash of the prompt's first new page decides among them, on all nodes alike. Higher: more prefixes
    are computed once, and shares are less even. At 0 each node takes the least busy one by itself."""
    crowding_weight: float = 4.0  # measured: docs/routing.md
    """What a prefill takes from those who come after it counts so many times (core/crowding.py); 0: not at
    all. Higher: fewer prefixes are computed twice, and single requests wait longer for it. In theory 1, but
    what a node knows of waits elsewhere is late and mostly over: it finds fewer busy than there are."""
    bias_s_max: float = 0.0  # measured: docs/routing.md
    """By so much at most a peer counts as dearer or cheaper than predicted, because predictions about it were
    wrong lately; 0: predictions are not corrected. Higher: a link that is worse than its round trip is left
    alone, and so are peers whose caches would have helped: waits are not predicted well enough."""
    ask_peers_max: int = 3  # guess
    """So many of the best peers are asked at once for their true wait and what they have of the prompt; 0:
    nobody ever is."""
    ask_above_round_trips: float = 20.0  # guess
    """They are asked where the wait, or the prefill of a new prompt, may be longer than so many round trips.
    Lower: surer decisions, and a round trip more for most of them."""
    slower_max: int = 4  # measured: docs/routing.md
    """A request may be refused so often because it would wait longer than at the next best; 0: never."""
    rent_learns: bool = True
    """Whether the rule when to buy a prefix is learnt (core/rent.py), or stays the first one."""
    rent_prices_evictions: bool = True  # measured: docs/routing.md
    """Whether what must be evicted for it, as far as it is missed later, adds to a prefix's price."""
    rent_prior_uses: float = 8.0  # measured: docs/routing.md
    """Further uses that are expected of a prefix before anything was learnt. Higher: prefixes are computed
    here sooner, which pays on slow links, and costs hits on fast ones."""
    rent_prior_weight: float = 2.0  # guess
    """Each step away from the first rule counts as so many lost prices at first. Higher: learnt later."""
    rent_half_life: float = 500.0  # guess
    """Examples (prefixes) after which what was learnt counts half. Higher: surer, and slower to follow."""
    rent_ledger_max: int = 10_000
    """Prefixes whose rents are remembered; the least recently used go. About 200 bytes each."""
    prior_prefill_tokens_per_s: float = 1000.0  # guess
    """Used until a rate has been measured."""
    prior_decode_tokens_per_s: float = 30.0  # guess
    """Used until a rate has been measured."""
    prior_round_trip_s: float = 0.02  # guess
    """Used until a round trip has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiEntropyConfig(Section):
    """How snapshots travel (node/anti_entropy.py, paper §3.4)."""

    poll_interval_s: float = 0.5  # paper §5: Δ_poll = 500 ms
    """Between two snapshots of a node whose tree or load changes.

    Lower: fresher trees, for 5 ms of CPU per message on every node."""
    idle_interval_s: float = 2.0  # measured: 1 % of a core per idle node of four
    """Between two heartbeats of a node with nothing new. Lower: silence is noticed sooner."""
    messages_per_s_max: float = 40.0  # measured: gossipsub saturates a core at some 80/s of 50 KB
    """What all nodes together may publish; intervals stretch beyond poll_interval_s × swarm size."""
    complete_every: int = 10  # guess
    """Each n-th round carries the tree even if it did not change."""
    snapshot_bytes_max: int = 256 * 1024  # measured: 21 ms through gossipsub; 1 MiB is lost silently
    """A longer tree is cut from the tail. Higher: more prefixes known, slower rounds."""
    pull_interval_s: float = 1.0  # guess
    """At least this between two pulls from one peer."""
    suspect_after: float = 3.0  # paper §3.3: "a multiple of the broadcast interval"
    """SUSPECT after this many of the intervals that the peer last promised."""
    forget_after_s: float = 300.0  # guess
    """A peer silent for this long is forgotten; a high-water mark stays."""
    forget_left_after_s: float = 30.0  # guess: long enough to be seen
    """The same of a peer that said goodbye, from its last link or the end of its promise on."""
    optimistic_rounds_max: int = 3  # guess
    """An optimistic insert is dropped after so many of its owner's messages in any case."""
    estimates_bytes_max: int = 256 * 1024 * 1024  # guess
    """The pool of all estimates together; estimates of peers that cannot pay go first, then tails."""
    peers_max: int = 4096  # guess
    """Peers kept in the view at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBackConfig(Section):
    """When a node asks to be left alone (core/push_back.py, paper §3.2)."""

    queue_per_slot_max: float = 2.0  # guess
    """Push back above this many queued requests per slot; clear below half of it."""
    pause_s_max: float = 10.0  # guess
    """The longest pause asked for at once."""
    resume_jitter: float = 0.2  # guess
    """Receivers resume within ± this share of the pause, so that they do not all come back at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestConfig(Section):
    """The life of one request (node/request.py)."""

    open_timeout_s: float = 3.0  # guess
    """To have a stream to the peer."""
    accept_timeout_s: float = 5.0  # guess
    """From sending a request to the peer's accept or refuse."""
    silence_timeout_s: float = 6.0  # guess
    """Between two frames of an accepted request; heartbeats count, so slow is not dead."""
    heartbeat_interval_s: float = 1.0  # guess
    """While an accepted request has nothing to send."""
    first_token_s_min: float = 60.0  # guess
    first_token_factor: float = 10.0  # guess
    """The first token may take the first of these and so many times what was predicted; then the next target
    is tried. It guards against engines that hang: a peer that dies is noticed by its silence. Lower: slow
    engines lose work that was nearly done."""
    token_timeout_s: float = 60.0  # guess
    """Between two tokens, before the answer goes on elsewhere. Lower: the same."""
    continuations_max: int = 16  # guess
    """An answer whose engines break off goes on at other ones this many times."""
    patience_s: float = 20.0  # guess: an embedded engine is back after 2 s, a peer after its restart
    """A request that met a failure is tried again for so long while nobody can serve it, before it is told
    `no_node_available`. Higher: fewer failed requests, slower bad news."""
    cancel_grace_s: float = 1.0  # guess
    """After a cancel frame, before the stream is reset."""
    deadline_s: float = 600.0  # guess
    """A request's whole life."""
    attempts_max: int = 3  # guess
    """Targets tried, the own engine included; it is always the last."""
    retry_share: float = 0.1  # Google SRE book, "handling overload"
    """Retries on other peers, as a share of recent requests; beyond it the own engine serves."""
    drain_s: float = 8.0  # guess: `docker stop` kills after 10 s
    """A node that is asked to leave waits so long for what it is at work on. Higher: fewer cut streams."""
    queued_per_slot_max: int = 16  # guess
    """A forwarded request is refused beyond this queue, a client's beyond four times it."""
    probe_interval_s: float = 15.0  # guess
    """A peer whose round trip was not measured for this long is asked."""
    probes_per_s_max: float = 10.0  # guess: about 1 % of a core
    """What a node asks all its peers together. Lower: in a large swarm, round trips are known later."""
    decisions_kept: int = 2048  # guess
    """The ring behind `peerinfer why`; about 1 kB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayConfig(Section):
    """The libp2p host (overlay/)."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce: tuple[str, ...] = ()
    """What others are told to dial: a forwarded port, or a proxy. Empty: where this node listens."""
    upnp: bool = False
    """Have the router forward the ports that this node listens on, and announce its address."""
    upnp_renew_s: float = 60.0  # guess
    """A router that was restarted forwards nothing, and has perhaps another address, for so long at most.
    Lower: more questions, of two small HTTP requests each."""
    join: tuple[str, ...] = ()
    """Full multiaddrs (`…/p2p/…`) of peers to join through; tried for ever, with backoff."""
    relay: bool = False
    """Pass connections on between peers that cannot reach each other; `peerinfer bootstrap` always does."""
    relay_circuits_max: int = 128  # guess: of a megabyte of buffers each
    """So many such connections at once. Higher: more of other nodes' traffic through this one."""
    dial_timeout_s: float = 3.0  # measured: a connect takes 0.25 s on loopback, 0.95 s at 200 ms
    dial_backoff_s_min: float = 0.5  # guess
    dial_backoff_s_max: float = 30.0  # guess
    """Backoff of one address, doubled each time with jitter."""
    dials_per_s_max: float = 10.0  # guess
    """Dials of addresses learned from peers."""
    ping_interval_s: float = 2.0  # measured: a frozen peer is noticed after interval + timeout
    ping_timeout_s: float = 3.0  # a freeze of 2 s must not cost the connection
    idle_streams_per_peer_max: int = 32  # guess
    """Kept-open request streams per peer; further ones are closed after use."""
    streams_per_peer_max: int = 128  # measured: the 257th of a connection blocks silently
    """Calls to one peer at once; beyond it a call waits for a stream."""
    network_delay_s: float = 0.0
    """Δ_comm for experiments on one machine: all that arrives is handed on so much later. 0: never."""
    network_jitter_s: float = 0.0
    """That delay varies by so much in either direction; not more than the delay itself."""
    gossip_per_peer_per_s_max: float = 30.0  # guess
    """A peer that publishes more is disconnected; as much is taken of what others pass on from it."""
    gossip_passed_on_per_peer_per_s_max: float = 200.0  # guess: five times what all nodes publish together
    """Messages of the topic's mesh that one peer may send, whoever wrote them; beyond it is disconnected."""
    streams_opened_per_peer_per_s_max: float = 200.0  # measured: 2 to 4.5 ms of CPU each
    """New streams beyond this are reset. Lower: calls fail that come in waves, and want streams anew."""
    frames_without_data_per_connection_per_s_max: float = 1000.0  # measured: 20 to 30 µs of CPU each
    """Frames of the multiplexer that grant a window, ping or bring hardly any data, without those that answer
    this node's own; beyond this the peer is disconnected. Higher: more CPU for nothing."""
    lookups_per_peer_per_s_max: float = 10.0  # measured: 10 ms of CPU each; a new link asks four times
    """Questions for peers beyond this end their stream."""
    requests_per_peer_per_s_max: float = 500.0  # guess: what a few fast engines take
    """Requests and questions for the wait; beyond this their stream ends."""
    unfinished_bytes_per_peer_max: int = 64 * 1024 * 1024  # guess: sixteen of the longest bodies on their way
    """Bytes of a peer's frames whose ends have not come; beyond this its stream with the most of them is
    reset. Lower: long bodies that are forwarded at the same time cost each other's streams."""
    unfinished_bytes_max: int = 256 * 1024 * 1024  # guess
    """The same for all peers together; the stream is the one of the peer that has the most of them."""
    allow_peers: tuple[str, ...] = ()
    """Peer ids; if there are any, no other peer is let in, dialled or heard."""
    deny_peers: tuple[str, ...] = ()
    """Peer ids that are not, whatever else holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Section):
    """Which engine serves, and with how much memory (engine/choose.py)."""

    kind: str = "auto"
    """`sglang`, `embedded` (llama.cpp on this CPU), `simulated` (no model at all), or `auto`: SGLang where it
    is installed and there is a GPU, else embedded."""
    model: str = ""
    """For SGLang a directory or an id that it can load, for the embedded engine a GGUF file; empty: the
    default model, or with `url` the one that the server has."""
    page_size: int = 16  # measured: KV is bit-identical cold and cached at 16
    """Tokens per cache page. Part of the fingerprint: nodes of other sizes do not share prefixes."""
    cache_tokens: int = 8192  # guess
    """The KV cache's budget. Embedded: 23 kB of memory per token."""
    slots: int = 2  # guess
    """Requests that run at the same time. Embedded: one core and one context each."""
    context_tokens: int = 4096  # guess
    """Prompt and answer together. Embedded: 23 kB of memory per token and slot."""
    simulated_prefill_tokens_per_s: float = 480.0  # measured: SGLang, SmolLM2-135M, one thread
    simulated_decode_tokens_per_s: float = 40.0  # guess
    simulated_overhead_s: float = 0.01  # guess
    url: str = ""
    """Base URL of a server that somebody else runs; empty: the node starts SGLang itself."""
    events: str = ""
    """Where the server at `url` publishes its cache events, e.g. `tcp://127.0.0.1:5557`; empty: where it
    says, which SGLang does and vLLM does not."""
    events_replay: str = ""
    """Where it repeats those that were missed, e.g. `tcp://127.0.0.1:5558`; empty: nowhere."""
    python: str = ""
    """The Python in whose environment SGLang is installed; empty: the one that runs the node."""
    args: tuple[str, ...] = ()
    """Flags for `sglang.launch_server`, behind ours: a flag given here replaces ours of that name."""
    health_interval_s: float = 5.0  # measured: a check of an idle SGLang computes a token, 1 % of a CPU core
    """Between two health checks. Lower: a server that hangs is noticed sooner; one that dies is at once."""
    health_timeout_s: float = 10.0  # measured: SGLang takes 1 s, or until its next token
    """An answer that takes longer is a failed check. Lower: a long prefill looks like a failure."""
    health_failures_max: int = 2  # guess
    """So many failed checks in a row and the engine counts as failing, until one succeeds."""
    hung_after_s: float = 600.0  # guess: twice SGLang's own watchdog
    """A server that runs, but has been failing for this long, is killed and started anew."""
    start_timeout_s: float = 3600.0  # guess: a large model may have to be downloaded first
    """From the start of SGLang until it is healthy; then it is killed and started anew."""
    restart_delay_s_min: float = 1.0  # guess
    restart_delay_s_max: float = 60.0  # guess
    """Before SGLang is started again: doubled with each failure, back to the least once it has been ready for
    longer than the longest delay."""
    stop_grace_s: float = 1.5  # measured: SGLang ends 0.8 s after SIGINT; the whole node has 2.5 s
    """From asking SGLang to end until it is killed."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.cache_tokens < self.page_size:
            raise ValueError(
                f"cache_tokens is {self.cache_tokens}; allowed is at least one page, {self.page_size}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(Section):
    """The HTTP face (api/)."""

    host: str = "127.0.0.1"
    port: int = 8000
    port_is_default: bool = True
    """A defaulted port moves on to the next free one; a port that was asked for does not."""
    body_bytes_max: int = 4 * 1024 * 1024  # guess
    """A longer body gets 413. The same bytes travel on the wire, so this bounds frames too."""
    connections_max: int = 512  # guess: half of the usual limit of open files; the overlay needs the rest
    """Beyond this the connection that has brought no request for the longest time is closed; where all have
    one, the new one is answered 503 and closed. A connection has one request at a time."""
    allow_overrides: bool = False
    """Honour `x-peerinfer-policy` and `x-peerinfer-target`."""
    api_key: str = field(default="", repr=False)
    """What clients have to show, on every path but `/healthz` and `/readyz`; empty: nothing."""
    insecure: bool = False
    """Listen on an address that other machines reach even without `api_key`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides the machine's own, under which clients reach this node, e.g. through a proxy. A page of
    such a name can use the node with its visitor's browser, so name none that is not yours."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.api_key and not API_KEY.fullmatch(self.api_key):
            raise ValueError("api_key: allowed are 1 to 512 printable ASCII characters without spaces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One node."""

    routing: RoutingConfig = field(default_factory=RoutingConfig)
    anti_entropy: AntiEntropyConfig = field(default_factory=AntiEntropyConfig)
    push_back: PushBackConfig = field(default_factory=PushBackConfig)
    request: RequestConfig = field(default_factory=RequestConfig)
    overlay: OverlayConfig = field(default_factory=OverlayConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
