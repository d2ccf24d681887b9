"""A publisher of cache events with the wire shape of SGLang and vLLM, an engine's cache to publish, and a
proxy that loses messages."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgpack
import trio
import zmq

from peerinfer.core.page_keys import PageHasher, derive_salt
from peerinfer.core.radix_tree import RadixTree
from peerinfer.core.types import CacheEvent
from peerinfer.engine.kv_endpoints import KvEndpoints
from peerinfer.engine.kv_event_codec import sglang_block_hashes
from peerinfer.engine.zmq_socket import ZmqSocket
from peerinfer.node.cache_sync import CacheSync

PAGE = 16
LOCAL = "tcp://127.0.0.1"
_times = itertools.count(1_000_000)  # each batch carries its time, so no two are alike


def stored(
    names: Sequence[int], parent: int | None, tokens: Sequence[int], **more: object
) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": list(names),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": PAGE,
        "lora_id": None,
        "medium": "GPU",
    } | more


def stored_prompt(tokens: Sequence[int], *, first: int = 0) -> dict[str, object]:
    """A prompt's whole pages from number `first` on, under SGLang's names."""
    names = sglang_block_hashes(tokens, PAGE)
    parent = names[first - 1] if first else None
    return stored(names[first:], parent, tokens[first * PAGE : len(names) * PAGE])


def removed(names: Sequence[int]) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    """What an engine's publisher does; `open_publisher` makes one. Each has its own numbers, from 0."""

    def __init__(self, live: zmq.Socket[bytes], *, keeps: int | None, topic: str, names_topic: bool) -> None:
        self.sent = 0
        self.lost_in_replay: set[int] = set()
        """Numbers of messages that the next replay drops, once."""
        self.never_replayed: set[int] = set()
        self.replays = 0
        self._live = live
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._topic = topic.encode()
        self._names_topic = names_topic

    def publish(self, *events: object) -> None:
        """Send one batch."""
        self.publish_raw(msgpack.packb([next(_times) / 8, list(events), 0]))

    def publish_raw(self, payload: bytes) -> None:
        self.keep(payload)
        self._live.send_multipart([self._topic, (self.sent - 1).to_bytes(8, "big"), payload])

    def keep(self, payload: bytes) -> None:
        """A message that is lost on the way, but kept for replay."""
        self._kept.append((self.sent, payload))
        self.sent += 1

    def keep_events(self, *events: object) -> None:
        self.keep(msgpack.packb([next(_times) / 8, list(events), 0]))

    def begin_again(self) -> None:
        """Another engine takes over; whoever follows sees no new connection."""
        self._kept.clear()
        self.sent = 0

    async def subscribed(self) -> None:
        """Return once a stream has subscribed; only now live messages reach it."""
        await subscription(self._live)

    async def serve_replays(self, router: ZmqSocket) -> None:
        while True:
            peer, empty, begin = await router.receive()
            assert empty == b""
            self.replays += 1
            topic = [self._topic] if self._names_topic else []
            lost, self.lost_in_replay = self.lost_in_replay | self.never_replayed, set()
            for seq, payload in tuple(self._kept):
                if seq >= int.from_bytes(begin, "big") and seq not in lost:
                    await router.send([peer, b"", *topic, seq.to_bytes(8, "big"), payload])
            end = [b""] if self._names_topic else []
            await router.send([peer, b"", *end, b"\xff" * 8, b""])


async def subscription(live: zmq.Socket[bytes]) -> None:
    """The next subscription that an XPUB socket gets. It is polled, since its owner sends meanwhile."""
    with trio.fail_after(20):
        while True:
            try:
                if live.recv(zmq.NOBLOCK)[:1] == b"\x01":
                    return
            except zmq.Again:
                await trio.sleep(0.005)


@asynccontextmanager
async def open_publisher(
    *,
    at: KvEndpoints | None = None,
    replay: bool = True,
    keeps: int | None = None,
    topic: str = "kv",
    names_topic: bool = True,
) -> AsyncIterator[tuple[Publisher, KvEndpoints]]:
    """Publish on free ports, or where another one did before; `keeps` batches for replay, or all."""
    context = zmq.Context()
    try:
        live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        live.bind(at.live if at else f"{LOCAL}:*")
        router.setsockopt(zmq.SNDHWM, 0)
        router.bind(at.replay if at and at.replay else f"{LOCAL}:*")
        endpoints = KvEndpoints(
            live=live.getsockopt_string(zmq.LAST_ENDPOINT),
            replay=router.getsockopt_string(zmq.LAST_ENDPOINT) if replay else None,
            topic=topic,
            sglang_names=names_topic,
        )
        publisher = Publisher(live, keeps=keeps, topic=topic, names_topic=names_topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.serve_replays, ZmqSocket(router))
            yield publisher, endpoints
            nursery.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)


