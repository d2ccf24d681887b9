"""Gossip on the swarm's topic: publish to all, receive from all, refuse what is out of bounds.

The library keeps the oldest 32 messages of a slow subscriber and drops the rest without a word, so
each is handed on in the moment it comes. Its author is who signed it (the library verifies that), not
who passed it on. A message is refused before it is passed on to others: too large, too many of one
author, or signed by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from libp2p.peer.id import ID

from peerinfer.config import OverlayConfig
from peerinfer.core.types import PeerId
from peerinfer.node.ports import OverlaySink
from peerinfer.overlay.backoff import Rates
from peerinfer.overlay.contained import contained

GOSSIP_BYTES_MAX = 256 * 1024 + 16 * 1024
"""The longest snapshot and what is around it. From 1,048,376 bytes the library loses messages silently."""
BURST_S = 2.0
"""A peer may be this much ahead of its rate: messages bunch up on the way."""
HEARD_S = 15.0  # guess: some intervals of a large swarm
"""An author that was heard of within this time still publishes."""


class Authors:
    """Who has published lately, and whose messages come from themselves."""

    def __init__(self) -> None:
        self._heard_at: dict[bytes, float] = {}
        self._reached_at: dict[bytes, float] = {}
        """In either of them who has been silent longest comes first, and is forgotten."""

    def heard(self, author: bytes, *, now: float) -> None:
        """A message of this author was news, whoever passed it on."""
        _note(self._heard_at, author, now)

    def reached(self, author: bytes, *, now: float) -> None:
        """A message came from its author itself."""
        _note(self._reached_at, author, now)

    def reach_us(self, author: bytes, *, now: float) -> bool:
        """Whether what an author publishes comes from itself."""
        return author in _lately(self._reached_at, now)

    def lacking(self, *, now: float) -> bool:
        """Whether there are authors of whom that is not true, so that others must pass on what they say."""
        return bool(_lately(self._heard_at, now).keys() - _lately(self._reached_at, now).keys())


def _note(at: dict[bytes, float], author: bytes, now: float) -> None:
    at.pop(author, None)
    at[author] = now


def _lately(at: dict[bytes, float], now: float) -> dict[bytes, float]:
    while at and (oldest := next(iter(at.items())))[1] < now - HEARD_S:
        del at[oldest[0]]
    return at


class Topic:
    """One topic, as the library's pubsub has it."""

    def __init__(
        self,
        name: str,
        *,
        me: PeerId,
        pubsub: Any,
        config: OverlayConfig,
        sink: OverlaySink,
        wants: Callable[[PeerId], bool],
        too_loud: Callable[[PeerId], None],
    ) -> None:
        self._name, self._me, self._pubsub, self._config = name, me, pubsub, config
        self._sink, self._wants, self._too_loud = sink, wants, too_loud
        rate = config.gossip_per_peer_per_s_max
        self._rates = Rates[tuple[bytes, bool]](rate_per_s=rate, burst=rate * BURST_S)
        self._refused = 0
        self._authors = Authors()
        self.published_at = float("-inf")
        """When this node said something last."""
        pubsub.set_topic_validator(name, self._is_welcome, False)
        self._push = pubsub.push_msg
        pubsub.push_msg = self._push_and_count

    async def publish(self, payload: bytes) -> None:
        """Send to everybody, at most once."""
        assert len(payload) <= GOSSIP_BYTES_MAX, len(payload)
        self.published_at = trio.current_time()
        await self._pubsub.publish(self._name, payload)

    def reaches_us(self, author: ID) -> bool:
        """Whether what an author publishes comes from itself."""
        return self._authors.reach_us(author.to_bytes(), now=trio.current_time())

    def lacks_authors(self) -> bool:
        """Whether there are authors of whom that is not true."""
        return self._authors.lacking(now=trio.current_time())

    async def run(self) -> None:
        """Hand on what comes in, for ever."""
        subscription = await self._pubsub.subscribe(self._name)
        while True:
            message = await subscription.get()
            author = _base58(message.from_id)
            if author != self._me:
                self._authors.heard(message.from_id, now=trio.current_time())
                refuse = partial(self._sink.dropped, "gossip", author)
                with contained("taking its message on the topic", peer=author, refuse=refuse):
                    self._sink.gossip(author, message.data)

    async def _push_and_count(self, forwarder: Any, message: Any) -> None:
        """The library drops what is not signed by its author silently: count it."""
        if forwarder.to_bytes() == message.from_id:
            self._authors.reached(message.from_id, now=trio.current_time())
        refused = self._refused
        await self._push(forwarder, message)
        if self._refused == refused and not self._pubsub._is_msg_seen(message):
            self._sink.dropped("gossip", PeerId(forwarder.to_base58()), "not signed by its author")

    def _is_welcome(self, forwarder: Any, message: Any) -> bool:
        """The topic's validator: whether to deliver and pass on a message. Its signature was verified.

        An author is blamed for what it sends itself. Others can send what it signed long ago again, when the
        library has forgotten it, and as much of it at once as they have collected.
        """
        author = _base58(message.from_id)
        if author == self._me:
            return True
        if len(message.data) > GOSSIP_BYTES_MAX:
            return self._refuse(author, f"{len(message.data)} bytes")
        if not self._wants(author):
            return self._refuse(author, "not wanted")
        direct = forwarder.to_bytes() == message.from_id
        if not self._rates.take((message.from_id, direct), now=trio.current_time()):
            if direct:
                self._too_loud(author)
            return self._refuse(author, "too many messages")
        return True

    def _refuse(self, author: PeerId, reason: str) -> bool:
        self._refused += 1
        self._sink.dropped("gossip", author, reason)
        return False


def _base58(peer_id: bytes) -> PeerId:
    return PeerId(ID(peer_id).to_base58())
