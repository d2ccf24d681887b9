"""One running host and everything that is attached to it.

Order is all: what peers may call on stands before the listener opens, what acts by itself (dialling,
asking, telling) begins after it and ends before the goodbyes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from peerinfer.config import OverlayConfig
from peerinfer.core.errors import WireError
from peerinfer.core.swarm_key import SwarmKey
from peerinfer.core.types import PeerId
from peerinfer.node.ports import Link, OverlaySink, PeerLostError, Standing
from peerinfer.overlay.addresses import (
    AddressInUseError,
    advertised,
    as_strings,
    dialable,
    is_peer_id,
    on_loopback,
    resolve,
)
from peerinfer.overlay.circuit import CircuitError, Circuits
from peerinfer.overlay.contained import contained
from peerinfer.overlay.dialler import DialError, Dialler
from peerinfer.overlay.discovery import Discovery
from peerinfer.overlay.flood import Flood
from peerinfer.overlay.gate import Gate
from peerinfer.overlay.hardening import Report, guard_gossip, services_running
from peerinfer.overlay.host import Host, abort, build_host, dial, open_stream
from peerinfer.overlay.known_peers import KnownPeers
from peerinfer.overlay.links import Links
from peerinfer.overlay.pull import SNAPSHOT_PROTOCOL, Pull
from peerinfer.overlay.reasons import root_of
from peerinfer.overlay.relay import Relay
from peerinfer.overlay.stream_errors import STREAM_ERRORS
from peerinfer.overlay.streams import REQUEST_PROTOCOL, Streams
from peerinfer.overlay.topic import Topic
from peerinfer.overlay.upnp import PortMapping

log = logging.getLogger("peerinfer.overlay")

BANISHED_S = 60.0  # guess
"""A peer that sent too much is not let in for this long."""
GOODBYE_S = 1.5  # guess
HEARD_WITHIN_S = 0.2  # guess
"""From what is published last to the end of the links: the library reads nothing more of a stream once its
connection is over, and a peer that is busy learns of both at once."""
LEARNED_NAMES_AT_ONCE_MAX = 4  # guess
"""Looked up for peers' addresses. Each may take a thread, and the tokenisers need some."""
SAVE_S = 30.0  # guess
"""Between two writes of the known peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSettings:
    """What is fixed before a node listens."""

    me: PeerId
    key_pair: Any
    data_dir: Path
    config: OverlayConfig
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    """What others are told in place of `listen`, if there is any."""
    join: tuple[tuple[PeerId, str], ...]
    topic: str | None
    frame_bytes_max: int
    swarm_key: SwarmKey | None
    """None in an open swarm."""
    allow: frozenset[PeerId] = frozenset()
    """Nobody else is wanted, if there are any."""
    deny: frozenset[PeerId] = frozenset()

    def wants(self, peer: PeerId) -> bool:
        """Whether this node will have to do with a peer at all."""
        return peer not in self.deny and (not self.allow or peer in self.allow)


class Swarm:
    """This node's side of the swarm while it runs."""

    def __init__(
        self,
        settings: SwarmSettings,
        host: Host,
        sink: OverlaySink,
        nursery: trio.Nursery,
        flood: Flood,
    ) -> None:
        config = settings.config
        self.host = host
        self._settings, self._sink, self._nursery = settings, sink, nursery
        self._banished: dict[PeerId, float] = {}
        self._loopback = self._leaving = False
        self._known = KnownPeers(settings.data_dir)
        self._learned_names = trio.CapacityLimiter(LEARNED_NAMES_AT_ONCE_MAX)
        Gate(
            host.network,
            key=settings.swarm_key,
            welcome=self._welcome,
            refused=partial(sink.dropped, "handshake", None),
        )
        self.links = Links(
            host,
            nursery=nursery,
            welcome=self._welcome,
            carries_calls=lambda connection: self.streams.carries_calls(connection),
            ping_interval_s=config.ping_interval_s,
            ping_timeout_s=config.ping_timeout_s,
        )
        self.streams = Streams(
            config=config,
            frame_bytes_max=settings.frame_bytes_max,
            sink=sink,
            nursery=nursery,
            open_stream=lambda peer: open_stream(host, peer, REQUEST_PROTOCOL),
            lets_request=flood.lets_request,
        )
        self.pull = Pull(sink=sink, open_stream=lambda peer: open_stream(host, peer, SNAPSHOT_PROTOCOL))
        self.topic = None if settings.topic is None else self._make_topic(settings.topic)
        self._circuits = Circuits(host, nursery=nursery)
        self._dialler = Dialler(
            me=settings.me,
            config=config,
            dial=self._dial,
            draw=random.random,
            last_resort=self._circuits.addrs_of_last_resort,
        )
        self._discovery = Discovery(host, nursery=nursery, links=self.links, found=self._found)
        host.host.set_stream_handler(TProtocol(REQUEST_PROTOCOL), self.streams.accept)
        host.host.set_stream_handler(TProtocol(SNAPSHOT_PROTOCOL), self.pull.accept)
        self._relay = None
        if config.relay:
            self._relay = Relay(
                host,
                circuits_max=config.relay_circuits_max,
                refused=lambda peer, reason: sink.dropped("handshake", peer, reason),
            )
        host.network.register_notifee(self.links)

    @staticmethod
    @asynccontextmanager
    async def run(settings: SwarmSettings, sink: OverlaySink) -> AsyncIterator[Swarm]:
        """A swarm that listens. Raises `AddressInUseError` when it cannot."""
        listen = [Multiaddr(addr) for addr in settings.listen]
        gossip = settings.topic is not None
        report = _reporter(sink)
        flood = Flood(settings.config, refused=sink.dropped)
        mapping = PortMapping(renew_s=settings.config.upnp_renew_s)
        host = build_host(
            settings.key_pair,
            listen=listen,
            advertise=partial(_advertise, settings.announce, mapping),
            gossip=gossip,
            report=report,
            flood=flood,
        )
        async with services_running(host.services()), trio.open_nursery() as nursery:
            swarm = Swarm(settings, host, sink, nursery, flood)
            flood.too_loud = swarm._banish
            if gossip:
                guard_gossip(host.pubsub, host.router, report)
            async with host.host.run(listen_addrs=listen):
                refused = [addr for addr in settings.listen if addr not in host.network.listeners]
                if len(refused) == len(settings.listen):
                    raise AddressInUseError(f"cannot listen on {', '.join(refused)}")
                for addr in refused:
                    log.warning("cannot listen on %s", addr)
                try:
                    async with trio.open_nursery() as acting:
                        swarm._act(acting)
                        if settings.config.upnp:
                            acting.start_soon(mapping.run, _ports(host))
                        yield swarm
                        acting.cancel_scope.cancel()
                finally:
                    await swarm._say_goodbye()
            nursery.cancel_scope.cancel()

    def addrs(self) -> tuple[str, ...]:
        """What others are told, with `/p2p/…`."""
        return tuple(as_strings(self.host.host.get_addrs()))

    def learn(self, peer: PeerId, addrs: Sequence[str]) -> None:
        """Addresses that a peer announced."""
        self._offer(peer, addrs, announced=True)

    def standing(self) -> Standing:
        """How this node stands in the network."""
        links = self.links.links()
        relays = [relay for relay in self._circuits.reserved() if relay in links]
        return Standing(
            unreached={**self._not_dialled(), **self._dialler.unreached()},
            relays=tuple(f"{addr}/p2p/{relay}" for relay in relays for addr in links[relay].addrs),
            reservations=self._relay.reservations if self._relay else 0,
            circuits=self._relay.circuits if self._relay else 0,
        )

    def _not_dialled(self) -> dict[str, str]:
        """Addresses to join through that are of no use, and why."""
        own, unwanted = "that is this node itself", "this node's lists of peers do not want it"
        return {
            f"{addr}/p2p/{peer}": own if peer == self._settings.me else unwanted
            for peer, addr in self._settings.join
            if peer == self._settings.me or not self._settings.wants(peer)
        }

    def _act(self, nursery: trio.Nursery) -> None:
        self._loopback = on_loopback(advertised(self._settings.listen))
        for addr, why in self._not_dialled().items():
            log.warning("%s is not joined through: %s", addr, why)
        self._dialler.give(join for join in self._settings.join if self._settings.wants(join[0]))
        for peer, addrs in self._known.load(now_s=time.time()).items():
            if is_peer_id(peer):
                self._found(peer, addrs)
        nursery.start_soon(
            lambda: self.links.run(
                up=self._link_up,
                direct=self._link_direct,
                relayed=self._dialler.link_relayed,
                down=self._link_down,
            )
        )
        nursery.start_soon(self._dialler.run)
        nursery.start_soon(self._discovery.run)
        nursery.start_soon(self._remember)
        if self.topic:
            nursery.start_soon(self.topic.run)

    def _link_up(self, peer: PeerId) -> None:
        self._dialler.link_up(peer, relayed=self.links.is_relayed(peer))
        self._discovery.link_up(peer)
        self._circuits.link_up(peer)
        self._sink.link_up(peer)

    def _link_direct(self, peer: PeerId) -> None:
        self._dialler.link_direct(peer)
        self.streams.forget(peer)  # kept-open ones go through the relay, and new ones will not

    def _link_down(self, peer: PeerId, link: Link) -> None:
        self._offer(peer, link.addrs, announced=True)
        self._dialler.link_down(peer)
        self.streams.forget(peer)
        self._sink.link_down(peer)

    def _found(self, peer: PeerId, addrs: Sequence[str]) -> None:
        self._offer(peer, addrs, announced=False)

    def _offer(self, peer: PeerId, addrs: Sequence[str], *, announced: bool) -> None:
        if self._settings.wants(peer):
            self._dialler.learn(peer, dialable(addrs, loopback=self._loopback), announced=announced)

    async def _dial(self, peer: PeerId, addr: str) -> None:
        if addr.endswith("/p2p-circuit"):
            await self._dial_through(peer, addr)
            return
        failure: Exception = DialError("the name stands for no address")
        given = (peer, addr) in self._settings.join
        try:
            for each in await resolve(addr, limiter=None if given else self._learned_names):
                if not given and not dialable([str(each)], loopback=self._loopback):
                    continue  # a name can stand for what no peer may announce
                if str(each) in advertised(_listening(self.host)):  # homes have the same private networks
                    failure = DialError("that is this node's own address")
                    continue
                try:
                    await dial(self.host, peer, each)
                    self._known.reached(peer, addr, now_s=time.time())
                    return
                except STREAM_ERRORS as error:
                    failure = error
        except (OSError, ValueError) as error:  # no such name, or none at all
            failure = error
        raise DialError(root_of(failure)) from None

    async def _dial_through(self, peer: PeerId, addr: str) -> None:
        self.host.network.unblock_peer(ID.from_base58(peer))
        try:
            await self._circuits.dial(peer, addr)
        except (CircuitError, PeerLostError, WireError, *STREAM_ERRORS) as error:
            raise DialError(root_of(error)) from None

    def _make_topic(self, name: str) -> Topic:
        topic = Topic(
            name,
            me=self._settings.me,
            pubsub=self.host.pubsub,
            config=self._settings.config,
            sink=self._sink,
            wants=self._settings.wants,
            too_loud=self._banish,
        )
        self.host.router.reaches_us = topic.reaches_us
        self.host.router.lacks_authors = topic.lacks_authors
        return topic

    def _banish(self, peer: PeerId) -> None:
        now = trio.current_time()
        if self._banished.get(peer, 0.0) < now:
            log.warning("peer=%s state=banished for_s=%g: it sends too much", peer, BANISHED_S)
            self._banished = {each: until for each, until in self._banished.items() if until > now}
            self._banished[peer] = now + BANISHED_S
            self._dialler.refuse(peer, for_s=BANISHED_S)
            self._nursery.start_soon(self.links.drop, peer)

    def _welcome(self, peer: PeerId) -> bool:
        banished = self._banished.get(peer, 0.0) > trio.current_time()
        return self._settings.wants(peer) and not (banished or self._leaving)

    async def _remember(self) -> None:
        while True:
            await trio.sleep(SAVE_S)
            with contained("saving the known peers"):  # in a thread, since a slow disk must not hold all up
                await trio.to_thread.run_sync(self._saving())

    def _saving(self) -> Callable[[], None]:
        """Writes down who is linked now."""
        return partial(self._known.save, self.links.links(), now_s=time.time())

    async def _say_goodbye(self) -> None:
        """Close the listeners and all connections, side by side, whatever this node is cancelled by."""
        self._leaving = True  # who notices first dials at once, perhaps before the listener is closed
        with contained("saving the known peers"):
            self._saving()()
        with trio.move_on_after(GOODBYE_S, shield=True):
            if self.topic and len(self.links):
                await trio.sleep_until(self.topic.published_at + HEARD_WITHIN_S)
            async with trio.open_nursery() as nursery:
                for listener in self.host.network.listeners.values():
                    nursery.start_soon(_close, listener)
                for connection in self.host.network.get_connections():
                    nursery.start_soon(_close, connection)
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for connection in self.host.network.get_connections():
                    nursery.start_soon(abort, connection)
        if self.host.pubsub is not None:
            self.host.pubsub.seen_messages.stop()


