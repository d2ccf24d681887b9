"""The libp2p host as this project runs it: TCP, Noise, Yamux, gossipsub and Kademlia, hardened.

Everything that is chosen about the library is chosen here. What it would do on its own about
connections (dial known peers, retry, degrade its own limits, probe with a fresh stream) is off: the
dialler and the liveness watch do that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub.gossipsub import PROTOCOL_ID as MESHSUB_1_0
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11 as MESHSUB_1_1
from libp2p.pubsub.pubsub import Pubsub
from libp2p.rcmgr.manager import ResourceManager
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux

from peerinfer.core.types import PeerId
from peerinfer.node.ports import PeerLostError
from peerinfer.overlay import hardening
from peerinfer.overlay.contained import contained
from peerinfer.overlay.direct_gossip import DirectGossip
from peerinfer.overlay.flood import Flood
from peerinfer.overlay.frame_meter import meter_frames
from peerinfer.overlay.gate import LET_IN_WITHIN_S
from peerinfer.overlay.hardening import Report
from peerinfer.overlay.quick_stream import RESET_S
from peerinfer.overlay.quick_yamux import make_yamux_quick
from peerinfer.overlay.stream_errors import STREAM_ERRORS

log = logging.getLogger("peerinfer.overlay")

CONNECTIONS_MAX = 512  # guess
NEGOTIATION_S = 5.0  # guess: two round trips
NEVER_DIALLED = ("0.0.0.0/32", "::/128", "224.0.0.0/4", "ff00::/8")
"""By the random walk, which dials what peers tell it; the dialler filters for itself."""
ADDRESSES_KNOWN_S = 10.0  # guess
"""How soon a new network interface is noticed."""
ADDRESS_TTL_S = 600
"""How long a dialled address is told to others; identify renews it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host and the services that are attached to it."""

    host: Any
    network: Any
    dht: Any
    pubsub: Any
    """None on a peer without a topic."""
    router: Any

    def services(self) -> list[Any]:
        """In the order in which they have to be entered, all of them before the listener."""
        return [service for service in (self.pubsub, self.router, self.dht) if service is not None]


Advertise = Callable[[list[Any]], list[Any]]
"""Turns the addresses listened on into those that others are told."""


def build_host(
    key_pair: Any, *, listen: list[Any], advertise: Advertise, gossip: bool, report: Report, flood: Flood
) -> Host:
    """A hardened host that is not running yet."""
    make_yamux_quick()
    hardening.write_messages_whole()
    hardening.grant_window_in_halves()
    hardening.guard_connections()
    hardening.bound_negotiation()
    hardening.limit_messages()
    hardening.remember_records()
    hardening.look_for_no_parents()
    hardening.silence_library_logs()
    host = new_host(
        key_pair=key_pair,
        sec_opt=hardening.noise_only(key_pair),
        muxer_opt={TProtocol(YAMUX): Yamux},
        listen_addrs=listen,
        connection_config=ConnectionConfig(
            max_connections=CONNECTIONS_MAX,
            high_watermark=CONNECTIONS_MAX,
            low_watermark=0,
            min_connections=0,
            max_connections_per_peer=4,
            inbound_upgrade_timeout=LET_IN_WITHIN_S,
            deny_list=list(NEVER_DIALLED),
        ),
        resource_manager=ResourceManager(enable_circuit_breaker=False, enable_graceful_degradation=False),
        addrs_factory=advertise,
        disable_identify_address_discovery=True,
    )
    setattr(host, "get_addrs", _remembered(host.get_addrs))  # noqa: B010 - mypy forbids the plain assignment
    network: Any = host.get_network()
    network.set_resource_manager(None)  # its rate limits and breakers would lock peers out for a minute
    network.retry_config = RetryConfig(max_retries=0)  # the dialler retries
    network.auto_connector.start = trio.lowlevel.checkpoint  # the dialler connects
    hardening.guard_streams(network, report, flood)
    meter_frames(network, flood)
    router = pubsub = None
    if gossip:
        router = _router()
        pubsub = Pubsub(
            host,
            router,
            strict_signing=True,
            seen_ttl=30,
            validation_cache_size=1,  # of verdicts on messages that are never asked for again, in a list
        )
        hardening.keep_subscriptions(pubsub)
        hardening.open_gossip_again(pubsub)
        hardening.bound_gossip_memory(pubsub, router)
    dht = KadDHT(host, DHTMode.SERVER, enable_random_walk=True, max_peers_per_subnet=0)
    hardening.keep_no_values(dht)
    return Host(host=host, network=network, dht=dht, pubsub=pubsub, router=router)


def _remembered(get_addrs: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """The host's own addresses, which it asks for with every message it gossips (measured: 1.5 ms)."""
    known: list[Any] = []
    known_until = 0.0

    def remembered() -> list[Any]:
        nonlocal known, known_until
        if not known or trio.current_time() > known_until:
            known, known_until = get_addrs(), trio.current_time() + ADDRESSES_KNOWN_S
        return known

    return remembered


