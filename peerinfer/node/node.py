"""One node: the ports wired to the core, and one nursery around everything that runs.

`async with node.run():` opens and closes it. Inside, the overlay listens, the engine loads, snapshots go
out and come in; `node.handle` answers clients.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager

import trio

from peerinfer.config import Config
from peerinfer.core.estimate_index import Differ, difference
from peerinfer.core.fingerprint import fingerprint, swarm_fields
from peerinfer.core.frames import Ask, Request
from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.peer_view import PeerView
from peerinfer.core.push_back import PushBack
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.rent import RentLedger
from peerinfer.core.retry_budget import RetryBudget
from peerinfer.core.snapshot import decode_snapshot
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import CacheEvent, EngineInfo, EngineState, PeerId
from peerinfer.node import report
from peerinfer.node.anti_entropy import AntiEntropy, Decode
from peerinfer.node.cache_sync import CacheSync
from peerinfer.node.context import Context, log
from peerinfer.node.decisions import Decisions
from peerinfer.node.events import Events
from peerinfer.node.ports import Call, Engine, Overlay, Tokenizer
from peerinfer.node.probes import Probes
from peerinfer.node.reply import Incoming, Reply
from peerinfer.node.request import handle_request
from peerinfer.node.serve import serve_call
from peerinfer.node.totals import Totals

GOODBYE_TIMEOUT_S = 0.5
"""How long leaving may take to tell the peers."""
RETRY_BURST = 10.0
"""Retries that may come at once after a quiet time."""


class Node:
    """A serving node of the swarm, and what its engine and its overlay report to."""

    def __init__(
        self,
        *,
        overlay: Overlay,
        engine: Engine,
        tokenizer: Tokenizer | None,
        config: Config,
        next_incarnation: Callable[[int], int],
        swarm_key: SwarmKey | None = None,
        seed: int | None = None,
        decode: Decode = decode_snapshot,
        differ: Differ = difference,
    ) -> None:
        info = engine.info
        fields = swarm_fields(info.fingerprint_fields, swarm_key)
        own = RadixTree(capacity_pages=info.capacity_pages)
        hasher = PageHasher(
            salt=derive_salt(swarm_key.secret if swarm_key else None), page_size=info.page_size
        )
        self._context = Context(
            config=config,
            overlay=overlay,
            engine=engine,
            tokenizer=tokenizer,
            hasher=hasher,
            view=PeerView(
                me=overlay.peer_id, own=own, page_size=info.page_size, config=config, differ=differ
            ),
            cache_sync=CacheSync(own, hasher),
            rents=RentLedger(config.routing),
            decisions=Decisions(config.request.decisions_kept),
            retry_budget=RetryBudget(share=config.request.retry_share, burst=RETRY_BURST),
            push_back=PushBack(config.push_back, config.routing),
            rng=random.Random(seed),
            next_incarnation=next_incarnation,
            incarnation=next_incarnation(0),
            fingerprint_fields=fields,
            fingerprint=fingerprint(fields),
            swarm_key=swarm_key,
        )
        self._probes = Probes(self._context)
        self._anti_entropy = AntiEntropy(self._context, decode, heard=self._probes.heard)
        self._started_at = 0.0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Take part until the block is left; then tell the peers and close everything."""
        node = self._context
        self._started_at = trio.current_time()
        async with node.overlay.run(self), node.engine.run(self), trio.open_nursery() as nursery:
            nursery.start_soon(self._anti_entropy.run)
            nursery.start_soon(self._probes.run)
            try:
                yield
            finally:
                with trio.move_on_after(GOODBYE_TIMEOUT_S, shield=True):
                    await self._anti_entropy.say_goodbye()
                nursery.cancel_scope.cancel()

    async def drain(self) -> None:
        """Leave gracefully: take no more requests, tell the peers, and let those that run come to their end.

        What has not ended after `drain_s` is cut off when the node closes; an answer that a peer's client is
        reading then goes on elsewhere.
        """
        node = self._context
        log.info("state=draining requests=%d", node.at_work.count)
        node.draining = True
        node.publish_soon()
        with trio.move_on_after(node.config.request.drain_s):
            await node.at_work.wait_none()

    # For the HTTP face

    @property
    def peer_id(self) -> PeerId:
        """This node's id."""
        return self._context.me

    @property
    def context(self) -> Context:
        """What the parts of this node share; for checkers, which look at everything and change nothing."""
        return self._context

    @property
    def info(self) -> EngineInfo:
        """What this node's engine is."""
        return self._context.engine.info

    def addrs(self) -> tuple[str, ...]:
        """Multiaddrs, with `/p2p/…`, under which others can join through this node."""
        return self._context.overlay.addrs()

    @property
    def ready(self) -> bool:
        """Whether a completion would be answered, here or through a peer."""
        node = self._context
        return not node.draining and (node.engine_ready or node.can_forward())

    def handle(self, incoming: Incoming) -> AbstractAsyncContextManager[Reply]:
        """Answer a client's request: Algorithm 1 (node/request.py)."""
        return handle_request(self._context, incoming)

    def at_work(self) -> AbstractContextManager[None]:
        """A client's request is in progress within this block."""
        return self._context.at_work.one()

    def models(self) -> list[str]:
        """The names of the models that clients of this node can ask for."""
        return [self.info.model]

    def status(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/status`."""
        now = trio.current_time()
        return report.status(self._context, now=now, uptime_s=now - self._started_at)

    def peers(self) -> dict[str, object]:
        """The body of `/peerinfer/v1/peers`."""
        return report.peers(self._context, now=trio.current_time())

    def decision(self, request_id: str) -> dict[str, object] | None:
        """The body of `/peerinfer/v1/requests/{id}`; None once it is forgotten."""
        decision = self._context.decisions.get(request_id)
        return decision.as_json() if decision else None

    def totals(self) -> Totals:
        """What clients' requests came to."""
        return self._context.totals

    def events(self) -> Events:
        """What happens from now on."""
        return self._context.events

    def dropped_http(self, reason: str) -> None:
        """An HTTP request was refused before it became a request of the node's."""
        self._context.drop("http", None, reason)

    # EngineSink

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        self._context.cache_sync.apply(events, now=trio.current_time())

    def engine_state(self, state: EngineState, detail: str) -> None:
        node = self._context
        was_ready = node.engine_ready
        log.info("engine=%s state=%s %s", node.engine.info.kind, state, detail)
        node.engine_state = state
        node.events.tell("engine", lambda: {"state": str(state), "detail": detail})
        if was_ready:
            node.lose_cache()
        node.publish_soon()

    # OverlaySink

    def gossip(self, peer: PeerId, payload: bytes) -> None:
        self._anti_entropy.message(peer, payload)

    def link_up(self, peer: PeerId) -> None:
        log.debug("peer=%s link=up", peer)
        self._context.view.answered(peer)
        self._probes.link_up(peer)
        self._anti_entropy.want(peer)  # a suspect stays one until its own word comes: it may have restarted

    def link_down(self, peer: PeerId) -> None:
        log.debug("peer=%s link=down", peer)
        self._probes.link_down(peer)
        self._context.foreign.pop(peer, None)
        self._context.view.link_down(peer, now=trio.current_time())

    async def serve_call(self, call: Call, opening: Request | Ask) -> None:
        await serve_call(self._context, call, opening)

    def hello(self) -> bytes:
        return self._anti_entropy.hello()

    def dropped(self, kind: str, peer: PeerId | None, reason: str) -> None:
        self._context.drop(kind, peer, reason)