async def _close(closable: Any) -> None:
    """A goodbye that the other side does not want to hear is none the worse."""
    with contained("saying goodbye"), suppress(*STREAM_ERRORS):
        await closable.close()


def _advertise(announce: Sequence[str], mapping: PortMapping, listening: list[Any]) -> list[Any]:
    return [Multiaddr(addr) for addr in announce or (*mapping.addrs, *advertised(as_strings(listening)))]


def _listening(host: Host) -> list[str]:
    return as_strings(addr for each in host.network.listeners.values() for addr in each.get_addrs())


def _ports(host: Host) -> list[int]:
    """Which of this machine's ports are to be reached by IPv4."""
    return sorted({int(addr.split("/")[4]) for addr in _listening(host) if addr.startswith("/ip4/")})


_KINDS = {REQUEST_PROTOCOL: "request", SNAPSHOT_PROTOCOL: "snapshot"}


def _reporter(sink: OverlaySink) -> Report:
    """Count and log what a peer's bytes raised in the library; a stream that merely ended is no news."""

    def report(peer: str, protocol: str, error: Exception) -> None:
        if isinstance(error, STREAM_ERRORS):
            return
        log.warning("peer=%s protocol=%s refused: %r", peer, protocol, error)
        kind = "gossip" if protocol.startswith("/meshsub/") else _KINDS.get(protocol)
        if kind is not None:
            sink.dropped(kind, PeerId(peer), f"{type(error).__name__}")

    return report
