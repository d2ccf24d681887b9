"""Builders for the tests of the view and of the router: a swarm in a few words, at a clock of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from peerinfer.config import Config
from peerinfer.core.peer_view import Applied, PeerView
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.router import NOTHING_TOLD, OwnState, Prompt, Ranking, rank
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Holding, Load, NodeState, PageKey, PeerId

ME = PeerId("me")
A, B, C, D = (PeerId(name) for name in ("peer-a", "peer-b", "peer-c", "peer-d"))
PAGE = 16
IDLE = Load(prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0, slots=4)
"""An engine that prefills a token in a millisecond."""

BASE = Snapshot(
    addrs=("/ip4/192.0.2.1/tcp/4001",),
    incarnation=1,
    seq=1,
    tree_version=1,
    next_within_s=1.0,
    load=IDLE,
    paused_for_s=0.0,
    state=NodeState.ALIVE,
    reuse_tokens=1,
    keys=(),
    cut=False,
    pages=0,
)


def chain(start: int, pages: int) -> tuple[PageKey, ...]:
    """The keys of a prompt; prompts with different starts share nothing."""
    return tuple(range(start * 1000 + 1, start * 1000 + pages + 1))


LONG = chain(1, 33)
OTHER = chain(2, 33)


def queue(tokens: int) -> Load:
    """An engine with so much prefill ahead: a millisecond per token."""
    return replace(IDLE, queued_prefill_tokens=tokens)


def order(ranking: Ranking) -> list[str]:
    """The targets' names, best first."""
    return [candidate.peer for candidate in ranking.targets]


def message(keys: Sequence[PageKey] | None = (), **fields: object) -> Snapshot:
    """A message of a peer; what is not named is as in `BASE`, and `seq` is the tree's version."""
    told = {"seq": fields.get("tree_version", BASE.seq), **fields}
    pages = told.pop("pages", len(keys or ()))
    return replace(BASE, keys=None if keys is None else tuple(keys), pages=pages, **told)  # type: ignore[arg-type]


def new_view(*, config: Config | None = None, own: Sequence[PageKey] = ()) -> PeerView:
    """A view whose own tree holds one prompt."""
    tree = RadixTree(capacity_pages=10_000)
    tree.insert(own, now=0.0)
    return PeerView(me=ME, own=tree, page_size=PAGE, config=config or Config())


class Swarm:
    """A view and the peers that it hears, each of which counts its messages."""

    def __init__(
        self, *, config: Config | None = None, own: Sequence[PageKey] = (), rents: bool = True
    ) -> None:
        self.config = config or Config()
        self.view = new_view(config=self.config, own=own)
        self.now = 100.0
        self.own = OwnState(load=IDLE, ready=True, reuse_tokens=1)
        self.rents = RentLedger(self.config.routing) if rents else None
        self._seqs: dict[PeerId, int] = {}

    def hear(
        self,
        peer: PeerId,
        keys: Sequence[PageKey] | None = (),
        *,
        round_trip_s: float = 0.002,
        **fields: object,
    ) -> Applied:
        """A new message of a peer, whose link has this round trip."""
        seq = self._seqs[peer] = self._seqs.get(peer, 0) + 1
        told = {"seq": seq, "tree_version": seq, **fields}
        applied = self.view.apply_snapshot(peer, message(keys, **told), now=self.now)
        record = self.view.get(peer)
        if record is not None and record.round_trip_s is None:
            self.view.observe_round_trip(peer, round_trip_s)
        return applied

    def worked(self, peer: PeerId, tokens: int) -> None:
        """A node has computed so many prompt tokens, and said so in its reply."""
        if peer == ME:
            recent = self.own.load.recent_prefill_tokens + tokens
            self.own = replace(self.own, load=replace(self.own.load, recent_prefill_tokens=recent))
            return
        record = self.view.get(peer)
        assert record is not None
        load = replace(record.load, recent_prefill_tokens=record.load.recent_prefill_tokens + tokens)
        self.view.observe_load(peer, load, incarnation=record.incarnation, seq=record.seq, now=self.now)

    def rank(
        self,
        prompt: Prompt,
        *,
        policy: str = "cost",
        turn: int = 0,
        draw: float = 0.0,
        own: OwnState | None = None,
        target: PeerId | None = None,
        told: Mapping[PeerId, Holding] = NOTHING_TOLD,
    ) -> Ranking:
        """A decision now."""
        return rank(
            self.view,
            prompt,
            own or self.own,
            policy=policy,
            config=self.config.routing,
            now=self.now,
            turn=turn,
            draw=draw,
            target=target,
            rents=self.rents,
            told=told,
        )


def prompt(keys: Sequence[PageKey], *, extra_tokens: int = 8) -> Prompt:
    """A prompt of these pages and a few tokens more."""
    return Prompt(keys=tuple(keys), tokens=len(keys) * PAGE + extra_tokens)


def matches(swarm: Swarm, keys: tuple[int, ...]) -> dict[str, int]:
    """How many of a prompt's pages each peer is believed to have."""
    found = swarm.view.match_estimates(keys)
    return {peer.peer: found[peer.estimate.slot] for peer in swarm.view.candidates()}


def serve(swarm: Swarm, keys: tuple[int, ...]) -> PeerId:
    """Decide on one request and see it through before the next."""
    ranking = swarm.rank(prompt(keys))
    decided = ranking.targets[0]
    if swarm.rents is not None and ranking.tenancy is not None:
        residence_s = swarm.view.own.evictions.residence_s
        swarm.rents.note(ranking.tenancy, served_here=decided.is_me, residence_s=residence_s, now=swarm.now)
    if decided.is_me:
        swarm.view.own.insert(keys, now=swarm.now)
    uncached = len(keys) * 16 + 8 - decided.expected_cached_tokens
    swarm.worked(decided.peer, uncached)
    return decided.peer
