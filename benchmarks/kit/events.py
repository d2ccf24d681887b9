"""A worker's cache events as SGLang publishes them: msgpack over ZeroMQ, numbered, with a replay."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import msgpack
import zmq
import zmq.asyncio

from peerinfer.core.types import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent

KEPT = 10_000
"""Batches kept for replay, as many as SGLang keeps."""
_END = b"\xff" * 8


class EventPublisher:
    """Publishes what a `PageCache` tells, under SGLang's names of the blocks."""

    def __init__(self) -> None:
        context = zmq.asyncio.Context.instance()
        self._live: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._live.set(zmq.SNDHWM, 100_000)
        self.port: int = self._live.bind_to_random_port("tcp://127.0.0.1")
        self._replay = context.socket(zmq.ROUTER)
        self.replay_port = self._replay.bind_to_random_port("tcp://127.0.0.1")
        self._names: dict[int, bytes] = {}
        """The digest behind each block's name, by the cache's own name for it."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._sent = 0

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """One batch."""
        payload = msgpack.packb([time.time(), [self._packed(event) for event in events], 0])
        self._kept.append((self._sent, payload))
        self._live.send_multipart([b"", self._sent.to_bytes(8, "big"), payload])
        self._sent += 1

    async def serve_replays(self) -> None:
        """Repeat what followers missed, until cancelled."""
        while True:
            peer, _, begin = await self._replay.recv_multipart()
            for number, payload in tuple(self._kept):
                if number >= int.from_bytes(begin, "big"):
                    await self._replay.send_multipart([peer, b"", number.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([peer, b"", _END, b""])
            await asyncio.sleep(0)

    def _packed(self, event: CacheEvent) -> dict[str, object]:
        if isinstance(event, AllBlocksCleared):
            self._names.clear()
            return {"type": "AllBlocksCleared"}
        if isinstance(event, BlockRemoved):
            names = [_number(self._names.pop(block)) for block in event.block_hashes]
            return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}
        return self._stored(event)

    def _stored(self, event: BlockStored) -> dict[str, object]:
        parent = None if event.parent_block_hash is None else self._names[event.parent_block_hash]
        digest = parent or b""
        names, size = [], event.block_size
        for place, block in enumerate(event.block_hashes):
            tokens = event.token_ids[place * size : (place + 1) * size]
            digest = sha256(digest + b"".join(token.to_bytes(4, "little") for token in tokens)).digest()
            self._names[block] = digest
            names.append(_number(digest))
        return {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None if parent is None else _number(parent),
            "token_ids": list(event.token_ids),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
        }


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)
