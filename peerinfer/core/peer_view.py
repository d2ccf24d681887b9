"""What this node knows of the swarm: its own tree, one estimate per peer, and who can be forwarded to.

Rules. One writer per tree: only a peer's own messages change what is believed of it, and only its latest.
`(incarnation, seq)` orders load, push-back and liveness; `(incarnation, tree_version)` orders the tree
alone, so a message that comes late may still bring the newest tree. A new incarnation starts with an
empty estimate: the cache died with the old one (paper §2, crash recovery). Since every snapshot is
complete, loss, duplication and reordering need no repair of their own (§3.4). What is believed may be
stale or wrong and costs time only, never an answer (§3.5). Everything is bounded: peers, pages, marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import Literal

from peerinfer.config import Config
from peerinfer.core.cost_model import Rates, typical
from peerinfer.core.crowding import Crowding
from peerinfer.core.estimate_index import PAGE_BYTES, Differ, EstimateIndex, difference
from peerinfer.core.in_flight import InFlight
from peerinfer.core.news import Applied, Change
from peerinfer.core.peer import Peer, PeerRecord, PeerStatus
from peerinfer.core.prediction_error import PredictionError
from peerinfer.core.push_back import resume_at
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.snapshot import Snapshot
from peerinfer.core.types import Given, Load, PageKey, PeerId

__all__ = ["Applied", "Change", "PeerRecord", "PeerStatus", "PeerView"]


class PeerView:
    """The swarm as one node sees it. Unknown peers are no error anywhere: they were forgotten meanwhile."""

    def __init__(
        self,
        *,
        me: PeerId,
        own: RadixTree,
        page_size: int,
        config: Config,
        differ: Differ = difference,
    ) -> None:
        self.me = me
        self.own = own
        """Trie_i: exact, written by the engine's events."""
        self.page_size = page_size
        self.own_in_flight = InFlight()
        """What was decided to be served here and has not ended."""
        self.own_error = PredictionError()
        self.crowding = Crowding()
        self.rates = Rates.prior(config.routing)
        """What stands in for the rates of nodes that have not measured theirs."""
        self._config = config
        self._peers: dict[PeerId, Peer] = {}
        self._index = EstimateIndex(differ)
        self._marks: dict[PeerId, tuple[int, int]] = {}
        self._changes: list[Change] = []

    # What a decision reads (core/router.py)

    def candidates(self) -> Collection[Peer]:
        """All peers, usable or not, in no order that may matter. To be read only."""
        return self._peers.values()

    def match_estimates(self, keys: Sequence[PageKey]) -> list[int]:
        """PrefixMatch(r, T̂rie_j) for all j: matched pages by `Peer.estimate.slot`."""
        return self._index.match_prefix(keys)

    def typical_prefill_tokens_per_s(self) -> float:
        """The median of the rates that peers have measured; 0 if none has."""
        return typical(peer.load.prefill_tokens_per_s for peer in self._peers.values())

    @property
    def own_unsettled_tokens(self) -> int:
        """What is to be computed here and is not in the engine's load yet."""
        return self.own_in_flight.unsettled.tokens

    # What people and other parts of the node read

    def state(self, peer: PeerId, *, now: float) -> PeerStatus:
        """What a peer is to us; one that nothing is known of is suspect."""
        known = self._peers.get(peer)
        return PeerStatus.SUSPECT if known is None else known.status(now=now)

    def get(self, peer: PeerId) -> PeerRecord | None:
        """A peer as it is known now."""
        known = self._peers.get(peer)
        return None if known is None else known.record()

    def peers(self) -> list[PeerRecord]:
        """All known peers, by id."""
        return [self._peers[peer].record() for peer in sorted(self._peers)]

    def __contains__(self, peer: PeerId) -> bool:
        """Whether anything is known of a peer."""
        return peer in self._peers

    def __len__(self) -> int:
        """Known peers."""
        return len(self._peers)

    @property
    def forgotten(self) -> int:
        """Peers of which nothing is left but a mark, so that nothing old brings them back."""
        return len(self._marks)

    def known_incarnation(self, peer: PeerId) -> int:
        """The latest incarnation heard of, even of a peer that is forgotten; 0 if none."""
        known = self._peers.get(peer)
        return self._marks.get(peer, (0, 0))[0] if known is None else known.incarnation

    def estimated_pages(self, peer: PeerId) -> list[PageKey]:
        """The peer's tree as it told last, in its order."""
        known = self._peers.get(peer)
        return [] if known is None else known.estimate.pages.tolist()

    def inserted_pages(self, peer: PeerId) -> frozenset[PageKey]:
        """What we added to that ourselves since (`update_estimate`)."""
        known = self._peers.get(peer)
        return frozenset() if known is None else frozenset(known.estimate.inserts)

    # What the peer says

    def apply_snapshot(self, peer: PeerId, snapshot: Snapshot, *, now: float) -> Applied:
        """Take over what is news in a peer's message, whatever came before it."""
        known = self._admit(peer, snapshot, now=now)
        if known is None:
            return Applied.STALE
        news = snapshot.seq > known.seq
        if news:
            self._take_state(known, snapshot, now=now)
        estimate, version = known.estimate, snapshot.tree_version
        rounds_max = self._config.anti_entropy.optimistic_rounds_max
        self._index.heard(estimate, version, is_round=news, rounds_max=rounds_max)
        applied = Applied.HEARTBEAT if news else Applied.STALE
        if snapshot.keys is None:
            if version > estimate.version:
                applied = Applied.NEEDS_PULL
        elif estimate.lacks(version):
            self._index.replace(estimate, snapshot.keys)
            estimate.version, estimate.cut = version, snapshot.cut
            known.pages = snapshot.pages
            self._bound_pages(now=now)
            applied = Applied.APPLIED
        if applied is not Applied.STALE and version == estimate.version:
            known.confirmed_at = now
        return applied

    def update_estimate(
        self, peer: PeerId, keys: Sequence[PageKey], *, incarnation: int, tree_version: int, now: float
    ) -> None:
        """Insert a prompt that the peer has just served for us (updateTrieEstimate, line 17).

        `tree_version` is the peer's own word for the first version of its tree that has it.
        """
        known = self._in_life(peer, incarnation)
        if known is not None:
            self._index.insert(known.estimate, keys, tree_version=tree_version)
            self._bound_pages(now=now)

    def observe_load(
        self,
        peer: PeerId,
        load: Load,
        *,
        incarnation: int,
        seq: int,
        now: float,
        yours: Given | None = None,
    ) -> None:
        """A reply carried the peer's load. It is stamped with the seq of the message before it.

        `yours`: of what was forwarded there, what has come and has not ended.
        """
        known = self._in_life(peer, incarnation)
        if known is None:
            return
        if yours is not None:
            known.in_flight.arrived_in_all(yours)
        if seq < known.load_seq:
            known.weigh()
            return  # a snapshot overtook it
        known.told_load(load, seq=seq, now=now)
        known.detector.heard(now=now)
        known.weigh()

    def refused(self, peer: PeerId, *, wait_s: float, now: float) -> None:
        """The peer said that it does not want a request now: leave it alone, until its next message."""
        known = self._peers.get(peer)
        if known is not None:
            until = now + min(wait_s, self._config.push_back.pause_s_max)
            known.paused_until = max(known.paused_until, until)
            known.weigh()

    # What this node notices itself

    def unanswered(self, peer: PeerId, *, wait_s: float, now: float) -> None:
        """A request failed at the peer: leave it alone for so long, whatever its messages say, and for
        twice as long each further time, until it serves one or is connected anew."""
        known = self._peers.get(peer)
        if known is not None:
            known.failed(shun_s=wait_s, now=now)

    def answered(self, peer: PeerId) -> None:
        """The peer served a request, or is connected anew."""
        known = self._peers.get(peer)
        if known is not None:
            known.succeeded()

    def observe_round_trip(self, peer: PeerId, seconds: float) -> None:
        """A round trip to the peer was measured."""
        known = self._peers.get(peer)
        if known is not None:
            known.observe_round_trip(max(0.0, seconds))

    def observe_error(self, peer: PeerId, error_s: float, *, now: float) -> None:
        """A first token from there, or from here, took so much longer than predicted without any bias."""
        known = self._peers.get(peer)
        if peer == self.me:
            self.own_error.observe(error_s, now=now)
        elif known is not None:
            known.error.observe(error_s, now=now)
            known.weigh()

    def measured_here(self, load: Load) -> None:
        """This node's load: who has measured no rates counts as this node, and this node as its peers."""
        if self.rates.learn(load, (peer.load for peer in self._peers.values()), self._config.routing):
            for peer in self._peers.values():
                peer.weigh()

    def forwarded(self, peer: PeerId, uncached_tokens: int, keys: Sequence[PageKey] = ()) -> None:
        """A request goes there, or stays here if `peer` is this node; it counts from now on: its tokens as
        load, and its pages as coming.

        To be called at the decision. The peer's own word is a round trip away, and until then other
        decisions must not take it for idle.
        """
        if (book := self._in_flight(peer)) is not None:
            book.sent(Given(1, uncached_tokens), keys)
            self._weigh(peer)

    def tried(self, peer: PeerId, *, within_s: float, now: float) -> None:
        """A request is being sent there; if the peer failed before, nobody else tries it within this time."""
        known = self._peers.get(peer)
        if known is not None:
            known.tried(within_s=within_s, now=now)

    def settled(self, peer: PeerId, uncached_tokens: int) -> None:
        """The load that the peer (or our engine) tells counts these of the forwarded tokens."""
        if (book := self._in_flight(peer)) is not None:
            book.arrived(Given(1, uncached_tokens))
            self._weigh(peer)

    def ended(
        self, peer: PeerId, uncached_tokens: int, keys: Sequence[PageKey] = (), *, was_settled: bool
    ) -> None:
        """A forwarded request is over, however it ended; `was_settled`: the load that is known counts it."""
        if (book := self._in_flight(peer)) is not None:
            book.ended(Given(1, uncached_tokens), keys, had_arrived=was_settled)
            self._weigh(peer)

    def link_down(self, peer: PeerId, *, now: float) -> None:
        """The last connection to the peer broke: suspect until its own word comes, perhaps through others.

        A new connection alone does not change that: the peer may have restarted with an empty cache.
        """
        known = self._peers.get(peer)
        if known is not None:
            known.lost_link(now=now)

    def restart_clocks(self, *, now: float) -> None:
        """This node was frozen: whoever was not suspect before is given its whole time again."""
        for known in self._peers.values():
            if known.reported not in (PeerStatus.SUSPECT, PeerStatus.LEFT):
                known.detector.restart(now=now)

    def expire(self, *, now: float) -> list[Change]:
        """Forget who was silent for too long or has left; tell who became what since the last call, by id."""
        for known in list(self._peers.values()):
            if known.is_over(now=now):
                self._forget(known, now=now)
                continue
            status = known.status(now=now)
            if status is not known.reported:
                self._changes.append(_change(known, status, now=now))
                known.reported = status
        changes, self._changes = self._changes, []
        return sorted(changes, key=lambda change: change.peer)

    # Peers come and go

    def _admit(self, peer: PeerId, snapshot: Snapshot, *, now: float) -> Peer | None:
        """The peer that a message is from, new or renewed by it; None if the message is of the past."""
        if peer == self.me:
            return None
        if peer in self._peers:
            return self._in_life(peer, snapshot.incarnation)
        if (snapshot.incarnation, snapshot.seq) <= self._marks.get(peer, (-1, -1)):
            return None
        self._marks.pop(peer, None)
        if len(self._peers) >= self._config.anti_entropy.peers_max:
            silent = min(self._peers.values(), key=lambda known: (known.detector.heard_at, known.peer))
            self._forget(silent, now=now)
        known = Peer(
            peer,
            self._index.open(),
            config=self._config,
            rates=self.rates,
            incarnation=snapshot.incarnation,
            now=now,
        )
        self._peers[peer] = known
        return known

    def _in_life(self, peer: PeerId, incarnation: int) -> Peer | None:
        """The peer in this incarnation, renewed if it is a new one; None if unknown or in a later one."""
        known = self._peers.get(peer)
        if known is None or incarnation < known.incarnation:
            return None
        if incarnation > known.incarnation:
            self._index.empty(known.estimate)
            known.renew(incarnation)
        return known

    def _forget(self, known: Peer, *, now: float) -> None:
        """Drop a peer but for a mark, so that nothing that it said before can bring it back."""
        del self._peers[known.peer]
        self._index.close(known.estimate)
        self._marks[known.peer] = (known.incarnation, known.seq)
        if len(self._marks) > self._config.anti_entropy.peers_max:
            del self._marks[next(iter(self._marks))]
        self._changes.append(_change(known, "forgotten", now=now))

    def _take_state(self, known: Peer, snapshot: Snapshot, *, now: float) -> None:
        """All that `seq` orders."""
        known.seq = snapshot.seq
        known.addrs = snapshot.addrs
        known.state = snapshot.state
        known.reuse_tokens = max(1, snapshot.reuse_tokens)
        known.pages = snapshot.pages
        known.detector.heard(now=now, next_within_s=snapshot.next_within_s)
        if snapshot.seq > known.load_seq:
            known.told_load(snapshot.load, seq=snapshot.seq, now=now)
        known.paused_until = -inf
        if (pause_s := snapshot.paused_for_s) > 0.0:
            config, seq = self._config.push_back, snapshot.seq
            known.paused_until = resume_at(pause_s, config, me=self.me, peer=known.peer, seq=seq, now=now)
        known.weigh()

    def given(self, peer: PeerId) -> Given:
        """What was forwarded to a peer and has not ended."""
        book = self._in_flight(peer)
        return Given() if book is None else book.given

    def _in_flight(self, peer: PeerId) -> InFlight | None:
        if peer == self.me:
            return self.own_in_flight
        known = self._peers.get(peer)
        return None if known is None else known.in_flight

    def _weigh(self, peer: PeerId) -> None:
        if (known := self._peers.get(peer)) is not None:
            known.weigh()

    # The pool

    def _bound_pages(self, *, now: float) -> None:
        """Keep the estimates within their pool: drop those that can never pay, then trim the largest."""
        pages_max = self._config.anti_entropy.estimates_bytes_max // PAGE_BYTES
        if self._index.page_count <= pages_max:
            return
        for known in self._least_paying(now=now):
            if self._index.page_count > pages_max:
                self._index.trim(known.estimate, 0)
        self._index.trim_all(pages_max)

    def _least_paying(self, *, now: float) -> Iterator[Peer]:
        """Whose cache could not even pay for the round trip if all of it were one prompt; worst first."""
        prior = self._config.routing.prior_prefill_tokens_per_s
        worth: list[tuple[float, PeerId]] = []
        for known in self._peers.values():
            s_per_token = known.prefill_s_per_token or 1.0 / prior
            saved_s = len(known.estimate.pages) * self.page_size * s_per_token
            usable = now < known.detector.suspect_at
            worth.append((saved_s - known.detour_s if usable else -inf, known.peer))
        return (self._peers[peer] for gain_s, peer in sorted(worth) if gain_s <= 0.0)


def _change(known: Peer, status: PeerStatus | Literal["forgotten"], *, now: float) -> Change:
    return Change(
        peer=known.peer, status=status, before=known.reported, silence_s=now - known.detector.heard_at
    )
