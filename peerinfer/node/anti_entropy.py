"""sendTrie, and what arrives of it: periodic anti-entropy with complete snapshots (paper §2, §3.4).

Sending: a round every poll interval while anything changes, a heartbeat every idle interval otherwise.
A round whose tree did not change carries only the tree's version; every tenth carries all even so.
Rounds are urgent when peers must not wait: push-back (§3.2), an emptied cache, draining.

Receiving: the latest message of each peer is kept and the view brought up to date from it, so a slow
node falls behind by messages, never by state. A peer that names a tree version we lack is pulled, one
pull at a time. Silence is the failure detector (§3.3); a node that was frozen itself restarts all clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from peerinfer.config import SNAPSHOT_BYTES_MAX
from peerinfer.core.errors import WireError
from peerinfer.core.fingerprint import ROLE_FIELD, Hello, decode_hello, differing_fields, encode_hello
from peerinfer.core.peer_view import Applied
from peerinfer.core.snapshot import Snapshot, encode_snapshot
from peerinfer.core.types import NodeState, PeerId
from peerinfer.node.context import Context, log
from peerinfer.node.ports import PeerLostError

TICK_S = 0.5
"""How often a freeze of this node, and in a small swarm the silence of peers, is looked at."""
LOOK_S_MAX = 5.0  # guess
"""The longest between two looks at the silence of peers; decisions know of it at once, this tells people."""
FROZEN_S = 1.0  # guess: loading a model holds the event loop for half a second
"""So late by its own clock, a node was frozen itself, and nobody else was silent."""


class Decode(Protocol):
    """Reads a message; a simulation, in which all nodes get the same bytes, reads them once."""

    def __call__(self, payload: bytes, *, bytes_max: int) -> Snapshot:
        """See `decode_snapshot`. Raises `WireError`."""


class AntiEntropy:
    """Publishes this node's snapshots and keeps the estimates of its peers."""

    def __init__(self, node: Context, decode: Decode, *, heard: Callable[[PeerId], None]) -> None:
        self._node = node
        self._heard = heard
        """Is told of peers that were not known."""
        self._decode = decode
        self._latest: dict[PeerId, bytes] = {}
        self._arrived = trio.Event()
        self._pulled_at: dict[PeerId, float] = {}
        self._wanted: dict[PeerId, float] = {}
        """Peers to be pulled soon, and since when."""
        self._pull_due = trio.Event()
        self._rounds_without_tree = 0
        self._published_version: tuple[int, int] | None = None
        self._published_at = -1e9
        self._published_mark: object = None
        self._promised_s = 0.0
        """What the last message said: the next one follows within this."""

    async def run(self) -> None:
        """Send, receive and watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_rounds)
            nursery.start_soon(self._apply_messages)
            nursery.start_soon(self._watch_silence)
            nursery.start_soon(self._pull_wanted)

    # Sending

    async def publish(self) -> None:
        """One round, now (sendTrie)."""
        node, config = self._node, self._node.config.anti_entropy
        node.seq += 1
        now = trio.current_time()
        version = (node.incarnation, node.view.own.version)
        changed = version != self._published_version
        due = self._rounds_without_tree + 1 >= config.complete_every
        complete = changed or due or not len(node.view.own)  # an empty tree costs nothing
        active = changed or self._mark() != self._published_mark
        self._published_version, self._published_at, self._published_mark = version, now, self._mark()
        self._rounds_without_tree = 0 if complete else self._rounds_without_tree + 1
        self._promised_s = (
            2 * self._interval_s() if active else max(config.idle_interval_s, self._interval_s())
        )
        snapshot = self.snapshot(complete=complete, next_within_s=self._promised_s)
        await node.overlay.publish(encode_snapshot(snapshot, bytes_max=config.snapshot_bytes_max))

    def snapshot(self, *, complete: bool, next_within_s: float) -> Snapshot:
        """This node's state at this moment."""
        node = self._node
        load = node.engine.load()
        return Snapshot(
            addrs=tuple(addr.rsplit("/p2p/", 1)[0] for addr in node.overlay.addrs())[:8],
            incarnation=node.incarnation,
            seq=node.seq,
            tree_version=node.view.own.version,
            next_within_s=next_within_s,
            load=load,
            paused_for_s=node.push_back.update(load, now=trio.current_time()),
            state=node.state,
            reuse_tokens=node.engine.info.reuse_tokens,
            keys=tuple(node.view.own.ordered_keys()) if complete else None,
            cut=False,
            pages=len(node.view.own),
        )

    def hello(self) -> bytes:
        """What a peer gets that pulls: who we are, and the complete snapshot."""
        config = self._node.config.anti_entropy
        snapshot = self.snapshot(complete=True, next_within_s=max(config.idle_interval_s, self._interval_s()))
        fields = self._node.fingerprint_fields
        return encode_hello(
            Hello(fields=fields, snapshot=encode_snapshot(snapshot, bytes_max=config.snapshot_bytes_max))
        )

    async def _publish_rounds(self) -> None:
        while True:
            await self.publish()
            soonest = self._published_at + self._interval_s()
            latest = self._published_at + self._promised_s
            with trio.move_on_at(soonest):
                await self._node.urgent.wait()
            while trio.current_time() < latest and not self._anything_new():
                with trio.move_on_after(min(self._interval_s(), latest - trio.current_time())):
                    await self._node.urgent.wait()
            if self._node.urgent.is_set():
                self._node.urgent = trio.Event()

    def _interval_s(self) -> float:
        """Δ_poll, stretched with the swarm so that all nodes together stay under the message limit."""
        config = self._node.config.anti_entropy
        nodes = 1 + len(self._node.view)
        return max(config.poll_interval_s, nodes / config.messages_per_s_max)

    def _anything_new(self) -> bool:
        version = (self._node.incarnation, self._node.view.own.version)
        return (
            self._node.urgent.is_set()
            or version != self._published_version
            or self._mark() != self._published_mark
        )

    def _mark(self) -> object:
        """What besides the tree makes a round worth sending."""
        load = self._node.engine.load()
        return (self._node.state, load.running, load.queued, load.queued_prefill_tokens)

    # Receiving

    def message(self, peer: PeerId, payload: bytes) -> None:
        """A message of a peer; replaces one that was not looked at yet."""
        self._latest[peer] = payload
        self._arrived.set()

    async def _apply_messages(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            latest, self._latest = self._latest, {}
            for place, (peer, payload) in enumerate(latest.items()):
                if place:
                    await trio.lowlevel.checkpoint()  # reading 20,000 pages takes ms: let requests through
                self._apply_guarded(peer, payload, kind="gossip")

    def _apply_guarded(self, peer: PeerId, payload: bytes, *, kind: str) -> None:
        """One peer's message must not end the node, whatever it hits on."""
        try:
            self._apply(peer, payload, kind=kind)
        except Exception:
            log.exception("peer=%s its %s message failed", peer, kind)
            self._node.drop(kind, peer, "failed to apply")

    def _apply(self, peer: PeerId, payload: bytes, *, kind: str) -> None:
        try:
            snapshot = self._decode(payload, bytes_max=SNAPSHOT_BYTES_MAX)
        except WireError as error:
            self._node.drop(kind, peer, str(error))
            return
        was_known = peer in self._node.view
        applied = self._node.view.apply_snapshot(peer, snapshot, now=trio.current_time())
        if not was_known and peer in self._node.view:
            self._heard(peer)
        if applied is Applied.NEEDS_PULL:
            self.want(peer)
        if applied is not Applied.STALE:
            self._node.overlay.learn(peer, snapshot.addrs)

    def want(self, peer: PeerId) -> None:
        """Pull the peer's tree when it may be pulled next."""
        now, config = trio.current_time(), self._node.config.anti_entropy
        if now < self._pulled_at.get(peer, -1e9):
            return  # a pull is under way or was just made; the next round asks again
        self._pulled_at[peer] = now + config.pull_interval_s
        if len(self._wanted) >= config.peers_max:
            self._node.drop("snapshot", peer, "too many pulls wait")
            return
        self._wanted[peer] = now
        self._pull_due.set()

    async def _pull_wanted(self) -> None:
        node = self._node
        async with trio.open_nursery() as nursery:
            while True:
                await self._pull_due.wait()
                await trio.sleep(node.rng.uniform(0.0, 0.1))  # many may have noticed at once
                self._pull_due, wanted = trio.Event(), self._wanted
                self._wanted = {}
                for peer, since in wanted.items():
                    known = node.view.get(peer)
                    if known is None or (known.confirmed_at or 0.0) <= since:
                        nursery.start_soon(self._pull, peer)  # else its own message brought its tree

    async def _pull(self, peer: PeerId) -> None:
        node = self._node
        try:
            with trio.fail_after(node.config.request.accept_timeout_s):
                payload = await node.overlay.pull(peer)
        except (PeerLostError, trio.TooSlowError):
            return  # no peerinfer node, or gone; its next message starts over
        finally:
            self._pulled_at[peer] = trio.current_time() + node.config.anti_entropy.pull_interval_s
        try:
            hello = decode_hello(payload, bytes_max=2 * SNAPSHOT_BYTES_MAX)
        except WireError as error:
            node.drop("snapshot", peer, str(error))
            return
        if differing := differing_fields(hello.fields, node.fingerprint_fields):
            role = hello.fields.get(ROLE_FIELD)
            if role:
                differing = (ROLE_FIELD,)  # it serves nothing, so there is nothing else to compare
            if peer not in node.foreign and role:
                log.info("peer=%s role=%s", peer, role)
            elif peer not in node.foreign:
                log.warning("peer=%s serves something else: %s differ", peer, ", ".join(differing))
            node.foreign[peer] = differing
            return
        node.foreign.pop(peer, None)
        self._apply_guarded(peer, hello.snapshot, kind="snapshot")

    # Silence

    async def _watch_silence(self) -> None:
        due = look_at = trio.current_time() + TICK_S
        while True:
            await trio.sleep_until(due)
            now = trio.current_time()
            if now - due > FROZEN_S:
                log.info("this node was frozen for %.1f s; all clocks restart", now - due)
                self._node.view.restart_clocks(now=now)
            if now >= look_at:
                self._log_changes()
                self._pulled_at = {peer: at for peer, at in self._pulled_at.items() if at > now}
                look_at = now + min(max(TICK_S, self._interval_s() / 2), LOOK_S_MAX)
            due = now + TICK_S

    def _log_changes(self) -> None:
        for change in self._node.view.expire(now=trio.current_time()):
            log.info("peer=%s state=%s", change.peer, change.status)
            self._node.events.tell("peer", partial(dict, peer_id=change.peer, state=str(change.status)))

    async def say_goodbye(self) -> None:
        """Tell the peers that this node leaves, so that they stop forwarding before the link breaks."""
        self._node.draining = True
        assert self._node.state is NodeState.DRAINING
        await self.publish()