def _router() -> DirectGossip:
    return DirectGossip(
        protocols=[MESHSUB_1_1, MESHSUB_1_0],  # 1.2 doubled CPU and latency
        degree_high=CONNECTIONS_MAX,  # a hub that prunes leaves its leaves without any peer
        heartbeat_initial_delay=0.1,
        heartbeat_interval=1,
        do_px=False,
        spam_protection_enabled=False,  # 10 messages/s per forwarder; topic.py limits authors
        adaptive_gossip_enabled=False,
        eclipse_protection_enabled=False,
        prune_back_off=5,
        unsubscribe_back_off=2,
        max_pending_messages_per_peer=1,  # kept for each peer that has not subscribed
        pending_messages_ttl=2.0,
    )


async def open_stream(host: Host, peer: PeerId, protocol: str, *, direct: bool = False) -> Any:
    """A new stream over the newest connection to a peer, one that no relay passes on if there is any, and if
    `direct` never another one. Never dials.

    Raises:
        PeerLostError: there is no connection, or the peer does not speak the protocol.
    """
    connections = [each for each in host.network.get_connections(ID.from_base58(peer)) if is_open(each)]
    directs = [each for each in connections if not is_relayed(each)]
    if directs or direct:
        connections = directs
    if not connections:
        raise PeerLostError("not connected")
    stream = None
    try:
        with trio.fail_after(NEGOTIATION_S):
            stream = await connections[-1].new_stream()
            await host.host.multiselect_client.select_one_of(
                [TProtocol(protocol)], MultiselectCommunicator(stream), NEGOTIATION_S
            )
            stream.set_protocol(TProtocol(protocol))
            opened, stream = stream, None
            return opened
    except MultiselectClientError:
        raise PeerLostError(f"the peer does not speak {protocol}") from None
    except (*STREAM_ERRORS, trio.TooSlowError) as error:
        raise PeerLostError(f"no stream: {type(error).__name__}") from None
    except Exception as error:  # the library parses the peer's answer, and raises what its parsers raise
        log.warning("peer=%s opening a stream for %s failed: %r", peer, protocol, error)
        raise PeerLostError(f"no stream: {type(error).__name__}") from None
    finally:
        if stream is not None:
            with contained("resetting a stream", peer=peer), trio.move_on_after(RESET_S, shield=True):
                await stream.reset()


def is_open(connection: Any) -> bool:
    """Neither side has begun to close it."""
    return not connection.is_closed and not connection.muxed_conn.event_shutting_down.is_set()


def is_relayed(connection: Any) -> bool:
    """Its bytes go through a third peer."""
    return any("/p2p-circuit" in str(addr) for addr in connection.get_transport_addresses())


async def dial(host: Host, peer: PeerId, addr: Any) -> None:
    """Connect to a peer under one address that has an IP. Raises what the library raises."""
    peer_id = ID.from_base58(peer)
    host.network.unblock_peer(peer_id)  # one failure locks a peer out for a minute
    await host.network.dial_addr(addr, peer_id)
    host.host.get_peerstore().add_addrs(peer_id, [addr], ADDRESS_TTL_S)


async def abort(connection: Any) -> None:
    """Close a connection whose peer may take no more bytes: the socket first, since goodbyes would block."""
    peer = PeerId(connection.muxed_conn.peer_id.to_base58())
    with trio.move_on_after(RESET_S, shield=True):
        for close in (connection.muxed_conn.secured_conn.close, connection.close):
            with contained("closing its connection", peer=peer), suppress(*STREAM_ERRORS):
                await close()