class LossyProxy:
    """Passes live messages on, but for those that `loses` says."""

    def __init__(self, loses: Callable[[int], bool]) -> None:
        self.loses = loses
        self.lost = 0
        self._out: zmq.Socket[bytes]

    @asynccontextmanager
    async def run(self, behind: KvEndpoints) -> AsyncIterator[KvEndpoints]:
        """The endpoints to use instead; replays go straight to the publisher."""
        context = zmq.Context()
        try:
            source, out = context.socket(zmq.SUB), context.socket(zmq.XPUB)
            source.subscribe("")
            source.connect(behind.live)
            out.bind(f"{LOCAL}:*")
            self._out = out
            live = out.getsockopt_string(zmq.LAST_ENDPOINT)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, ZmqSocket(source), out)
                yield KvEndpoints(
                    live=live, replay=behind.replay, topic=behind.topic, sglang_names=behind.sglang_names
                )
                nursery.cancel_scope.cancel()
        finally:
            context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Return once a stream has subscribed."""
        await subscription(self._out)

    async def _pass_on(self, source: ZmqSocket, out: zmq.Socket[bytes]) -> None:
        while True:
            frames = await source.receive()
            if self.loses(int.from_bytes(frames[1], "big")):
                self.lost += 1
            else:
                out.send_multipart(frames)


class ModelCache:
    """A cache of prompts like an engine's: it stores whole prompts and evicts from their ends."""

    def __init__(self, rng: random.Random) -> None:
        self.pages: dict[tuple[int, ...], int] = {}
        """Every page by its whole prefix, and its name."""
        self._rng = rng

    def step(self) -> list[dict[str, object]]:
        """Compute some prompt or evict something: the events of it."""
        if len(self.pages) > 40 or (self.pages and self._rng.random() < 0.2):
            return self._evict()
        tokens = [
            token for _ in range(self._rng.randrange(1, 7)) for token in [self._rng.randrange(2)] * PAGE
        ]
        return self.store(tokens)

    def store(self, tokens: Sequence[int]) -> list[dict[str, object]]:
        """Compute a prompt of whole pages: the events of it."""
        names = sglang_block_hashes(tokens, PAGE)
        prefixes = [tuple(tokens[: end * PAGE]) for end in range(1, len(names) + 1)]
        first = next((place for place, prefix in enumerate(prefixes) if prefix not in self.pages), len(names))
        self.pages |= dict(zip(prefixes, names, strict=True))
        return [stored_prompt(tokens, first=first)] if first < len(names) else []

    def _evict(self) -> list[dict[str, object]]:
        root = self._rng.choice(sorted(self.pages))
        gone = [prefix for prefix in self.pages if prefix[: len(root)] == root]
        return [removed([self.pages.pop(prefix) for prefix in gone])]


class Mirror:
    """A sink that keeps what the stream told, and the tree that a node would build from it."""

    def __init__(self) -> None:
        self.events: list[CacheEvent] = []
        self.restarts = 0
        self.reachable: list[bool] = []
        self._hasher = PageHasher(salt=derive_salt(None), page_size=PAGE)
        self.sync = CacheSync(RadixTree(capacity_pages=10_000), self._hasher)
        self._changed = trio.Event()

    def cache_events(self, events: Sequence[CacheEvent]) -> None:
        self.events += events
        self.sync.apply(events, now=float(len(self.events)))
        self._notify()

    def events_restarted(self) -> None:
        self.restarts += 1
        self._notify()

    def events_reachable(self, reachable: bool, detail: str) -> None:
        assert detail
        self.reachable.append(reachable)
        self._notify()

    async def until(self, holds: Callable[[], bool], *, within_s: float = 20) -> None:
        """Wait for what the stream tells to make this true."""
        with trio.fail_after(within_s):
            while not holds():
                await self._changed.wait()

    def match(self, tokens: Sequence[int]) -> int:
        """Pages of a prompt in the tree."""
        return self.sync.tree.match_prefix(self._hasher.keys(tokens))

    def holds_exactly(self, cache: ModelCache) -> bool:
        return set(self.sync.tree.ordered_keys()) == self.keys(cache)

    def keys(self, cache: ModelCache) -> set[int]:
        return {self._hasher.keys(prefix)[-1] for prefix in cache.pages}

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def prompt(number: int, pages: int) -> list[int]:
    """A prompt of whole pages that shares nothing with those of other numbers."""
    return [number * 1000 + page for page in range(pages) for _ in range(PAGE)]
