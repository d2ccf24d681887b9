"""What a node tells people about itself: the bodies of its own JSON (docs/schema/)."""

from __future__ import annotations

from collections.abc import Mapping

from peerinfer.core.breaker import breaker_state
from peerinfer.core.peer_view import PeerRecord
from peerinfer.core.types import Load
from peerinfer.node.context import Context
from peerinfer.node.ports import Link, Overlay

DROPPED = ("handshake", "discovery", "gossip", "snapshot", "request", "http")


def status(node: Context, *, uptime_s: float) -> dict[str, object]:
    """`/peerinfer/v1/status`."""
    info = node.engine.info
    return {
        "peer_id": node.me,
        "addrs": list(node.overlay.addrs()),
        "model": info.model,
        "fingerprint": node.fingerprint.hex(),
        "swarm_key_id": node.swarm_key.key_id if node.swarm_key else None,
        "network": network_json(node.overlay),
        "policy": node.config.routing.policy,
        "engine": info.kind,
        "engine_state": str(node.engine_state),
        "incarnation": node.incarnation,
        "uptime_s": uptime_s,
        "requests": {
            kind: node.requests[kind]
            for kind in ("received", "served_local", "forwarded", "served_for_peers", "refused", "failed")
        },
        "cache": {
            "pages": len(node.view.own),
            "capacity_pages": info.capacity_pages,
            "page_size": info.page_size,
            "source": info.source,
            "unkeyed_blocks": node.cache_sync.unkeyed_blocks,
        },
        "load": load_json(node.engine.load()),
        "routing": {
            "saved_by_forwarding_s": node.totals.saved_by_forwarding_s,
            "lost_by_forwarding_s": node.totals.lost_by_forwarding_s,
            "rented_prefixes": len(node.rents),
        },
        "dropped": dropped_json(node.dropped),
    }


def network_json(overlay: Overlay) -> dict[str, object]:
    """Whether a peer is in a swarm or alone, and what it does for others."""
    links, standing = overlay.links(), overlay.standing()
    return {
        "links": len(links),
        "relayed_links": sum(link.relayed for link in links.values()),
        "unreached": [{"addr": addr, "reason": why} for addr, why in standing.unreached.items()],
        "relays": list(standing.relays),
        "reservations": standing.reservations,
        "circuits": standing.circuits,
    }


def dropped_json(dropped: Mapping[str, int]) -> dict[str, int]:
    """What was refused, by kind."""
    return {kind: dropped.get(kind, 0) for kind in DROPPED}


def peers(node: Context, *, now: float) -> dict[str, object]:
    """`/peerinfer/v1/peers`: the swarm as this node sees it, foreign nodes with the field that differs."""
    links = node.overlay.links()
    known = [_peer_json(node, record, links.get(record.peer), now) for record in node.view.peers()]
    foreign = [
        {
            "peer_id": peer,
            "addrs": list(links[peer].addrs) if peer in links else [],
            "link": link_json(links.get(peer)),
            "differs": list(fields),
        }
        for peer, fields in sorted(node.foreign.items())
    ]
    return {"peers": known, "foreign": foreign}


def link_json(link: Link | None) -> str | None:
    """How a peer is linked, if it is."""
    if link is None:
        return None
    return "relayed" if link.relayed else "direct"


def _peer_json(node: Context, record: PeerRecord, link: Link | None, now: float) -> dict[str, object]:
    return {
        "peer_id": record.peer,
        "addrs": list(record.addrs),
        "link": link_json(link),
        "state": str(node.view.state(record.peer, now=now)),
        "rtt_s": record.round_trip_s,
        "prediction_error_s": record.prediction_error_s,
        "incarnation": record.incarnation,
        "seq": record.seq,
        "tree_version": record.tree_version,
        "pages": record.pages,
        "snapshot_age_s": max(0.0, now - record.heard_at),
        "load": load_json(record.load),
        "paused_for_s": max(0.0, record.paused_until - now),
        "breaker": {
            "state": str(breaker_state(record.failures, record.open_until, now=now)),
            "failures": record.failures,
            "retry_in_s": max(0.0, record.open_until - now),
        },
    }


def load_json(load: Load) -> dict[str, object]:
    """A load as the JSON has it everywhere."""
    return {
        "running": load.running,
        "queued": load.queued,
        "queued_prefill_tokens": load.queued_prefill_tokens,
        "recent_prefill_tokens": load.recent_prefill_tokens,
        "prefill_tokens_per_s": load.prefill_tokens_per_s,
        "decode_tokens_per_s": load.decode_tokens_per_s,
        "slots": load.slots,
    }
